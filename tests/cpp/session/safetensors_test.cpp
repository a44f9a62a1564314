// Named tensors of every type in a file and back.
#include "session/training/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <filesystem>

#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;

class SafetensorsTest : public ::testing::Test {
 protected:
  ~SafetensorsTest() override { std::filesystem::remove(path_); }
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("ortmodule_safetensors_" + std::to_string(::getpid()))).string();
};

TEST_F(SafetensorsTest, KeepsTypesShapesAndStrides) {
  TensorFile file;
  file.metadata = {{"a", "\"quoted\""}, {"b", ""}};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kUInt16, at::kUInt32})
    file.tensors[std::string("of ") + c10::toString(type)] = at::randn({3, 5}).mul(10).to(at::kDouble).to(type);
  file.tensors["turned"] = at::randn({2, 3}).t();
  file.tensors["number"] = at::randn({});
  file.tensors["nothing"] = at::zeros({0, 4});
  write_safetensors(path_, file);
  const TensorFile found = read_safetensors(path_);
  EXPECT_EQ(found.metadata, file.metadata);
  ASSERT_EQ(found.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    const at::Tensor& other = found.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(other.is_contiguous());
    EXPECT_TRUE(at::equal(other.view({-1}).to(at::kDouble), tensor.reshape({-1}).to(at::kDouble))) << name;
  }
}

TEST_F(SafetensorsTest, RefusesATypeThatTheFormatHasNot) {
  expect_error(ErrorCode::kUnsupported, "'x' is of type ComplexDouble",
               [&] { write_safetensors(path_, {{{"x", at::zeros({2}, at::kComplexDouble)}}, {}}); });
  EXPECT_FALSE(std::filesystem::exists(path_)) << "nothing is written for it";
}

TEST_F(SafetensorsTest, SaysThatThereIsNoFile) {
  expect_error(ErrorCode::kInvalidArgument, "cannot be read", [&] { read_safetensors(path_); });
}

}  // namespace
}  // namespace ortmodule
