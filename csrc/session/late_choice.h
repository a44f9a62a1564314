// Whether a session may compute some of its outputs late (Note [Late outputs] in autograd/late_outputs.h).
#pragma once

#include <memory>
#include <string>

#include "autograd/late_outputs.h"
#include "compile/compile.h"

namespace ortmodule {

// `quick` is the program of the same module without some of the outputs of `whole`. Null where the two could give
// different numbers or a late output might look different from one that is there, and then `why` says so.
std::shared_ptr<LatePlan> late_plan(const CompiledModel& whole, const CompiledModel& quick, std::string& why);

}  // namespace ortmodule
