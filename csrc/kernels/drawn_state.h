// The random state of a run that is run a second time: the second one draws nothing, and finds what the first has
// drawn.
//
// In force on one thread. For programs with one RandomState at most (Note [Random state]).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace ortmodule {

class DrawnState {
 public:
  using Words = std::optional<std::array<int64_t, 2>>;

  // What runs until the end of the scope draws `words`; where there are none yet, they are drawn and left there.
  class Scope {
   public:
    explicit Scope(Words& words) : before_(current()) { current() = &words; }
    ~Scope() { current() = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Words* before_;
  };

  // Of the innermost scope; null: none is in force.
  static Words*& current();
};

}  // namespace ortmodule
