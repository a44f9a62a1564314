// Attributes and dims of files; the part of GraphReader that needs no graph.
#include <cctype>

#include "base/status.h"
#include "onnx/float_attribute.h"
#include "onnx/graph_reader.h"

namespace ortmodule {
std::string sanitized_symbol(const std::string& text) {
  std::string out;
  constexpr const char* kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '_')
      out += c;
    else
      (out += '_') += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return out.empty() || std::isdigit(static_cast<unsigned char>(out[0])) ? "_" + out : out;
}

Dim read_dim(const std::string& text) {
  try {
    return Dim::parse(text);
  } catch (const Error&) {
    return Dim::symbol(sanitized_symbol(text));
  }
}

AttributeValue GraphReader::attribute(pb::AttributeProto& proto, const std::string& owner) {
  const std::string what = str("the attribute '", proto.name(), "' of ", owner);
  switch (proto.type()) {
    case pb::AttributeProto::INT:
      return static_cast<int64_t>(proto.i());
    case pb::AttributeProto::FLOAT:
      return read_float(proto);
    case pb::AttributeProto::STRING:
      return proto.s();
    case pb::AttributeProto::TENSOR:
      ORTMODULE_CHECK_GRAPH(proto.has_t(), what, " holds no tensor");
      return tensors_.read(*proto.mutable_t(), what);
    case pb::AttributeProto::INTS:
      return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case pb::AttributeProto::FLOATS:
      return read_floats(proto);
    case pb::AttributeProto::STRINGS:
      return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case pb::AttributeProto::TYPE_PROTO:  // as a number: what Optional's rule needs is the container's code
      return static_cast<int64_t>(read_type(proto.tp(), "the type in", what).dtype);
    case pb::AttributeProto::UNDEFINED:
      fail(ErrorCode::kInvalidGraph, what, " has no type");
    default:
      fail(ErrorCode::kUnsupported, what, " is of kind ", static_cast<int>(proto.type()), ", which is not supported");
  }
}

}  // namespace ortmodule
