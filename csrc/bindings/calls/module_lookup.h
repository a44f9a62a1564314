// ORTModule.__getattribute__, which hears when nn.Module has got or lost a name.
//
// A wrapper inherits what somebody sets on nn.Module, where the wrapped module may have a value of its own. CPython
// gives each class a version, which a change of the class takes away (tp_version_tag), so that a lookup costs one
// comparison more; its callbacks on changes (type watchers) are of 3.12 on alone.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_module_lookup(pybind11::module_& m);

}  // namespace ortmodule
