#include "onnx/float_attribute.h"

#include <charconv>
#include <string>

namespace ortmodule {
namespace {

template <typename T>
std::string shortest_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

double shortest(float value) {
  const std::string text = shortest_text(value);
  double out = value;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

}  // namespace

double read_float(const pb::AttributeProto& proto) {
  const std::string& digits = proto.doc_string();
  double exact = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), exact);
  const bool whole = code == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  return whole && static_cast<float>(exact) == proto.f() ? exact : shortest(proto.f());
}

std::vector<double> read_floats(const pb::AttributeProto& proto) {
  std::vector<double> values;
  for (const float f : proto.floats()) values.push_back(shortest(f));
  return values;
}

void write_float(double value, pb::AttributeProto& proto) {
  proto.set_type(pb::AttributeProto::FLOAT);
  proto.set_f(static_cast<float>(value));
  if (shortest(proto.f()) != value && value == value) proto.set_doc_string(shortest_text(value));
}

}  // namespace ortmodule
