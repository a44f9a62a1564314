// RecurrentLayer and its gradient in plain ONNX operators; records only.
#pragma once

#include "records/grad_context.h"

namespace ortmodule {

void recurrent_layer_body(BodyContext& c);
void recurrent_layer_grad_body(BodyContext& c);

}  // namespace ortmodule
