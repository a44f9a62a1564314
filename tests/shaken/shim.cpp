// Preloaded into a process: its threads sleep at random for up to two milliseconds around locks, signals of conditions
// and sockets, so that orders of events come about which a quiet machine shows once in thousands of runs.
//
// SHAKEN_ONE_IN says how often, once in so many of these calls. Not here: how it is built and preloaded (__main__.py).
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr uint64_t kLongestNanoseconds = 2'000'000;

uint64_t one_in() {
  static const uint64_t value = [] {
    const char* const said = std::getenv("SHAKEN_ONE_IN");
    return said ? std::strtoull(said, nullptr, 10) : 0;
  }();
  return value;
}

// A generator a thread (Marsaglia's xorshift of 64 bits), begun by its address and the time.
uint64_t drawn() {
  static thread_local uint64_t state = 0;
  if (state == 0) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = reinterpret_cast<uintptr_t>(&state) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(now.tv_nsec) + 1;
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

void shake() {
  const uint64_t often = one_in(), number = drawn();
  if (often == 0 || (number >> 20) % often != 0) return;
  const timespec pause{0, static_cast<long>((number >> 40) % kLongestNanoseconds)};
  nanosleep(&pause, nullptr);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  shake();
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  const int result = real(mutex);
  shake();
  return result;
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static auto* const real = next<int(pthread_cond_t*)>("pthread_cond_signal");
  const int result = real(condition);
  shake();
  return result;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static auto* const real = next<int(pthread_cond_t*)>("pthread_cond_broadcast");
  const int result = real(condition);
  shake();
  return result;
}

ssize_t writev(int file, const iovec* parts, int count) {
  static auto* const real = next<ssize_t(int, const iovec*, int)>("writev");
  const ssize_t result = real(file, parts, count);
  shake();
  return result;
}

ssize_t recv(int socket, void* into, size_t bytes, int flags) {
  static auto* const real = next<ssize_t(int, void*, size_t, int)>("recv");
  const ssize_t result = real(socket, into, bytes, flags);
  shake();
  return result;
}

}  // extern "C"
