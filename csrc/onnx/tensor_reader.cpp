#include "onnx/tensor_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/status.h"
#include "onnx/packed.h"

namespace ortmodule {
namespace {

template <typename Stored, typename Field>
std::string narrow(const Field& field) {
  std::string bytes(static_cast<size_t>(field.size()) * sizeof(Stored), '\0');
  char* out = bytes.data();
  for (const auto value : field) {
    const auto stored = static_cast<Stored>(value);
    std::memcpy(out, &stored, sizeof(Stored));
    out += sizeof(Stored);
  }
  return bytes;
}

// Which field holds the elements of a type is fixed by onnx.proto; complex numbers are pairs.
std::string typed_fields(const pb::TensorProto& t, DType dtype) {
  switch (dtype) {
    case DType::kFloat:
    case DType::kComplex64:
      return narrow<float>(t.float_data());
    case DType::kDouble:
    case DType::kComplex128:
      return narrow<double>(t.double_data());
    case DType::kInt64:
      return narrow<int64_t>(t.int64_data());
    case DType::kUInt64:
      return narrow<uint64_t>(t.uint64_data());
    case DType::kUInt32:
      return narrow<uint32_t>(t.uint64_data());
    case DType::kInt32:
      return narrow<int32_t>(t.int32_data());
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return narrow<uint16_t>(t.int32_data());
    default:
      return narrow<uint8_t>(t.int32_data());
  }
}

}  // namespace

// Many bytes go where tensors want them, so that a session has no copy of its own to make.
SharedBytes TensorReader::settled(std::string bytes) {
  if (bytes.size() < kManyBytes) return bytes;
  if (SharedBytes aside = aside_.put(bytes)) return aside;
  return SharedBytes::aligned(bytes.size(), [&](char* to) { std::memcpy(to, bytes.data(), bytes.size()); });
}

namespace {

uint64_t number(const std::string& text, const char* key, const std::string& owner) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ORTMODULE_CHECK_GRAPH(error == std::errc() && end == text.data() + text.size(), "the external data of ", owner,
                        " has the ", key, " '", text, "', which is no number of bytes");
  return value;
}

}  // namespace

uint64_t TensorReader::checked_size(const pb::TensorProto& tensor, DType dtype, const std::string& owner) {
  uint64_t elements = 1;
  bool overflow = false, empty = false;
  for (const int64_t d : tensor.dims()) {
    ORTMODULE_CHECK_GRAPH(d >= 0, owner, " has the negative dimension ", d);
    empty = empty || d == 0;
    overflow = __builtin_mul_overflow(elements, static_cast<uint64_t>(d), &elements) || overflow;
  }
  if (empty) return 0;
  uint64_t bytes = 0, in_file = 0;
  overflow = __builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_size(dtype)), &bytes) || overflow;
  overflow = !packed_size(dtype, elements, in_file) || overflow;
  if (overflow || bytes > bytes_left_)
    exceed(owner, " brings the model's tensors over the limit of ", limit_, " bytes (SessionOptions.max_tensor_bytes)");
  bytes_left_ -= bytes;
  return in_file;
}

SharedBytes TensorReader::external(const pb::TensorProto& tensor, uint64_t size, const std::string& owner) {
  std::string location;
  uint64_t offset = 0, length = size;
  std::unordered_set<std::string> given;
  for (const auto& entry : tensor.external_data()) {
    const std::string& key = entry.key();
    ORTMODULE_CHECK_GRAPH(given.insert(key).second, "the external data of ", owner, " has the key '", key, "' twice");
    if (key == "location")
      location = entry.value();
    else if (key == "offset")
      offset = number(entry.value(), "offset", owner);
    else if (key == "length")
      length = number(entry.value(), "length", owner);
    else
      ORTMODULE_CHECK_GRAPH(key == "checksum", "the external data of ", owner, " has the key '", key,
                            "'; there are location, offset, length and checksum");
  }
  ORTMODULE_CHECK_GRAPH(length == size, owner, " needs ", size, " bytes, its external data has ", length);
  return files_.read(location, offset, length, owner);
}

TensorData TensorReader::read_initializer(pb::TensorProto& tensor, const std::string& owner) {
  const auto given = given_.find(tensor.name());
  if (given == given_.end()) return read(tensor, owner);
  TensorData data = std::move(given->second);
  given_.erase(given);
  const auto shape = [](const auto& dims) { return shape_text(Shape(dims.begin(), dims.end())); };
  ORTMODULE_CHECK_ARG(data.dtype == static_cast<DType>(tensor.data_type()) &&
                          std::equal(data.dims.begin(), data.dims.end(), tensor.dims().begin(), tensor.dims().end()),
                      owner, " is ", dtype_name(static_cast<DType>(tensor.data_type())), shape(tensor.dims()),
                      ", the tensor that was given for it ", dtype_name(data.dtype), shape(data.dims));
  return data;
}

void TensorReader::check_all_taken() const {
  for (const auto& [name, data] : given_)
    fail(ErrorCode::kInvalidArgument, "a tensor was given for '", name, "', which is no initializer of the model");
}

TensorData TensorReader::read(pb::TensorProto& tensor, const std::string& owner) {
  const auto dtype = static_cast<DType>(tensor.data_type());
  ORTMODULE_CHECK(dtype != DType::kString, kUnsupported, owner, " holds strings; string tensors are not supported");
  ORTMODULE_CHECK(dtype_size(dtype) > 0, kUnsupported, owner, " has the element type ", tensor.data_type(),
                  ", which is not supported");
  ORTMODULE_CHECK(!tensor.has_segment(), kUnsupported, owner, " is stored in segments, which is not supported");
  TensorData data{dtype, {tensor.dims().begin(), tensor.dims().end()}, nullptr};
  const uint64_t size = checked_size(tensor, dtype, owner);
  SharedBytes bytes;
  if (tensor.data_location() == pb::TensorProto::EXTERNAL)
    bytes = external(tensor, size, owner);
  else if (tensor.has_raw_data())
    bytes = settled(std::exchange(*tensor.mutable_raw_data(), {}));
  else
    bytes = settled(typed_fields(tensor, dtype));
  ORTMODULE_CHECK_GRAPH(bytes->size() == size, owner, " of type ", dtype_name(dtype), " and shape ",
                        shape_text(Shape(data.dims.begin(), data.dims.end())), " needs ", size, " bytes, got ",
                        bytes->size());
  if (is_packed(dtype)) bytes = unpack_elements(*bytes, dtype, static_cast<size_t>(data.elements()));
  data.bytes = std::move(bytes);
  return data;
}

}  // namespace ortmodule
