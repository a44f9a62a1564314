#include "onnx/wire.h"

#include <cstdint>
#include <map>
#include <optional>

#include "base/status.h"

namespace ortmodule {
namespace {

enum class Message { kModel, kGraph, kNode, kAttribute, kTensor };

struct Child {
  Message message;
  const char* name;
};

// The fields that hold messages worth walking into; all others are skipped by their length.
std::optional<Child> child_of(Message parent, uint64_t field) {
  switch (parent) {
    case Message::kModel:
      if (field == 7) return Child{Message::kGraph, "graph"};
      break;
    case Message::kGraph:
      if (field == 1) return Child{Message::kNode, "node"};
      if (field == 5) return Child{Message::kTensor, "initializer"};
      break;
    case Message::kNode:
      if (field == 5) return Child{Message::kAttribute, "attribute"};
      break;
    case Message::kAttribute:
      if (field == 5 || field == 10) return Child{Message::kTensor, field == 5 ? "t" : "tensors"};
      if (field == 6 || field == 11) return Child{Message::kGraph, field == 6 ? "g" : "graphs"};
      break;
    case Message::kTensor:
      break;
  }
  return std::nullopt;
}

class Walker {
 public:
  explicit Walker(const uint8_t* data) : data_(data) {}

  std::optional<WireFault> walk(Message message, size_t at, size_t end, const std::string& where, int depth) {
    if (depth > 100) return WireFault{at, "messages nested more than 100 deep", where};
    std::map<std::string, size_t> counts;
    while (at < end) {
      const size_t start = at;
      const auto fault = [&](const std::string& what) { return WireFault{start, what, where}; };
      const auto tag = varint(at, end);
      if (!tag) return fault("a broken field number");
      if (*tag >> 3 == 0 || *tag >> 32) return fault(str("the field number ", *tag >> 3));
      switch (*tag & 7) {
        case 0:
          if (!varint(at, end)) return fault("a broken number");
          break;
        case 1:
        case 5: {
          const size_t width = (*tag & 7) == 1 ? 8 : 4;
          if (end - at < width) return fault(str("a number of ", width, " bytes with ", end - at, " left"));
          at += width;
          break;
        }
        case 2: {
          const auto length = varint(at, end);
          if (!length) return fault("a broken length");
          if (*length > end - at) return fault(str("a field of ", *length, " bytes with ", end - at, " left"));
          if (const auto child = child_of(message, *tag >> 3)) {
            const std::string path = (where.empty() ? "" : where + ".") + child->name;
            const std::string numbered = path == "graph" ? path : str(path, "[", counts[child->name]++, "]");
            if (auto inner = walk(child->message, at, at + *length, numbered, depth + 1)) return inner;
          }
          at += *length;
          break;
        }
        default:
          return fault(str("the wire type ", *tag & 7));
      }
    }
    return std::nullopt;
  }

 private:
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
};

}  // namespace

WireFault first_malformed_field(const void* data, size_t size) {
  Walker walker(static_cast<const uint8_t*>(data));
  if (auto fault = walker.walk(Message::kModel, 0, size, "", 0)) return *fault;
  return {size, "a malformed field", ""};
}

}  // namespace ortmodule
