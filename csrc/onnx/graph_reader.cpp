#include "onnx/graph_reader.h"

#include <algorithm>
#include <unordered_set>

#include "base/container_type.h"
#include "base/status.h"
#include "onnx/import.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

std::string quoted(const char* kind, const std::string& name) { return str(kind, " '", name, "'"); }

std::string describe(const pb::NodeProto& proto) {
  const std::string name = !proto.name().empty() ? proto.name() : proto.output_size() ? proto.output(0) : "";
  return str(proto.domain().empty() ? "" : proto.domain() + "::", proto.op_type(), " node '", name, "'");
}

// Files write a standard operator with saved outputs in our own domain; in memory it is the standard operator.
std::string memory_domain(const pb::NodeProto& proto) {
  if (proto.domain() == "ai.onnx") return "";
  if (proto.domain() != kOwnDomain) return proto.domain();
  const OpRecord* record = Registry::instance().find(kOwnDomain, proto.op_type(), INT64_MAX);
  return record ? record->domain() : proto.domain();
}

}  // namespace

void GraphReader::read(pb::GraphProto& proto) {
  graph_.set_name(proto.name().empty() ? "main" : proto.name());
  ORTMODULE_CHECK(proto.sparse_initializer_size() == 0, kUnsupported, "graph '", graph_.name(),
                  "' has sparse initializers, which are not supported");
  add_inputs(proto);
  add_initializers(proto);
  add_nodes(*proto.mutable_node());
  add_value_types(proto.value_info());
  add_value_types(proto.output());
  for (const auto& info : proto.output()) {
    NodeArg* value = lookup(info.name());
    ORTMODULE_CHECK_GRAPH(value, "the output '", info.name(), "' of graph '", graph_.name(),
                          "' is produced by no node, and is no input and no initializer");
    check_output(*value, info);
    graph_.add_output(value);
  }
}

// What a node gives is compared when types are inferred; of inputs and initializers the type is known now.
void GraphReader::check_output(const NodeArg& value, const pb::ValueInfoProto& info) const {
  if (value.producer() || !info.has_type()) return;
  const DType declared = read_type(info.type(), "the output", info.name()).dtype, own = value.type().dtype;
  ORTMODULE_CHECK_GRAPH(declared == own || declared == DType::kUndefined || own == DType::kUndefined, "the output '",
                        info.name(), "' is declared ", dtype_name(declared),
                        ", but it is an input or an initializer of ", dtype_name(own));
}

void GraphReader::read(pb::FunctionProto& proto) {
  graph_.set_name(proto.name());
  for (const std::string& name : proto.input()) graph_.add_input(name, {});
  add_nodes(*proto.mutable_node());
  add_value_types(proto.value_info());
  for (const std::string& name : proto.output()) {
    NodeArg* value = lookup(name);
    ORTMODULE_CHECK_GRAPH(value, "the output '", name, "' of function '", proto.name(), "' is produced by no node");
    graph_.add_output(value);
  }
}

void GraphReader::add_inputs(const pb::GraphProto& proto) {
  std::unordered_set<std::string> initialized;
  for (const auto& tensor : proto.initializer()) initialized.insert(tensor.name());
  for (const auto& info : proto.input()) {
    ORTMODULE_CHECK_GRAPH(!info.name().empty(), "an input of graph '", graph_.name(), "' has no name");
    if (initialized.count(info.name())) continue;
    const std::string owner = quoted("the input", info.name());
    if (!info.has_type()) {
      // The inputs of a subgraph get their types from the operator that holds it.
      ORTMODULE_CHECK_GRAPH(outer_, owner, " of graph '", graph_.name(), "' has no type");
      graph_.add_input(info.name(), {});
      continue;
    }
    TypeInfo type = read_type(info.type(), "the input", info.name());
    ORTMODULE_CHECK_GRAPH(outer_ || type.dtype != DType::kUndefined, owner, " of graph '", graph_.name(),
                          "' has no element type");
    graph_.add_input(info.name(), std::move(type));
  }
}

void GraphReader::add_initializers(pb::GraphProto& proto) {
  for (auto& tensor : *proto.mutable_initializer()) {
    ORTMODULE_CHECK_GRAPH(!tensor.name().empty(), "an initializer of graph '", graph_.name(), "' has no name");
    const std::string owner = quoted("the initializer", tensor.name());
    graph_.add_initializer(tensor.name(),
                           outer_ ? tensors_.read(tensor, owner) : tensors_.read_initializer(tensor, owner));
  }
}

void GraphReader::add_nodes(google::protobuf::RepeatedPtrField<pb::NodeProto>& protos) {
  // Nodes first, edges second: a file need not be in order, and a cycle is resolve()'s to report.
  std::vector<std::pair<Node*, pb::NodeProto*>> added;
  added.reserve(static_cast<size_t>(protos.size()));
  for (auto& proto : protos)
    if (!fold_constant(proto)) added.emplace_back(add_node(proto), &proto);
  for (const auto& [node, proto] : added) connect(*node, *proto);
}

bool GraphReader::fold_constant(pb::NodeProto& proto) {
  if (proto.op_type() != "Constant" || !(proto.domain().empty() || proto.domain() == "ai.onnx")) return false;
  ORTMODULE_CHECK_GRAPH(proto.attribute_size() == 1 && proto.output_size() == 1 && proto.input_size() == 0,
                        "[Constant] should have one attribute, no input and one output (", describe(proto), ")");
  auto& attr = *proto.mutable_attribute(0);
  if (!attr.ref_attr_name().empty()) return false;
  const AttributeValue value = attribute(attr, describe(proto));
  TensorData data;
  if (const auto* tensor = std::get_if<TensorData>(&value)) {
    data = *tensor;
  } else if (const auto* i = std::get_if<int64_t>(&value)) {
    data = TensorData::scalar_int(*i);
  } else if (const auto* f = std::get_if<double>(&value)) {
    data = TensorData::scalar(DType::kFloat, *f);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    data = TensorData::of_ints(*ints);
  } else if (std::get_if<std::vector<double>>(&value)) {
    const std::vector<float> floats(attr.floats().begin(), attr.floats().end());
    data = {DType::kFloat,
            {static_cast<int64_t>(floats.size())},
            std::string(reinterpret_cast<const char*>(floats.data()), floats.size() * 4)};
  } else {
    fail(ErrorCode::kUnsupported, "[Constant] a value of kind ", attribute_kind(value), " is not supported (",
         describe(proto), ")");
  }
  graph_.add_initializer(proto.output(0), std::move(data));
  return true;
}

Node* GraphReader::add_node(const pb::NodeProto& proto) {
  ORTMODULE_CHECK_GRAPH(!proto.op_type().empty(), "a node without an operator (", describe(proto), ")");
  ORTMODULE_CHECK(proto.domain() != kAtenDomain || tensors_.options().aten_operators, kUnsupported, "[",
                  proto.op_type(), "] calls an operator of PyTorch by its name, and some of these read files; ",
                  "the option allow_aten_operators lets a model do that whose maker you trust (", describe(proto), ")");
  const auto& names = proto.output();
  const auto gap = std::find(names.begin(), names.end(), std::string());
  Node* node =
      graph_.add_node(memory_domain(proto), proto.op_type(), {}, {names.begin(), gap}, {}, nullptr, proto.name());
  for (int i = static_cast<int>(gap - names.begin()); i < names.size(); ++i) {  // outputs behind an absent one
    if (names[i].empty()) continue;
    ORTMODULE_CHECK_GRAPH(!graph_.find(names[i]), "the name '", names[i], "' is given to two values of graph '",
                          graph_.name(), "'; every value is assigned once");
    graph_.materialize_output(node, static_cast<size_t>(i), names[i]);
  }
  if (!proto.overload().empty()) node->metadata()[kOverloadKey] = proto.overload();
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kPhaseKey)
      node->set_phase(entry.value() == "backward" ? Phase::kBackward : Phase::kForward);
    else if (entry.key() != kProviderKey)
      node->metadata()[entry.key()] = entry.value();
  }
  return node;
}

void GraphReader::connect(Node& node, pb::NodeProto& proto) {
  for (int i = 0; i < proto.input_size(); ++i) {
    const std::string& name = proto.input(i);
    if (name.empty()) continue;
    NodeArg* value = lookup(name);
    ORTMODULE_CHECK_GRAPH(value, "[", node.op(), "] reads '", name, "' as input ", i,
                          ", which is no graph input, no initializer and no node's output (", node.describe(), ")");
    node.set_input(static_cast<size_t>(i), value);
  }
  std::vector<std::string> captured;
  for (auto& attr : *proto.mutable_attribute()) {
    if (!attr.ref_attr_name().empty()) {
      node.metadata()[kReferencePrefix + attr.name()] = str(static_cast<int>(attr.type()), " ", attr.ref_attr_name());
      continue;
    }
    ORTMODULE_CHECK_GRAPH(!node.find_attribute(attr.name()), "[", node.op(), "] has the attribute '", attr.name(),
                          "' twice (", node.describe(), ")");
    if (attr.has_g()) {
      auto body = std::make_shared<Graph>();
      body->opsets() = graph_.opsets();
      GraphReader reader(*body, tensors_, this);
      reader.read(*attr.mutable_g());
      for (const std::string& name : reader.captured_)
        if (std::find(captured.begin(), captured.end(), name) == captured.end()) captured.push_back(name);
      node.set_attribute(attr.name(), std::move(body));
      continue;
    }
    node.set_attribute(attr.name(), attribute(attr, node.describe()));
  }
  if (captured.empty()) return;
  const auto explicit_inputs = static_cast<size_t>(proto.input_size());
  for (size_t k = 0; k < captured.size(); ++k) node.set_input(explicit_inputs + k, lookup(captured[k]));
  node.set_attribute(kCapturedAttribute, std::move(captured));
}

NodeArg* GraphReader::lookup(const std::string& name) {
  if (NodeArg* value = graph_.find(name)) return value;
  NodeArg* outside = outer_ ? outer_->lookup(name) : nullptr;
  if (!outside) return nullptr;
  captured_.push_back(name);
  return graph_.add_input(name, outside->type());
}

void GraphReader::add_value_types(const google::protobuf::RepeatedPtrField<pb::ValueInfoProto>& infos) {
  for (const auto& info : infos) {
    NodeArg* value = graph_.find(info.name());
    // The type of an input or initializer is known already; what names no value is left alone, as checkers do.
    if (value && value->producer() && info.has_type())
      value->set_type(read_type(info.type(), "the value", info.name()));
  }
}

TypeInfo read_type(const pb::TypeProto& proto, const char* kind, const std::string& name) {
  const std::string owner = quoted(kind, name);
  if (proto.value_case() == pb::TypeProto::VALUE_NOT_SET) return {};
  if (proto.has_sequence_type() || proto.has_optional_type()) {
    const bool sequence = proto.has_sequence_type();
    const DType inner =
        read_type(sequence ? proto.sequence_type().elem_type() : proto.optional_type().elem_type(), kind, name).dtype;
    // ONNX allows sequences of sequences; nothing makes one.
    ORTMODULE_CHECK(!is_optional(inner) && !(sequence && is_sequence(inner)), kUnsupported, owner,
                    " is a container of containers, which is not supported");
    return {sequence ? sequence_of(inner) : optional_of(inner), std::nullopt};
  }
  ORTMODULE_CHECK(proto.has_tensor_type(), kUnsupported, owner,
                  " is a map or a sparse tensor; tensors, sequences and optionals are supported");
  const auto& tensor = proto.tensor_type();
  TypeInfo type;
  type.dtype = static_cast<DType>(tensor.elem_type());
  ORTMODULE_CHECK(type.dtype == DType::kUndefined || dtype_name(type.dtype) != "undefined", kUnsupported, owner,
                  " has the element type ", tensor.elem_type(), ", which is not supported");
  if (!tensor.has_shape()) return type;
  Shape shape;
  for (const auto& dim : tensor.shape().dim()) {
    if (dim.value_case() == pb::TensorShapeProto::Dimension::kDimValue) {
      ORTMODULE_CHECK_GRAPH(dim.dim_value() >= 0, owner, " has the negative dimension ", dim.dim_value());
      shape.emplace_back(dim.dim_value());
      continue;
    }
    // Without a name the dim is some number: it gets a symbol of its own.
    shape.push_back(dim.dim_param().empty() ? Dim::symbol(str(sanitized_symbol(name), "_dim", shape.size()))
                                            : read_dim(dim.dim_param()));
  }
  type.shape = std::move(shape);
  return type;
}

}  // namespace ortmodule
