// Gradients of If, Loop and Scan (control_gradient.cpp).
#pragma once

#include "records/grad_context.h"

namespace ortmodule {

void if_gradient(GradContext& c);
void loop_gradient(GradContext& c);
void scan_gradient(GradContext& c);

}  // namespace ortmodule
