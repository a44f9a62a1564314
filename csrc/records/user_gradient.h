// Gradient formulas that come from outside while the process runs, by operator: Python's register_gradient.
//
// They are asked before the record's own formula, and cover every floating input. Formulas stay for the life of the
// process, so that a graph that is being built keeps the one it found.
#pragma once

#include <string>

#include "ortmodule/export.h"
#include "records/registry.h"

namespace ortmodule {

// Throws kInvalidArgument where the operator has a gradient already (its own or one set before) and `replace` is not
// given, and for a name that no operator has in a domain of the engine's own.
ORTMODULE_API void set_user_gradient(const std::string& domain, const std::string& op, GradFn formula, bool replace);

// The record's own formula holds again; nothing happens where none was set.
ORTMODULE_API void remove_user_gradient(const std::string& domain, const std::string& op);

// Null where none was set.
const GradFn* user_gradient(const OpRecord& record);

}  // namespace ortmodule
