// The simulated GPU by itself: what a GPU's threads may count on holds, and what they may not is found.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cuda/elements.cuh"
#include "cuda/reduce.cuh"

namespace ortmodule::cuda {
namespace {

// The buffers of a test, whose extents the simulator then knows.
std::map<const char*, size_t> buffers;

simt::Reached reached(const void* address) {
  const char* at = static_cast<const char*>(address);
  for (const auto& [begin, bytes] : buffers)
    if (at >= begin && at < begin + bytes) return {const_cast<char*>(at), begin, begin + bytes};
  return {const_cast<char*>(at), nullptr, nullptr};
}

class Simt : public testing::Test {
 protected:
  void SetUp() override {
    simt::set_reach(&reached);
    simt::set_settings({});
    simt::reset_counts();
  }
  void TearDown() override {
    buffers.clear();
    simt::set_reach(nullptr);
  }

  float* buffer(std::vector<float>& values) {
    buffers[reinterpret_cast<const char*>(values.data())] = values.size() * sizeof(float);
    return values.data();
  }

  // What the kernel does wrong; empty: nothing.
  template <typename... Parameters, typename... Arguments>
  std::string error(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, const Arguments&... arguments) {
    try {
      EXPECT_EQ(launch("kernel", kernel, blocks, threads, nullptr, arguments...), 0);
    } catch (const simt::KernelError& wrong) {
      return wrong.what();
    }
    return {};
  }

  bool found(const std::string& error, const char* what) { return error.find(what) != std::string::npos; }
};

__global__ void twice(Global<const float> x, Global<float> y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) store(y, i, 2 * load(x, i));
}

TEST_F(Simt, RunsEveryThreadOfEveryBlock) {
  std::vector<float> x(1000), y(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (const auto order : {simt::Order::kForward, simt::Order::kBackward, simt::Order::kShuffled}) {
    simt::set_settings({order, 3, false});
    y.assign(y.size(), 0);
    EXPECT_EQ(error(&twice, 8, 128, global<const float>(buffer(x)), global<float>(buffer(y)), int64_t{1000}), "");
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], 2 * x[i]);
  }
  EXPECT_EQ(simt::counts().at("kernel").launches, 3u);
  EXPECT_EQ(simt::counts().at("kernel").traffic.loaded, 3u * 4000);
}

TEST_F(Simt, FindsAccessesBeyondABuffer) {
  std::vector<float> x(1000), y(999);
  const std::string wrong =
      error(&twice, 8, 128, global<const float>(buffer(x)), global<float>(buffer(y)), int64_t{1000});
  EXPECT_TRUE(found(wrong, "block (7, 0, 0), thread (103, 0, 0): writes 4 bytes at 3996 of a buffer of 3996")) << wrong;
  EXPECT_EQ(error(&twice, 8, 128, global<const float>(buffer(x)), global<float>(buffer(y)), int64_t{999}), "");
}

__global__ void vectors_at(Global<const float> x, Global<float> y, int64_t first) {
  store_vector<4>(y, int64_t{threadIdx.x} * 4, load_vector<4>(x, first + int64_t{threadIdx.x} * 4));
}

TEST_F(Simt, FindsVectorsThatAreNotAligned) {
  alignas(16) static float x[132], y[128];
  EXPECT_EQ(error(&vectors_at, 1, 32, global<const float>(x), global<float>(y), int64_t{4}), "");
  EXPECT_TRUE(found(error(&vectors_at, 1, 32, global<const float>(x), global<float>(y), int64_t{1}), "is not aligned"));
}

// Sums of a row by way of shared memory; `barriers` says which of the two are there.
__global__ void sum_rows(Global<const float> x, Global<float> y, int barriers) {
  ORTMODULE_SHARED(float, parts, 64);
  float total = 0;
  for (int row = 0; row < 2; ++row) {
    if (row && (barriers & 2)) __syncthreads();
    parts[threadIdx.x] = load(x, row * 64 + static_cast<int>(threadIdx.x));
    if (barriers & 1) __syncthreads();
    for (int i = 0; i < 64; ++i) total += parts[i];
  }
  store(y, threadIdx.x, total);
}

TEST_F(Simt, FindsEachMissingBarrier) {
  std::vector<float> x(128, 1.0f), y(64);
  for (const auto order : {simt::Order::kForward, simt::Order::kBackward, simt::Order::kShuffled}) {
    simt::set_settings({order, 5, false});
    const auto run = [&](int barriers) {
      return error(&sum_rows, 1, 64, global<const float>(buffer(x)), global<float>(buffer(y)), barriers);
    };
    EXPECT_EQ(run(3), "");
    EXPECT_EQ(y[63], 128.0f);
    EXPECT_TRUE(found(run(1), "a race: shared memory is ")) << run(1);
    EXPECT_TRUE(found(run(2), "shared memory is read that no thread has written")) << run(2);
  }
}

__global__ void turn(Global<float> y, int synchronized) {
  ORTMODULE_SHARED(float, parts, 32);
  parts[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (synchronized) __syncwarp();
  store(y, threadIdx.x, parts[(threadIdx.x + 1) % 32]);
}

TEST_F(Simt, OrdersAWarpByItsBarrierAlone) {
  std::vector<float> y(32);
  EXPECT_EQ(error(&turn, 1, 32, global<float>(buffer(y)), 1), "");
  EXPECT_EQ(y[31], 0.0f);
  EXPECT_NE(error(&turn, 1, 32, global<float>(buffer(y)), 0), "");
}

__global__ void some_wait(int last) {
  if (static_cast<int>(threadIdx.x) < last) __syncthreads();
}
__global__ void some_shuffle(Global<float> y, int last) {
  if (static_cast<int>(threadIdx.x) < last) store(y, threadIdx.x, __shfl_xor_sync(~0u, 1.0f, 1));
}

TEST_F(Simt, FindsBarriersThatSomeDoNotReach) {
  std::vector<float> y(64);
  EXPECT_EQ(error(&some_wait, 1, 64, 64), "");
  EXPECT_TRUE(found(error(&some_wait, 1, 64, 7), "__syncthreads is not reached by 57 of 64 threads"));
  EXPECT_EQ(error(&some_shuffle, 1, 64, global<float>(buffer(y)), 32), "");
  EXPECT_TRUE(found(error(&some_shuffle, 1, 64, global<float>(buffer(y)), 40), "24 of the 32 threads of warp 1"));
  EXPECT_EQ(error(&some_wait, 1, 64, 64), "") << "the next launch is not hurt";
}

__global__ void warp_words(Global<float> y) {
  const int lane = static_cast<int>(threadIdx.x);
  store(y, lane, __shfl_sync(~0u, static_cast<float>(lane), 5));
  store(y, 32 + lane, __shfl_up_sync(~0u, static_cast<float>(lane), 1));
  store(y, 64 + lane, __shfl_down_sync(~0u, static_cast<float>(lane), 1));
  store(y, 96 + lane, static_cast<float>(__popc(__ballot_sync(~0u, lane % 3 == 0))));
  store(y, 128 + lane, static_cast<float>(__any_sync(~0u, lane == 31) + 2 * __all_sync(~0u, lane < 31)));
  const float sum = reduce_warp<Sum>(static_cast<float>(lane)),
              largest = reduce_warp<Maximum>(static_cast<float>(lane));
  store(y, 160 + lane, sum + 1000 * largest);
  atomic_add(y, 192, 1.0f);
}

TEST_F(Simt, HasShufflesVotesAndAtomics) {
  std::vector<float> y(193);
  ASSERT_EQ(error(&warp_words, 1, 32, global<float>(buffer(y))), "");
  EXPECT_EQ(y[0], 5.0f);
  EXPECT_EQ(y[32], 0.0f);
  EXPECT_EQ(y[32 + 31], 30.0f);
  EXPECT_EQ(y[64 + 31], 31.0f);
  EXPECT_EQ(y[96], 11.0f);
  EXPECT_EQ(y[128], 1.0f);
  EXPECT_EQ(y[160], 496.0f + 31000.0f);
  EXPECT_EQ(y[192], 32.0f);
}

__global__ void too_much_shared() {
  ORTMODULE_SHARED(float, parts, (48 << 10) / 4 + 1);
  parts[threadIdx.x] = 0;
}

TEST_F(Simt, RefusesWhatNoGpuHas) {
  std::vector<float> x(1), y(1);
  const auto code = [&](dim3 blocks, dim3 threads) {
    return launch("kernel", &some_wait, blocks, threads, nullptr, 1 << 20);
  };
  EXPECT_EQ(code(1, 1024), 0);
  EXPECT_NE(code(1, 1056), 0);
  EXPECT_NE(code(1, 33), 0) << "not whole warps";
  EXPECT_NE(code(0, 32), 0);
  EXPECT_NE(code(dim3(1, 65536), 32), 0);
  EXPECT_TRUE(found(error(&too_much_shared, 1, 32), "bytes of shared memory"));
}

__global__ void strided(Global<const float> x, Global<float> y, int64_t step) {
  store(y, threadIdx.x, load(x, int64_t{threadIdx.x} * step));
}

TEST_F(Simt, CountsSectorsByTheRequestsOfAWarp) {
  alignas(32) static float x[32 * 8], y[64];
  simt::set_settings({simt::Order::kForward, 0, true});
  const auto touched = [&](int64_t step, unsigned threads) {
    simt::reset_counts();
    EXPECT_EQ(error(&strided, 1, threads, global<const float>(x), global<float>(y), step), "");
    const simt::Traffic t = simt::counts().at("kernel").traffic;
    return std::pair(t.touched, t.needed);
  };
  EXPECT_EQ(touched(1, 32), std::pair(uint64_t{8}, uint64_t{8}));
  EXPECT_EQ(touched(2, 32), std::pair(uint64_t{12}, uint64_t{8}));
  EXPECT_EQ(touched(8, 32), std::pair(uint64_t{36}, uint64_t{8}));
  EXPECT_EQ(touched(0, 32), std::pair(uint64_t{5}, uint64_t{5})) << "one element for all";
  EXPECT_EQ(touched(1, 64).first, 16u);
}

TEST_F(Simt, RoundsAsTorchDoes) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const float half = to_float(Half{b}), theirs = c10::Half(b, c10::Half::from_bits());
    const float other = to_float(BFloat16{b}), torch = c10::BFloat16(b, c10::BFloat16::from_bits());
    ASSERT_TRUE(std::bit_cast<uint32_t>(half) == std::bit_cast<uint32_t>(theirs) || (half != half && theirs != theirs));
    ASSERT_TRUE(std::bit_cast<uint32_t>(other) == std::bit_cast<uint32_t>(torch) || (other != other && torch != torch));
  }
  std::mt19937 random(0);
  for (int i = 0; i < 300000; ++i) {
    float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (i % 2) x = std::ldexp(x, -100);
    if (i % 3) x = std::ldexp(1.0f + static_cast<float>(random() % 8192) / 8192, static_cast<int>(random() % 44) - 27);
    if (x != x) continue;
    ASSERT_EQ(to_half(x).bits, c10::Half(x).x) << x;
    ASSERT_EQ(to_bfloat16(x).bits, c10::BFloat16(x).x) << x;
  }
}

}  // namespace
}  // namespace ortmodule::cuda
