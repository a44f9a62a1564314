// Writing external data: nothing is written outside of the folder that the caller named, whatever lies there already.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "onnx/export.h"
#include "onnx/external_file.h"
#include "support.h"

namespace ortmodule {
namespace {

namespace fs = std::filesystem;

// A folder "model" and, beside it, a file that is not to change.
class ExternalFileWriting : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ortmodule_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directory(model());
    std::ofstream(victim()) << "mine";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string model() const { return root_ + "/model"; }
  std::string victim() const { return root_ + "/victim"; }

  // Whether the file beside the folder is as it was after `file` was written, or refused.
  bool kept(const std::string& folder, const std::string& file) const {
    try {
      ExternalFileWriter writer(folder, file);
      writer.append("overwritten");
      writer.commit();
    } catch (const Error&) {
    }
    std::ifstream stream(victim());
    std::string text;
    stream >> text;
    return text == "mine" && std::distance(fs::directory_iterator(root_), {}) == 2;
  }

  std::string root_;
};

TEST_F(ExternalFileWriting, NeverLeavesTheFolder) {
  int refused = 0;
  const auto expect_kept = [&](const char* way, const std::string& folder, const std::string& file) {
    EXPECT_TRUE(kept(folder, file)) << way;
    ++refused;
  };
  fs::create_directory(model() + "/inner");
  expect_kept("..", model(), "../victim");
  expect_kept("nested ..", model(), "inner/../../victim");
  expect_kept("absolute", model(), victim());
  fs::create_symlink("../victim", model() + "/link");
  expect_kept("symbolic link", model(), "link");
  fs::create_directory_symlink("..", model() + "/up");
  expect_kept("linked folder", model(), "up/victim");
  fs::create_hard_link(victim(), model() + "/hard");
  expect_kept("hard link", model(), "hard");
  const fs::path before = fs::current_path();
  fs::current_path(model());
  expect_kept("no folder", "", "../victim");
  fs::current_path(before);

  // The name that is written first, exchanged for a link all the time.
  std::atomic<bool> stop{false};
  const std::string temporary = model() + "/w.tmp." + std::to_string(::getpid());
  std::thread exchange([&] {
    while (!stop) {
      (void)::symlink("../victim", temporary.c_str());
      (void)::unlink(temporary.c_str());
    }
  });
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(kept(model(), "w")) << "exchanged";
  stop = true;
  exchange.join();
  ++refused;
  std::printf("external data: %d of 8 ways write nothing outside of the folder\n", refused);
}

TEST_F(ExternalFileWriting, TakesTheNameOfALinkInsteadOfFollowingIt) {
  fs::create_symlink("../victim", model() + "/w");
  ExternalFileWriter writer(model(), "w");
  EXPECT_EQ(writer.append("own"), 0u);
  writer.commit();
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(model() + "/w")));
}

}  // namespace
}  // namespace ortmodule
