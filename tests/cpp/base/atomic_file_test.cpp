// Files that are in place whole or not at all, and what goes with the next one.
#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : folder_(fs::temp_directory_path() / ("ortmodule_atomic_" + std::to_string(::getpid()))) {
    fs::create_directory(folder_);
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  const fs::path folder_;
};

TEST_F(AtomicFileTest, IsThereWhenItIsCommitted) {
  std::ofstream(path("x")) << "before";
  {
    AtomicFile file(path("x"));
    file.append("aft");
    file.append("er");
    EXPECT_EQ(file.size(), 5u);
    EXPECT_EQ(content("x"), "before");
    file.commit();
  }
  EXPECT_EQ(content("x"), "after");
  EXPECT_EQ(count(), 1u);
}

TEST_F(AtomicFileTest, LeavesNothingWithoutACommit) {
  {
    AtomicFile(path("x")).append("half");
  }
  EXPECT_EQ(count(), 0u);
}

TEST_F(AtomicFileTest, TakesAwayWhatNobodyWritesAnyMore) {
  std::ofstream(path("x.7.0.partial")) << "of a process that was killed";
  std::ofstream(path("x.8.0.partial")) << "of one that writes";
  std::ofstream(path("xy.7.0.partial")) << "of another file";
  const int held = ::open(path("x.8.0.partial").c_str(), O_WRONLY);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  AtomicFile file(path("x"));
  file.commit();
  EXPECT_FALSE(fs::exists(path("x.7.0.partial")));
  EXPECT_TRUE(fs::exists(path("x.8.0.partial")));
  EXPECT_TRUE(fs::exists(path("xy.7.0.partial")));
  ::close(held);
}

TEST_F(AtomicFileTest, SaysWhereNothingCanBeWritten) {
  expect_error(ErrorCode::kRuntime, "nowhere/x", [&] { AtomicFile(path("nowhere/x")); });
  fs::create_directory(path("folder"));
  AtomicFile file(path("folder"));
  expect_error(ErrorCode::kRuntime, "in place", [&] { file.commit(); });
}

}  // namespace
}  // namespace ortmodule
