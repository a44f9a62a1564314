// The one place that includes the generated ONNX classes; included by csrc/onnx/*.cpp alone, never together with torch
// headers (torch ships the headers of another protobuf version).
#pragma once

#include "onnx-ml.pb.h"

namespace ortmodule {
namespace pb = ::onnx;
}  // namespace ortmodule
