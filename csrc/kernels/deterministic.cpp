#include "kernels/deterministic.h"

#include <ATen/Context.h>

namespace ortmodule {
namespace {

thread_local bool asked = false;

}  // namespace

bool deterministic_compute() { return asked || at::globalContext().deterministicAlgorithms(); }

DeterministicScope::DeterministicScope(bool on) : before_(asked) { asked = asked || on; }
DeterministicScope::~DeterministicScope() { asked = before_; }

}  // namespace ortmodule
