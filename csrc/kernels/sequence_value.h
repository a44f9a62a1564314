// Sequences as values of a run.
//
// A frame's slots hold tensors. A sequence travels in a slot as a tensor handle whose implementation holds a list and
// has neither sizes nor storage: every other part of the runtime (releasing, reference counts, passing in and out)
// works as it is and tensor-only graphs pay nothing. An operator that does not know sequences never gets one, because
// resolve() refuses such a graph; ATen would refuse it too, for there is no dispatch key. An absent optional is an
// undefined tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

ORTMODULE_API at::Tensor make_sequence(std::vector<at::Tensor> elements, at::ScalarType element_type);
ORTMODULE_API bool holds_sequence(const at::Tensor& value);
// Throws kRuntime when the value is no sequence.
ORTMODULE_API const std::vector<at::Tensor>& sequence_elements(const at::Tensor& value);
// The declared type of the elements, which an empty sequence has as well.
at::ScalarType sequence_element_type(const at::Tensor& value);

}  // namespace ortmodule
