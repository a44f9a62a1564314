// Backwards for some of the outputs, over what forward keeps for all: Note [Backward variants] in training_agent.h.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>

#include "compile/program.h"

namespace ortmodule {

// Compiles one when it is first asked for, as its full backward was compiled.
class BackwardVariants {
 public:
  // What compile() does with a graph beside calling the stages.
  struct Steps {
    std::function<void(Graph&)> transform;  // the joint passes
    std::function<void(Graph&)> finish;     // fusion and placement
  };

  // `undifferentiated`: the graph before its gradient; `unfused`: with it, before `finish`.
  BackwardVariants(std::shared_ptr<const Graph> undifferentiated, std::shared_ptr<const Graph> unfused, Halves halves,
                   KeptValues kept, PlanTarget target, Steps steps);

  // For the outputs of `mask`; null where it cannot be had from what forward keeps.
  std::shared_ptr<BackwardProgram> compile(const OutputSet& mask) const;

 private:
  std::shared_ptr<BackwardProgram> compile_from(const OutputSet& mask,
                                                const std::unordered_set<std::string>& kept) const;
  // Whether all that this backward half reads is among the values `kept`, and is there what it is here.
  bool reads_only(const Graph& graph, const GradientResult& gradient,
                  const std::unordered_set<std::string>& kept) const;

  std::shared_ptr<const Graph> undifferentiated_, unfused_;
  Halves halves_;
  KeptValues kept_;
  PlanTarget target_;
  Steps steps_;
};

}  // namespace ortmodule
