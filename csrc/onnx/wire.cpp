#include "onnx/wire.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace ortmodule {
namespace {

// Messages of onnx.proto that hold nodes or texts, and the two kinds of texts: names have a length limit.
enum class Kind {
  kModel,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kSparse,
  kFunction,
  kValue,
  kType,
  kTensorType,
  kContainer,
  kShape,
  kDim,
  kEntry,
  kOpset,
  kText,
  kName,
};

struct Field {
  Kind parent;
  uint64_t number;
  Kind kind;
  const char* name;
};

// All others are skipped by their length.
constexpr Field kFields[] = {
    {Kind::kModel, 2, Kind::kText, "producer_name"},
    {Kind::kModel, 3, Kind::kText, "producer_version"},
    {Kind::kModel, 4, Kind::kText, "domain"},
    {Kind::kModel, 6, Kind::kText, "doc_string"},
    {Kind::kModel, 7, Kind::kGraph, "graph"},
    {Kind::kModel, 8, Kind::kOpset, "opset_import"},
    {Kind::kModel, 14, Kind::kEntry, "metadata_props"},
    {Kind::kModel, 25, Kind::kFunction, "functions"},
    {Kind::kGraph, 1, Kind::kNode, "node"},
    {Kind::kGraph, 2, Kind::kName, "name"},
    {Kind::kGraph, 5, Kind::kTensor, "initializer"},
    {Kind::kGraph, 10, Kind::kText, "doc_string"},
    {Kind::kGraph, 11, Kind::kValue, "input"},
    {Kind::kGraph, 12, Kind::kValue, "output"},
    {Kind::kGraph, 13, Kind::kValue, "value_info"},
    {Kind::kGraph, 15, Kind::kSparse, "sparse_initializer"},
    {Kind::kGraph, 16, Kind::kEntry, "metadata_props"},
    {Kind::kNode, 1, Kind::kName, "input"},
    {Kind::kNode, 2, Kind::kName, "output"},
    {Kind::kNode, 3, Kind::kName, "name"},
    {Kind::kNode, 4, Kind::kName, "op_type"},
    {Kind::kNode, 5, Kind::kAttribute, "attribute"},
    {Kind::kNode, 6, Kind::kText, "doc_string"},
    {Kind::kNode, 7, Kind::kName, "domain"},
    {Kind::kNode, 8, Kind::kName, "overload"},
    {Kind::kNode, 9, Kind::kEntry, "metadata_props"},
    {Kind::kAttribute, 1, Kind::kName, "name"},
    {Kind::kAttribute, 5, Kind::kTensor, "t"},
    {Kind::kAttribute, 6, Kind::kGraph, "g"},
    {Kind::kAttribute, 10, Kind::kTensor, "tensors"},
    {Kind::kAttribute, 11, Kind::kGraph, "graphs"},
    {Kind::kAttribute, 13, Kind::kText, "doc_string"},
    {Kind::kAttribute, 14, Kind::kType, "tp"},
    {Kind::kAttribute, 15, Kind::kType, "type_protos"},
    {Kind::kAttribute, 21, Kind::kName, "ref_attr_name"},
    {Kind::kAttribute, 22, Kind::kSparse, "sparse_tensor"},
    {Kind::kAttribute, 23, Kind::kSparse, "sparse_tensors"},
    {Kind::kTensor, 8, Kind::kName, "name"},
    {Kind::kTensor, 12, Kind::kText, "doc_string"},
    {Kind::kTensor, 13, Kind::kEntry, "external_data"},
    {Kind::kTensor, 16, Kind::kEntry, "metadata_props"},
    {Kind::kSparse, 1, Kind::kTensor, "values"},
    {Kind::kSparse, 2, Kind::kTensor, "indices"},
    {Kind::kFunction, 1, Kind::kName, "name"},
    {Kind::kFunction, 4, Kind::kName, "input"},
    {Kind::kFunction, 5, Kind::kName, "output"},
    {Kind::kFunction, 6, Kind::kName, "attribute"},
    {Kind::kFunction, 7, Kind::kNode, "node"},
    {Kind::kFunction, 8, Kind::kText, "doc_string"},
    {Kind::kFunction, 9, Kind::kOpset, "opset_import"},
    {Kind::kFunction, 10, Kind::kName, "domain"},
    {Kind::kFunction, 11, Kind::kAttribute, "attribute_proto"},
    {Kind::kFunction, 12, Kind::kValue, "value_info"},
    {Kind::kFunction, 13, Kind::kName, "overload"},
    {Kind::kFunction, 14, Kind::kEntry, "metadata_props"},
    {Kind::kValue, 1, Kind::kName, "name"},
    {Kind::kValue, 2, Kind::kType, "type"},
    {Kind::kValue, 3, Kind::kText, "doc_string"},
    {Kind::kValue, 4, Kind::kEntry, "metadata_props"},
    {Kind::kType, 1, Kind::kTensorType, "tensor_type"},
    {Kind::kType, 4, Kind::kContainer, "sequence_type"},
    {Kind::kType, 6, Kind::kText, "denotation"},
    {Kind::kType, 9, Kind::kContainer, "optional_type"},
    {Kind::kTensorType, 2, Kind::kShape, "shape"},
    {Kind::kContainer, 1, Kind::kType, "elem_type"},
    {Kind::kShape, 1, Kind::kDim, "dim"},
    {Kind::kDim, 2, Kind::kName, "dim_param"},
    {Kind::kDim, 3, Kind::kText, "denotation"},
    {Kind::kEntry, 1, Kind::kText, "key"},
    {Kind::kEntry, 2, Kind::kText, "value"},
    {Kind::kOpset, 1, Kind::kName, "domain"},
};

static_assert(std::is_sorted(std::begin(kFields), std::end(kFields), [](const Field& a, const Field& b) {
  return a.parent < b.parent || (a.parent == b.parent && a.number < b.number);
}));
constexpr size_t kNumbers = 26;  // all that stand in the table are below

const Field* field_of(Kind parent, uint64_t number) {
  const auto* const found = std::lower_bound(
      std::begin(kFields), std::end(kFields), std::pair{parent, number},
      [](const Field& field, const auto& wanted) { return std::pair{field.parent, field.number} < wanted; });
  return found != std::end(kFields) && found->parent == parent && found->number == number ? found : nullptr;
}

// What Python takes for text: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i);
    const size_t more = first < 0x80   ? 0
                        : first < 0xc2 ? 4
                        : first < 0xe0 ? 1
                        : first < 0xf0 ? 2
                        : first < 0xf5 ? 3
                                       : 4;
    if (more == 4 || more >= text.size() - i) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    if ((first == 0xe0 && byte(i + 1) < 0xa0) || (first == 0xed && byte(i + 1) > 0x9f) ||
        (first == 0xf0 && byte(i + 1) < 0x90) || (first == 0xf4 && byte(i + 1) > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

class Walker {
 public:
  // `lenient`: groups, which protobuf skips, are walked through as if they were none.
  Walker(const void* data, bool lenient) : data_(static_cast<const uint8_t*>(data)), lenient_(lenient) {}

  std::optional<WireFault> walk(Kind message, size_t at, size_t end, int depth) {
    if (depth > 100) return WireFault{at, "messages nested more than 100 deep", ""};
    uint32_t counts[kNumbers] = {};
    while (at < end) {
      const size_t start = at;
      const auto fault = [&](const std::string& what) { return WireFault{start, what, ""}; };
      const auto tag = varint(at, end);
      if (!tag) return fault("a broken field number");
      const uint64_t number = *tag >> 3, wire = *tag & 7;
      if (number == 0 || *tag >> 32) return fault(str("the field number ", number));
      if (wire == 0) {
        if (!varint(at, end)) return fault("a broken number");
      } else if (wire == 1 || wire == 5) {
        const size_t width = wire == 1 ? 8 : 4;
        if (end - at < width) return fault(str("a number of ", width, " bytes with ", end - at, " left"));
        at += width;
      } else if (wire == 2) {
        const auto length = varint(at, end);
        if (!length) return fault("a broken length");
        if (*length > end - at) return fault(str("a field of ", *length, " bytes with ", end - at, " left"));
        if (const Field* field = field_of(message, number)) {
          if (auto inner = enter(*field, at, *length, depth)) return inside(*field, counts[number], std::move(*inner));
          ++counts[number];
        }
        at += *length;
      } else if (!lenient_ || wire > 4) {
        return fault(str("the wire type ", wire));
      }
    }
    return std::nullopt;
  }

  ModelSize size;  // of what was walked so far

 private:
  std::optional<WireFault> enter(const Field& field, size_t at, size_t length, int depth) {
    if (field.kind == Kind::kName) size.longest_name = std::max(size.longest_name, length);
    if (field.kind == Kind::kName || field.kind == Kind::kText) {
      const std::string_view text(reinterpret_cast<const char*>(data_) + at, length);
      if (!size.broken_text && !is_utf8(text)) size.broken_text = at;
      return std::nullopt;
    }
    if (field.kind == Kind::kNode) ++size.nodes;
    const bool body = field.kind == Kind::kGraph && field.parent == Kind::kAttribute;
    if (body) size.nesting = std::max(size.nesting, ++nesting_);
    auto fault = walk(field.kind, at, at + length, depth + 1);
    if (body) --nesting_;
    return fault;
  }

  static WireFault inside(const Field& field, size_t index, WireFault inner) {
    const bool one = field.kind == Kind::kGraph && field.parent == Kind::kModel;
    const std::string here = one ? field.name : str(field.name, "[", index, "]");
    inner.where = inner.where.empty() ? here : here + "." + inner.where;
    return inner;
  }

  std::optional<uint64_t> varint(size_t& at, size_t end) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
      const uint8_t byte = data_[at++];
      value |= static_cast<uint64_t>(byte & 0x7f) << (shift < 64 ? shift : 63);
      if (!(byte & 0x80)) return value;
    }
    return std::nullopt;
  }

  const uint8_t* data_;
  const bool lenient_;
  size_t nesting_ = 0;
};

}  // namespace

ModelSize measure(const void* data, size_t size) {
  Walker walker(data, true);
  walker.walk(Kind::kModel, 0, size, 0);
  return walker.size;
}

WireFault first_malformed_field(const void* data, size_t size) {
  Walker walker(data, false);
  if (auto fault = walker.walk(Kind::kModel, 0, size, 0)) return *fault;
  return {size, "a malformed field", ""};
}

}  // namespace ortmodule
