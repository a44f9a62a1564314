// Operator records and the registry that holds them.
//
// A record is everything the rest of the core may know about an operator: schema, type and shape rule, traits,
// gradient, function body. It is declared once, in ops/<family>/<op>.cpp, with ORTMODULE_OP; no other file lists
// operators. Kernels are declared beside it in <op>_kernel.cpp (records/kernel_registry.h).
//
// Records are completed by static constructors and checked once, at the first look-up: an input that is neither
// differentiable nor declared no_grad, or a second record of one name, is an INTERNAL error that names the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "ortmodule/export.h"

namespace ortmodule {

class InferContext;
class GradContext;
class BodyContext;
class UpgradeContext;
class FusionContext;
struct RecomputeForm;
struct RowRule;

using InferFn = std::function<void(InferContext&)>;
using GradFn = std::function<void(GradContext&)>;
using BodyFn = std::function<void(BodyContext&)>;
using UpgradeFn = std::function<void(UpgradeContext&)>;
// Emits a node's instructions of a fused program (records/fusion_context.h); false: this mode of it has none.
using FusionFn = bool (*)(FusionContext&);
// Another way to get output 0 of a forward node again (records/recompute_form.h); none: this mode of it has none.
using RecomputeFormFn = std::optional<RecomputeForm> (*)(const Node&);
// Whether output 0 is input 0's memory in this mode of a kView node.
using SharesFn = bool (*)(const Node&);
// Multiplications and additions of a node whose inputs' and outputs' shapes are known; `size` evaluates a dim.
using SizeOf = std::function<double(const Dim& dim)>;
using FlopsFn = double (*)(const Node& node, const SizeOf& size);

// Facts passes and planner ask for; see each line for what it promises.
enum Trait : uint32_t {
  kElementwise = 1 << 0,       // output element i depends on input elements i (after broadcasting) alone
  kReduction = 1 << 1,         // reduces over axes
  kView = 1 << 2,              // output 0 may share input 0's memory
  kRandom = 1 << 3,            // draws from the generator: never merged, folded or reordered
  kCheap = 1 << 4,             // recomputing in backward costs less than keeping the output
  kHostOutput = 1 << 5,        // outputs lie in host memory, whatever the device: sizes, lists of rows
  kSideEffect = 1 << 6,        // kept although nothing uses its outputs
  kIdentity = 1 << 7,          // output 0 equals input 0
  kShapeOnly = 1 << 8,         // uses only its inputs' shapes, never their elements
  kOpaque = 1 << 9,            // attributes decide everything; not merged by CSE unless they are equal and it is pure
  kTakesContainers = 1 << 10,  // takes sequences or optionals; resolve() refuses them to other operators
  kStatistics = 1 << 11,       // gives running statistics, which eager's kernel writes without counting a version
  kCustom = 1 << 12,           // of a library that was loaded (ops/custom)
  kOpenGradient = 1 << 13,     // its library gives no gradient, and a user may (records/user_gradient.h)
  kCollective = 1 << 14,       // all ranks run it in one order: never merged, folded, repeated or reordered
  kTransfer = 1 << 15,         // copies between places, in the devices' own time (plan/streams.h)
  kProvidersBody = 1 << 16,    // its body is its provider's as a whole: nothing in it is placed
  kBodyOfValues = 1 << 17,     // its body has its values everywhere, and not everywhere its derivative
  kMeantEnd = 1 << 18,         // where it has no gradient, or one of another value, the program means that
  kWaitsItself = 1 << 19,      // its kernel waits for what the host is copied, where it reads that (RunStreams)
};

enum class Presence { kRequired, kOptional, kVariadic };

struct FormalInput {
  std::string name;
  Presence presence = Presence::kRequired;
  bool host = false;  // the kernel reads its elements on the host (axes, sizes, ratios)
  enum class Gradient { kUndeclared, kDifferentiable, kNone } gradient = Gradient::kUndeclared;
};

struct FormalOutput {
  std::string name;
  Presence presence = Presence::kRequired;
  bool saved = false;  // not part of the standard's schema: exists only when the gradient asks for it
};

enum class AttrKind { kInt, kFloat, kString, kInts, kFloats, kStrings, kTensor, kGraph };

struct FormalAttribute {
  std::string name;
  AttrKind kind;
  bool required = false;
};

// How a node of opsets `first` to `last` of ai.onnx becomes one of the record's form (records/upgrade.h).
struct OlderForm {
  std::string name;  // the operator's name then
  int64_t first, last;
  UpgradeFn upgrade;
};

class OpRecord {
 public:
  OpRecord(std::string domain, std::string name, int since, const char* file)
      : domain_(std::move(domain)), name_(std::move(name)), since_(since), file_(file) {}

  // -- declaration, in the order in which a reader wants it ------------------------------------------------------
  OpRecord& input(const std::string& name, Presence presence = Presence::kRequired);
  OpRecord& optional_input(const std::string& name) { return input(name, Presence::kOptional); }
  OpRecord& variadic_input(const std::string& name) { return input(name, Presence::kVariadic); }
  // An input whose elements the kernel reads on the host; implies no_grad.
  OpRecord& host_input(const std::string& name, Presence presence = Presence::kRequired);
  OpRecord& output(const std::string& name, Presence presence = Presence::kRequired);
  // An extra output that the gradient may ask for; see Note [Saved outputs] in grad_context.h.
  OpRecord& saved(const std::string& name);
  OpRecord& attr(const std::string& name, AttrKind kind);  // optional
  OpRecord& required_attr(const std::string& name, AttrKind kind);
  OpRecord& infer(InferFn fn);
  OpRecord& traits(uint32_t bits);
  // `inputs` are the inputs the formula covers; variadic ones are named once.
  OpRecord& grad(const std::vector<std::string>& inputs, GradFn fn);
  OpRecord& no_grad(const std::vector<std::string>& inputs);
  // No input has a gradient (integer results, comparisons, gradient kernels themselves).
  OpRecord& not_differentiable();
  // The operator in plain ONNX operators: oracle in tests, and what a portable file holds.
  OpRecord& body(BodyFn fn);
  // How it becomes a part of a fused kernel: element by element over output 0's shape,
  OpRecord& fuses(FusionFn fn);
  // or reducing the last axis of input 0, whose shape is then the iteration space, or all but it.
  OpRecord& fuses_rows(FusionFn fn);
  OpRecord& recompute(RecomputeFormFn form);
  // For kView, where output 0 is not always input 0's memory.
  OpRecord& shares(SharesFn fn);
  OpRecord& flops(FlopsFn fn);
  // How many times a node that is not cheap passes over its memory, where that is known.
  OpRecord& passes(double count);
  // How rows pass through it (records/row_rule.h); `rule` lives as long as the process.
  OpRecord& rows(const RowRule& rule);
  // Nodes of opsets `first` to `last` differ (attributes that are inputs today, another meaning): `fn` rewrites them.
  OpRecord& older(int64_t first, int64_t last, UpgradeFn fn) { return formerly(name_, first, last, std::move(fn)); }
  // The same for an operator that had another name then.
  OpRecord& formerly(const std::string& name, int64_t first, int64_t last, UpgradeFn fn);
  // The first `inputs` inputs and `outputs` outputs of its bodies are numbers in host memory (an iteration's, say).
  OpRecord& host_formals(size_t inputs, size_t outputs) {
    host_formals_ = {inputs, outputs};
    return *this;
  }
  // Applies a shared declaration: `.apply(unary)`.
  OpRecord& apply(void (*shared)(OpRecord&)) {
    shared(*this);
    return *this;
  }

  // -- questions ---------------------------------------------------------------------------------------------------
  const std::string& domain() const { return domain_; }
  const std::string& name() const { return name_; }
  int since() const { return since_; }
  const char* file() const { return file_; }
  const std::vector<FormalInput>& inputs() const { return inputs_; }
  const std::vector<FormalOutput>& outputs() const { return outputs_; }
  const std::vector<FormalAttribute>& attributes() const { return attributes_; }
  // The formal input behind actual slot i (variadics repeat); null beyond the last.
  const FormalInput* formal_input(size_t i) const;
  // Slot of a named output; throws kInternal when there is none.
  size_t output_slot(const std::string& name) const;
  size_t first_saved() const;  // number of outputs of the public schema
  bool has(Trait trait) const { return (traits_ & trait) != 0; }
  uint32_t trait_bits() const { return traits_; }
  const InferFn& infer_fn() const { return infer_; }
  const GradFn& grad_fn() const { return grad_; }
  const BodyFn& body_fn() const { return body_; }
  const std::vector<OlderForm>& older_forms() const { return older_; }
  FusionFn fusion_fn() const { return fuses_; }  // null: never fused
  bool fuses_over_rows() const { return fuses_over_rows_; }
  RecomputeFormFn recompute_form() const { return recompute_; }
  bool shares_memory(const Node& node) const { return has(kView) && (!shares_ || shares_(node)); }
  FlopsFn flops_fn() const { return flops_; }
  std::optional<double> memory_passes() const { return passes_; }
  const std::pair<size_t, size_t>& host_formals() const { return host_formals_; }
  const RowRule* row_rule() const { return rows_; }  // null: none of its own
  bool differentiable() const { return static_cast<bool>(grad_); }
  std::string qualified_name() const { return domain_.empty() ? name_ : domain_ + "::" + name_; }
  // Throws kInternal when the declaration is incomplete.
  void check_complete() const;
  // Throws kInvalidGraph when a node's inputs, outputs or attributes do not fit.
  void check_node(const Node& node) const;

 private:
  std::string domain_, name_;
  int since_;
  const char* file_;
  std::vector<FormalInput> inputs_;
  std::vector<FormalOutput> outputs_;
  std::vector<FormalAttribute> attributes_;
  uint32_t traits_ = 0;
  InferFn infer_;
  GradFn grad_;
  BodyFn body_;
  FusionFn fuses_ = nullptr;
  bool fuses_over_rows_ = false;
  RecomputeFormFn recompute_ = nullptr;
  SharesFn shares_ = nullptr;
  FlopsFn flops_ = nullptr;
  std::optional<double> passes_;
  std::pair<size_t, size_t> host_formals_{0, 0};
  const RowRule* rows_ = nullptr;
  std::vector<OlderForm> older_;
};

class Registry {
 public:
  ORTMODULE_API static Registry& instance();
  OpRecord& add(const std::string& domain, const std::string& name, int since, const char* file);
  // The record of (domain, op) with the largest since-version <= opset; null when unknown. The domain
  // "ai.ortmodule" also finds the ai.onnx and com.microsoft records: that is where a standard operator with
  // saved outputs lives in a file.
  const OpRecord* find(const std::string& domain, const std::string& op, int64_t opset) const;
  // The older form that a node `op` of ai.onnx has at `opset`; null when it needs no rewriting or is not known.
  const OlderForm* find_older(const std::string& op, int64_t opset) const;
  // "7 to 12, 13 and later": where `op` of ai.onnx works; empty for an unknown name.
  std::string versions(const std::string& op) const;
  ORTMODULE_API std::vector<const OpRecord*> all() const;
  // Names near to `op`, for error messages.
  std::string suggestion(const std::string& domain, const std::string& op) const;

 private:
  void check_once() const;
  std::vector<std::unique_ptr<OpRecord>> records_;
  std::unordered_map<std::string, std::vector<OpRecord*>> by_name_;
  mutable std::unordered_map<std::string, std::vector<const OlderForm*>> older_by_name_;  // filled by check_once
  mutable bool checked_ = false;
};

constexpr const char* kOwnDomain = "ai.ortmodule";
constexpr const char* kAtenDomain = "org.pytorch.aten";

}  // namespace ortmodule

// ORTMODULE_OP("", LayerNormalization, 17).input("X")...;  one per operator, at namespace scope.
#define ORTMODULE_CONCAT_(a, b) a##b
#define ORTMODULE_CONCAT(a, b) ORTMODULE_CONCAT_(a, b)
#define ORTMODULE_OP(domain, op, since)                                                   \
  [[maybe_unused]] static ::ortmodule::OpRecord& ORTMODULE_CONCAT(record_, __COUNTER__) = \
      ::ortmodule::Registry::instance().add(domain, #op, since, __FILE__)
