// Which results of a call are computed from which others, as autograd would see it.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace ortmodule {

// By position among the outputs that can receive a gradient (TrainingProgram::y_outputs).
struct ResultOrder {
  struct Result {
    std::vector<size_t> below;  // the results that it is computed from
    std::vector<size_t> next;   // those of them that no other of them is computed from
    bool gathers = false;       // several results have it as their next one
  };
  std::vector<Result> results;
  std::vector<size_t> sequence;   // those that a caller sees, in the order in which eager would make their nodes
  std::optional<size_t> deepest;  // the one that all others are computed from

  bool any() const;  // whether some result is computed from another

  // `pairs`: (a result, one that it is computed from), with what follows from two of them; `sequence` as above.
  static ResultOrder of(const std::vector<std::pair<size_t, size_t>>& pairs, std::vector<size_t> sequence,
                        size_t count);
};

}  // namespace ortmodule
