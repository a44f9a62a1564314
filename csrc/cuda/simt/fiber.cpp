#include "cuda/simt/fiber.h"

#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace ortmodule::cuda::simt {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStack = 256 << 10;  // variables have room around them
#else
constexpr size_t kStack = 64 << 10;
#endif

}  // namespace

void Fiber::start_switch([[maybe_unused]] Side& from, [[maybe_unused]] const Side& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.frames, to.bottom, to.bytes);
#endif
}

void Fiber::finish_switch([[maybe_unused]] Side& to, [[maybe_unused]] Side& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(to.frames, &from.bottom, &from.bytes);
#endif
}

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  namespace context = boost::context;
  context::protected_fixedsize_stack stacks(kStack);
  const context::stack_context stack = stacks.allocate();
  inside_ = {static_cast<char*>(stack.sp) - stack.size, stack.size, nullptr};
  context_ = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), stacks,
                            [this](context::fiber&& scheduler) {
                              finish_switch(inside_, outside_);
                              scheduler_ = std::move(scheduler);
                              body_();
                              return std::move(scheduler_);
                            });
}

void Fiber::enter() {
  start_switch(outside_, inside_);
  context_ = std::move(context_).resume();
  Side ignored;
  finish_switch(outside_, ignored);
}

void Fiber::leave() {
  start_switch(inside_, outside_);
  scheduler_ = std::move(scheduler_).resume();
  finish_switch(inside_, outside_);
}

}  // namespace ortmodule::cuda::simt
