#include "onnx/graph_writer.h"

#include <climits>

#include "base/container_type.h"
#include "base/status.h"
#include "onnx/float_attribute.h"
#include "onnx/import.h"
#include "onnx/packed.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// A standard operator with outputs that its standard lacks is ours on disk; see Note [Saved outputs].
std::string file_domain(const Node& node) {
  const OpRecord* record = node.record();
  if (!record || node.domain() == kOwnDomain) return node.domain();
  for (size_t i = record->first_saved(); i < node.outputs().size(); ++i) {
    const bool declared_saved = i < record->outputs().size() && record->outputs()[i].saved;
    if (node.outputs()[i] && declared_saved) return kOwnDomain;
  }
  return node.domain();
}

const std::string& renamed(const std::map<std::string, std::string>& renames, const std::string& name) {
  auto it = renames.find(name);
  return it == renames.end() ? name : it->second;
}

void write_type(const TypeInfo& type, pb::TypeProto* proto) {
  if (is_optional(type.dtype))
    return write_type({content_of(type.dtype), type.shape}, proto->mutable_optional_type()->mutable_elem_type());
  if (is_sequence(type.dtype))
    return write_type({element_of(type.dtype), std::nullopt}, proto->mutable_sequence_type()->mutable_elem_type());
  auto* tensor = proto->mutable_tensor_type();
  tensor->set_elem_type(static_cast<int32_t>(type.dtype));
  if (!type.shape) return;
  auto* shape = tensor->mutable_shape();
  for (const Dim& dim : *type.shape) {
    if (dim.is_known())
      shape->add_dim()->set_dim_value(dim.value());
    else
      shape->add_dim()->set_dim_param(dim.text());
  }
}

int64_t default_version(const std::string& domain) { return domain.empty() ? 23 : 1; }

// An operator whose old form has a record of its own (upgrade.h) keeps it, but the file's opset is today's: written
// there, the node would say something else.
void check_version(const Node& node) {
  const OpRecord* record = node.record();
  if (!record || !record->domain().empty() || !node.domain().empty()) return;
  const auto& opsets = node.graph().opsets();
  const auto it = opsets.find("");
  const OpRecord* today = Registry::instance().find("", node.op(), it == opsets.end() ? INT64_MAX : it->second);
  ORTMODULE_CHECK(record == today, kUnsupported, "[", node.op(), "] its form of opset ", record->since(),
                  " cannot be written beside operators of today's opset (", node.describe(), ")");
}

}  // namespace

void GraphWriter::write(const Graph& graph, pb::GraphProto* proto) { write_graph(graph, proto, {}); }

void GraphWriter::write_graph(const Graph& graph, pb::GraphProto* proto, const Renames& renames) {
  proto->set_name(graph.name().empty() ? "main" : graph.name());
  for (const NodeArg* input : graph.inputs())
    if (!renames.count(input->name())) write_value(*input, proto->add_input());
  for (const NodeArg* value : graph.initializers())
    write_tensor(value->name(), *value->constant(), proto->add_initializer());
  graph.for_each([&](Node& node) {
    write_node(node, proto->add_node(), renames);
    for (const NodeArg* out : node.outputs())
      if (out && !out->is_graph_output() && out->type().dtype != DType::kUndefined)
        write_value(*out, proto->add_value_info());
  });
  std::map<std::string, int> taken;
  for (const NodeArg* out : graph.outputs()) {
    auto* info = proto->add_output();
    write_value(*out, info);
    const int copies = taken[out->name()]++;
    // Output names are unique in a file, and an outer value is no output of a subgraph: both are passed on by name.
    if (copies == 0 && !renames.count(out->name())) continue;
    std::string fresh = str(out->name(), "_copy", copies);
    while (graph.find(fresh)) fresh += "_";
    auto* identity = proto->add_node();
    identity->set_op_type("Identity");
    identity->set_name(unique_node_name(fresh));
    identity->add_input(renamed(renames, out->name()));
    identity->add_output(fresh);
    info->set_name(fresh);
    domains_.insert("");
  }
}

void GraphWriter::write(const FunctionBody& function, pb::FunctionProto* proto) {
  proto->set_domain(function.domain);
  proto->set_name(function.name);
  if (!function.overload.empty()) proto->set_overload(function.overload);
  for (const std::string& name : function.attributes) proto->add_attribute(name);
  for (const auto& [name, value] : function.defaults) write_attribute(name, value, proto->add_attribute_proto(), {});
  const std::set<std::string> outside = std::move(domains_);
  domains_.clear();
  for (const NodeArg* input : function.body->inputs()) proto->add_input(input->name());
  for (const NodeArg* output : function.body->outputs()) proto->add_output(output->name());
  for (const NodeArg* value : function.body->initializers()) {  // a function has none: they are Constant nodes there
    auto* node = proto->add_node();
    node->set_op_type("Constant");
    node->add_output(value->name());
    write_attribute("value", *value->constant(), node->add_attribute(), {});
    domains_.insert("");
  }
  function.body->for_each([&](Node& node) { write_node(node, proto->add_node(), {}); });
  write_opsets(function.body->opsets(), domains_, proto->mutable_opset_import());
  domains_.insert(outside.begin(), outside.end());
  domains_.insert(function.domain);
}

void GraphWriter::write_opsets(const std::map<std::string, int64_t>& known, const std::set<std::string>& domains,
                               google::protobuf::RepeatedPtrField<pb::OperatorSetIdProto>* imports) const {
  std::map<std::string, int64_t> all;
  for (const std::string& domain : domains) all[domain] = default_version(domain);
  for (const auto& [domain, version] : known) all[domain] = version;
  all.emplace("", default_version(""));
  for (const auto& [domain, version] : all) {
    auto* entry = imports->Add();
    entry->set_domain(domain);
    entry->set_version(version);
  }
}

void GraphWriter::write_node(const Node& node, pb::NodeProto* proto, const Renames& renames) {
  const std::string domain = file_domain(node);
  if (options_.portable && (domain == kOwnDomain || domain == kAtenDomain))
    fail(ErrorCode::kUnsupported, "the graph is not portable: ", node.describe(), " is written as ", domain,
         "::", node.op(), ", which other runtimes do not know");
  check_version(node);
  domains_.insert(domain);
  proto->set_name(unique_node_name(node.name()));
  proto->set_op_type(node.op());
  if (!domain.empty()) proto->set_domain(domain);

  size_t explicit_inputs = node.inputs().size();
  Renames captured;
  if (node.find_attribute(kCapturedAttribute)) {
    const std::vector<std::string> inner = node.get_strings(kCapturedAttribute);
    ORTMODULE_INTERNAL(inner.size() <= explicit_inputs, node.describe(), " lost its captured values");
    explicit_inputs -= inner.size();
    for (size_t k = 0; k < inner.size(); ++k)
      if (node.inputs()[explicit_inputs + k])
        captured[inner[k]] = renamed(renames, node.inputs()[explicit_inputs + k]->name());
  }
  for (size_t i = 0; i < explicit_inputs; ++i)
    proto->add_input(node.inputs()[i] ? renamed(renames, node.inputs()[i]->name()) : "");
  while (proto->input_size() > 0 && proto->input(proto->input_size() - 1).empty()) proto->mutable_input()->RemoveLast();
  for (const NodeArg* out : node.outputs()) proto->add_output(out ? out->name() : "");
  for (const auto& [name, value] : node.attributes()) {
    if (name == kCapturedAttribute) continue;
    auto* attr = proto->add_attribute();
    write_attribute(name, value, attr, captured);
    if (node.op() != "Optional" || name != "type") continue;
    attr->clear_i();
    attr->set_type(pb::AttributeProto::TYPE_PROTO);
    write_type({static_cast<DType>(std::get<int64_t>(value)), std::nullopt}, attr->mutable_tp());
  }

  const auto note = [&](const std::string& key, const std::string& value) {
    auto* entry = proto->add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  };
  const std::string reference = kReferencePrefix;
  for (const auto& [key, value] : node.metadata()) {
    if (key == kOverloadKey) {
      proto->set_overload(value);
      continue;
    }
    if (key.compare(0, reference.size(), reference) != 0) {
      note(key, value);
      continue;
    }
    auto* attr = proto->add_attribute();
    const size_t space = value.find(' ');
    attr->set_name(key.substr(reference.size()));
    attr->set_type(static_cast<pb::AttributeProto::AttributeType>(std::stoi(value)));
    attr->set_ref_attr_name(value.substr(space + 1));
  }
  if (node.phase() == Phase::kBackward) note(kPhaseKey, "backward");
  if (!node.provider().empty()) note(kProviderKey, node.provider());
}

// In memory a node's name is for people; onnxruntime refuses a file in which two nodes have one.
std::string GraphWriter::unique_node_name(const std::string& name) {
  std::string unique = name;
  while (!unique.empty() && !node_names_.insert(unique).second) unique = str(name, "_", ++name_counters_[name]);
  return unique;
}

void GraphWriter::write_attribute(const std::string& name, const AttributeValue& value, pb::AttributeProto* proto,
                                  const Renames& captured) {
  using A = pb::AttributeProto;
  proto->set_name(name);
  struct Visitor {
    GraphWriter& writer;
    A& proto;
    const Renames& captured;
    void operator()(int64_t v) const { proto.set_type(A::INT), proto.set_i(v); }
    void operator()(double v) const { write_float(v, proto); }
    void operator()(const std::string& v) const { proto.set_type(A::STRING), proto.set_s(v); }
    void operator()(const std::vector<int64_t>& v) const {
      proto.set_type(A::INTS);
      for (const int64_t i : v) proto.add_ints(i);
    }
    void operator()(const std::vector<double>& v) const {
      proto.set_type(A::FLOATS);
      for (const double d : v) proto.add_floats(static_cast<float>(d));
    }
    void operator()(const std::vector<std::string>& v) const {
      proto.set_type(A::STRINGS);
      for (const std::string& s : v) proto.add_strings(s);
    }
    void operator()(const TensorData& v) const {
      proto.set_type(A::TENSOR);
      writer.write_tensor("", v, proto.mutable_t());
    }
    void operator()(const std::shared_ptr<Graph>& v) const {
      proto.set_type(A::GRAPH);
      writer.write_graph(*v, proto.mutable_g(), captured);
    }
  };
  std::visit(Visitor{*this, *proto, captured}, value);
}

void GraphWriter::write_tensor(const std::string& name, const TensorData& data, pb::TensorProto* proto) {
  if (!name.empty()) proto->set_name(name);
  proto->set_data_type(static_cast<int32_t>(data.dtype));
  for (const int64_t d : data.dims) proto->add_dims(d);
  const std::string packed = is_packed(data.dtype) ? pack_elements(*data.bytes, data.dtype) : std::string();
  const std::string_view bytes = is_packed(data.dtype) ? std::string_view(packed) : *data.bytes;
  const uint64_t size = bytes.size();
  if (external_ && size >= options_.external_threshold) {
    const auto entry = [&](const char* key, const std::string& value) {
      auto* e = proto->add_external_data();
      e->set_key(key);
      e->set_value(value);
    };
    const uint64_t offset = external_->append(bytes);
    proto->set_data_location(pb::TensorProto::EXTERNAL);
    entry("location", options_.external_data_file);
    entry("offset", std::to_string(offset));
    entry("length", std::to_string(size));
    return;
  }
  inline_bytes_ += size;
  ORTMODULE_CHECK(inline_bytes_ < INT_MAX, kUnsupported, "the model's tensors take over 2 GB at ",
                  name.empty() ? "a constant" : "'" + name + "'", "; name an external data file");
  proto->set_raw_data(bytes.data(), bytes.size());
}

void GraphWriter::write_value(const NodeArg& value, pb::ValueInfoProto* proto) {
  proto->set_name(value.name());
  if (value.type().dtype == DType::kUndefined) return;
  write_type(value.type(), proto->mutable_type());
}

}  // namespace ortmodule
