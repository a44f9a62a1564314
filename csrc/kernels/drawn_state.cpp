#include "kernels/drawn_state.h"

namespace ortmodule {

DrawnState::Words*& DrawnState::current() {
  static thread_local Words* words = nullptr;
  return words;
}

}  // namespace ortmodule
