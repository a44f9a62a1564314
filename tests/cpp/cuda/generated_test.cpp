// Sources that are compiled while a session is built: side by side, each once, and errors are told to who waits.
#include "cuda/generated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace ortmodule::cuda {
namespace {

// What a compiler of these tests was asked.
struct Asked {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> sources;
  std::vector<std::thread::id> threads;
  int inside = 0, most_inside = 0;
  bool open = true;  // else nobody gets out of the compiler

  void let_out() {
    const std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
} asked;

void* compile(const char* source, int, char* error, size_t error_size) {
  std::unique_lock<std::mutex> lock(asked.mutex);
  asked.sources.push_back(source);
  asked.threads.push_back(std::this_thread::get_id());
  asked.most_inside = std::max(asked.most_inside, ++asked.inside);
  asked.changed.notify_all();
  asked.changed.wait(lock, [] { return asked.open; });
  --asked.inside;
  if (std::strcmp(source, "wrong") != 0) return &asked;
  std::snprintf(error, error_size, "line 3 is wrong");
  return nullptr;
}

class GeneratedKernels : public testing::Test {
 protected:
  GeneratedKernels() {
    asked.sources.clear();
    asked.threads.clear();
    asked.most_inside = 0;
  }
  static const SourceCompiler compiler;
};
const SourceCompiler GeneratedKernels::compiler{"a test", &compile, nullptr, nullptr};

TEST_F(GeneratedKernels, EqualSourcesAreCompiledOnce) {
  Compilation& first = compilation_of(compiler, 0, "equal");
  EXPECT_EQ(&first, &compilation_of(compiler, 0, "equal"));
  EXPECT_NE(&first, &compilation_of(compiler, 1, "equal"));
  compile_ahead(first);
  compile_ahead(first);
  EXPECT_EQ(compiled(first), &asked);
  EXPECT_EQ(compiled(first), &asked);
  EXPECT_EQ(asked.sources, std::vector<std::string>{"equal"});
}

TEST_F(GeneratedKernels, SourcesAreCompiledSideBySideByOtherThreads) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor";
  asked.open = false;
  for (const char* source : {"left", "right"}) compile_ahead(compilation_of(compiler, 0, source));
  {
    std::unique_lock<std::mutex> lock(asked.mutex);
    EXPECT_TRUE(asked.changed.wait_for(lock, std::chrono::seconds(20), [] { return asked.inside == 2; }));
  }
  asked.let_out();
  for (const char* source : {"left", "right"}) EXPECT_EQ(compiled(compilation_of(compiler, 0, source)), &asked);
  EXPECT_EQ(asked.most_inside, 2);
  for (const std::thread::id thread : asked.threads) EXPECT_NE(thread, std::this_thread::get_id());
}

TEST_F(GeneratedKernels, WhoWaitsCompilesWhatNoThreadHasBegunWith) {
  EXPECT_EQ(compiled(compilation_of(compiler, 0, "mine")), &asked);
  EXPECT_EQ(asked.threads, std::vector<std::thread::id>{std::this_thread::get_id()});
}

TEST_F(GeneratedKernels, AnErrorIsToldToWhoWaitsEachTime) {
  Compilation& wrong = compilation_of(compiler, 0, "wrong");
  compile_ahead(wrong);
  for (int time = 0; time < 2; ++time) {
    try {
      compiled(wrong);
      FAIL() << "it compiled";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "a generated kernel does not compile with a test: line 3 is wrong; Options(fusion=False) trains "
                   "without generated kernels");
    }
  }
  EXPECT_EQ(asked.sources.size(), 1u);
}

}  // namespace
}  // namespace ortmodule::cuda
