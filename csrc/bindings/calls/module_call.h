// ORTModule.__call__ without the steps in Python between a call and the session that runs it.
//
// nn.Module.__call__ looks for hooks, finds `forward` and calls it, in two Python functions; our forward is a third.
// What they would find in a training loop is always the same: nothing to do but to ask the manager's fast calls. The
// native __call__ asks them itself where that is so, and calls nn.Module's own in every other case: a hook on the
// wrapper or for all modules, a replaced forward, a subclass, a patched nn.Module (torch.fx does that), a call that
// fits no session. Not here: what a hit means (fast_call.h).
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_module_call(pybind11::module_& m);

}  // namespace ortmodule
