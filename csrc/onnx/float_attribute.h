// Float attributes, which files hold as float32.
//
// Note [Float attributes]
// A file holds 1e-5 as the float32 next to it. Read as a double that is 9.99999974e-06, which a kernel that computes in
// double would take at its word, unlike the program that the model came from. So the shortest decimal that names the
// float32 is read as a double; writing rounds it back to the same float32. A number of more digits (1 / 3) is written
// besides as the attribute's doc_string, which other readers pass over.
#pragma once

#include <vector>

#include "onnx/proto.h"

namespace ortmodule {

double read_float(const pb::AttributeProto& proto);
// Of a list, which has no more digits than a float32.
std::vector<double> read_floats(const pb::AttributeProto& proto);
// Sets its type and value.
void write_float(double value, pb::AttributeProto& proto);

}  // namespace ortmodule
