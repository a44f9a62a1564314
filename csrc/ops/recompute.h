// What computing a value a second time, in backward, takes: facts that operators declare beside their records.
//
// An operator without any of these is recomputed as it is, unless it draws random numbers or has a side effect, at the
// cost of reading its inputs and writing its outputs. Not in registry.h because only the recompute pass asks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// Another node that gives output 0 of a forward node again, from its inputs and its small saved outputs: how batch
// statistics are not taken twice and dropout masks not drawn again.
struct RecomputeForm {
  std::string domain, op;
  std::vector<NodeArg*> inputs;
  Attributes attributes;
};

// Null: this node (a mode of the operator, say) has no such form.
using RecomputeFormFn = std::optional<RecomputeForm> (*)(const Node& node);
// Multiplications and additions of a node whose inputs' and outputs' shapes are known; `size` evaluates a dim.
using SizeOf = std::function<double(const Dim& dim)>;
using FlopsFn = double (*)(const Node& node, const SizeOf& size);

// Passes over memory that a node which is not cheap counts for, where it is known.
using Passes = std::optional<double>;

class RecomputeFacts {
 public:
  static RecomputeFacts& instance();
  bool set_form(const std::string& domain, const std::string& op, RecomputeFormFn form);
  bool set_flops(const std::string& domain, const std::string& op, FlopsFn flops);
  bool set_passes(const std::string& domain, const std::string& op, double passes);
  RecomputeFormFn form(const Node& node) const;
  FlopsFn flops(const Node& node) const;
  Passes passes(const Node& node) const;

 private:
  std::unordered_map<std::string, RecomputeFormFn> forms_;
  std::unordered_map<std::string, FlopsFn> flops_;
  std::unordered_map<std::string, double> passes_;
};

// Product of a shape's dims.
double count_elements(const Shape& shape, const SizeOf& size);

}  // namespace ortmodule

#define ORTMODULE_RECOMPUTE_CONCAT_(a, b) a##b
#define ORTMODULE_RECOMPUTE_CONCAT(a, b) ORTMODULE_RECOMPUTE_CONCAT_(a, b)
// ORTMODULE_RECOMPUTE_FORM("ai.ortmodule", PhiloxDropout, form_of_dropout);
#define ORTMODULE_RECOMPUTE_FORM(domain, op, fn)                                           \
  [[maybe_unused]] static const bool ORTMODULE_RECOMPUTE_CONCAT(recompute_, __COUNTER__) = \
      ::ortmodule::RecomputeFacts::instance().set_form(domain, #op, fn)
#define ORTMODULE_FLOPS(domain, op, fn)                                                \
  [[maybe_unused]] static const bool ORTMODULE_RECOMPUTE_CONCAT(flops_, __COUNTER__) = \
      ::ortmodule::RecomputeFacts::instance().set_flops(domain, #op, fn)
#define ORTMODULE_PASSES(domain, op, passes)                                            \
  [[maybe_unused]] static const bool ORTMODULE_RECOMPUTE_CONCAT(passes_, __COUNTER__) = \
      ::ortmodule::RecomputeFacts::instance().set_passes(domain, #op, passes)
