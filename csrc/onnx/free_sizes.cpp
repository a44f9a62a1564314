#include "onnx/free_sizes.h"

#include <set>
#include <string>

#include "base/status.h"

namespace ortmodule {
namespace {

using Values = google::protobuf::RepeatedPtrField<pb::ValueInfoProto>;

class FreeSizes {
 public:
  explicit FreeSizes(const ImportOptions& options) : options_(options) {}

  void set(Values& values) {
    for (auto& value : values) {
      if (!value.type().has_tensor_type() || !value.type().tensor_type().has_shape()) continue;
      for (auto& dim : *value.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim()) set(dim);
    }
  }

  void check() const {
    std::string known;
    for (const std::string& name : names_) known += (known.empty() ? "'" : ", '") + name + "'";
    for (const auto* wanted : {&options_.sizes, &options_.sizes_by_denotation})
      for (const auto& [name, size] : *wanted)
        ORTMODULE_CHECK_ARG(names_.count(name), "the model has no free size '", name, "'; it has ",
                            known.empty() ? "none" : known);
  }

 private:
  void set(pb::TensorShapeProto::Dimension& dim) {
    if (dim.has_dim_value()) return;
    for (const std::string& name : {dim.dim_param(), dim.denotation()})
      if (!name.empty()) names_.insert(name);
    const auto by_name = options_.sizes.find(dim.dim_param());
    const auto by_denotation = options_.sizes_by_denotation.find(dim.denotation());
    if (by_name != options_.sizes.end())
      dim.set_dim_value(by_name->second);
    else if (by_denotation != options_.sizes_by_denotation.end())
      dim.set_dim_value(by_denotation->second);
  }

  const ImportOptions& options_;
  std::set<std::string> names_;
};

}  // namespace

void set_free_sizes(pb::ModelProto& model, const ImportOptions& options) {
  if (options.sizes.empty() && options.sizes_by_denotation.empty()) return;
  FreeSizes sizes(options);
  pb::GraphProto& graph = *model.mutable_graph();
  sizes.set(*graph.mutable_input());
  sizes.set(*graph.mutable_output());
  sizes.set(*graph.mutable_value_info());
  sizes.check();
}

}  // namespace ortmodule
