// What the bytes of a model are asked before protobuf makes objects of them.
#include "onnx/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "onnx/import.h"
#include "support.h"

namespace ortmodule {
namespace {

std::string field(int number, const std::string& bytes) {
  std::string out;
  const auto varint = [&](uint64_t value) {
    for (; value > 0x7f; value >>= 7) out += static_cast<char>(0x80 | (value & 0x7f));
    out += static_cast<char>(value);
  };
  varint(static_cast<uint64_t>(number) << 3 | 2);
  varint(bytes.size());
  return out + bytes;
}

std::string model_of(const std::string& graph) { return field(7, graph); }
std::string node(const std::string& name, const std::string& attributes = {}) {
  return field(1, field(3, name) + field(4, "If") + attributes);
}
std::string body(const std::string& graph) { return field(5, field(1, "then_branch") + field(6, graph)); }

TEST(Wire, CountsNodesOfBodiesAndFunctions) {
  const std::string inner = node("a") + node("b");
  const std::string function = field(25, field(1, "f") + field(7, field(4, "Neg")));
  const ModelSize size = [&] {
    const std::string bytes = model_of(node("c", body(inner)) + node("longer")) + function;
    return measure(bytes.data(), bytes.size());
  }();
  EXPECT_EQ(size.nodes, 5u);
  EXPECT_EQ(size.nesting, 1u);
  EXPECT_EQ(size.longest_name, std::string("then_branch").size());
  EXPECT_FALSE(size.broken_text);
}

TEST(Wire, CountsHowDeepBodiesLie) {
  std::string graph = node("leaf");
  for (int i = 0; i < 20; ++i) graph = node("n", body(graph));
  const std::string bytes = model_of(graph);
  EXPECT_EQ(measure(bytes.data(), bytes.size()).nesting, 20u);
}

TEST(Wire, FindsTextsThatAreNoUtf8) {
  for (const char* sound : {"x", "é", "€", "😀", ""}) {
    const std::string bytes = model_of(node(sound));
    EXPECT_FALSE(measure(bytes.data(), bytes.size()).broken_text) << sound;
  }
  for (const char* broken : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80", "\xe2\x82"}) {
    const std::string bytes = model_of(node(broken));
    const ModelSize size = measure(bytes.data(), bytes.size());
    ASSERT_TRUE(size.broken_text) << broken;
    EXPECT_EQ(bytes.substr(*size.broken_text, std::string(broken).size()), broken);
  }
}

TEST(Wire, GroupsHideNothing) {
  // Protobuf skips a group that it does not know; what stands behind it is read.
  const std::string group = "\x0b\x0c";  // the first field as a group: begin, end
  const std::string bytes = group + model_of(node("a") + node("b"));
  EXPECT_EQ(measure(bytes.data(), bytes.size()).nodes, 2u);
}

TEST(Wire, LimitsAreLookedAtBeforeAnythingElse) {
  const std::string bytes = model_of(node("a") + node("b"));  // no model: it has no version
  ImportOptions options;
  options.limits.nodes = 1;
  EXPECT_THROW(import_model(bytes.data(), bytes.size(), options), LimitError);
  options.limits.nodes = 2;
  testing::expect_error(ErrorCode::kInvalidGraph, "no ir_version",
                        [&] { import_model(bytes.data(), bytes.size(), options); });
  const std::string named = model_of(node(std::string(kLongestName + 1, 'n')));
  EXPECT_THROW(import_model(named.data(), named.size(), options), LimitError);
}

}  // namespace
}  // namespace ortmodule
