// Replaces attention operators that no single kernel can differentiate by the plain operators of their record's body,
// before the gradient is built: AttentionDropout always, Attention when its mask wants a gradient (a learned bias) and
// its type is one that no fused kernel takes.
//
// That is for training only. All other Attention nodes stay whole: the fused kernels are what makes them fast.
// FlexAttention is replaced always: its subgraphs become nodes of the graph, which the other passes know.
#include "base/status.h"
#include "records/attention_form.h"
#include "transforms/expand_body.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

constexpr size_t kMaskInput = 3;

bool has_fused_kernel(const Node& node) {
  const DType dtype = node.input(0)->type().dtype;
  return dtype == DType::kFloat || is_reduced_floating(dtype);
}

bool mask_wants_gradient(const Node& node, const std::vector<bool>& wants) {
  const NodeArg* mask = node.input(kMaskInput);
  return mask && (mask->id() >= wants.size() || wants[mask->id()]);
}

class DecomposeAttention : public GraphTransformer {
 public:
  const char* name() const override { return "decompose_attention"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    std::vector<Node*> found;
    std::vector<bool> wants;
    graph.for_each([&](Node& node) {
      if (node.op() == "FlexAttention" && node.domain() == "ai.onnx.preview") {
        found.push_back(&node);
      } else if (!context.training) {
        return;
      } else if (node.qualified_op() == "ai.ortmodule::AttentionDropout") {
        found.push_back(&node);
      } else if (node.qualified_op() == "Attention" && node.input(kMaskInput) && plain_attention(node) &&
                 !has_fused_kernel(node)) {
        if (wants.empty()) wants = wants_gradient(graph, context);
        if (mask_wants_gradient(node, wants)) found.push_back(&node);
      }
    });
    for (Node* node : found) {
      const std::string described = node->describe();
      ORTMODULE_CHECK(expand_body(graph, *node), kUnsupported, described,
                      " cannot be written in plain operators, which its gradient needs");
    }
    return found.size();
  }
};

}  // namespace

ORTMODULE_PASS(DecomposeAttention, PassLevel::kRequired, kForwardOnly, pass_place::kForms);

}  // namespace ortmodule
