// Operators of the domain com.example, for float32 tensors on the CPU:
//
//   ScaledSquare(x){scale}   scale * x^2; its gradient is an operator of this library
//   RowSum(x)                sums the last axis: an operator with a shape rule of its own
//   Softplus(x)              log(1 + exp(x)); its gradient is made of standard operators
//   Threshold(x){value}      x where it is above the value, else 0; no gradient here, Python may give one
#include <ortmodule/custom_op.h>

#include <cmath>
#include <vector>

namespace {

int64_t elements(const OrtmoduleTensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.rank; ++i) n *= t.sizes[i];
  return n;
}

// An input as floats; says what is wrong and returns false otherwise.
bool read(OrtmoduleContext* context, const OrtmoduleApi* api, size_t index, OrtmoduleTensor* tensor) {
  if (!api->input(context, index, tensor)) {
    api->fail(context, "an input is missing");
    return false;
  }
  if (tensor->dtype != ORTMODULE_FLOAT || tensor->device_type != ORTMODULE_DEVICE_CPU) {
    api->fail(context, "com.example's operators take float32 tensors on the CPU");
    return false;
  }
  return true;
}

int scaled_square(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor x, y;
  if (!read(context, api, 0, &x)) return 1;
  if (!api->output(context, 0, x.rank, x.sizes, &y)) return 0;
  const auto scale = static_cast<float>(api->attribute_float(context, "scale", 1.0));
  const auto* in = static_cast<const float*>(x.data);
  auto* out = static_cast<float*>(y.data);
  for (int64_t i = 0; i < elements(x); ++i) out[i] = scale * in[i] * in[i];
  return 0;
}

int scaled_square_grad(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor dy, x, dx;
  if (!read(context, api, 0, &dy) || !read(context, api, 1, &x)) return 1;
  if (!api->output(context, 0, x.rank, x.sizes, &dx)) return 0;
  const auto scale = static_cast<float>(api->attribute_float(context, "scale", 1.0));
  const auto* in = static_cast<const float*>(x.data);
  const auto* grad = static_cast<const float*>(dy.data);
  auto* out = static_cast<float*>(dx.data);
  for (int64_t i = 0; i < elements(x); ++i) out[i] = 2 * scale * in[i] * grad[i];
  return 0;
}

int row_sum_type(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensorType x;
  if (!api->input_type(context, 0, &x)) return 1;
  if (x.rank == 0) {
    api->fail(context, "RowSum needs at least one axis");
    return 1;
  }
  // Sizes are copied as they are, also those that only the run will tell.
  const std::vector<int64_t> sizes(x.sizes, x.sizes + (x.rank > 0 ? x.rank - 1 : 0));
  const OrtmoduleTensorType y{sizes.data(), x.rank > 0 ? x.rank - 1 : -1, x.dtype};
  api->set_output_type(context, 0, &y);
  return 0;
}

int row_sum(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor x, y;
  if (!read(context, api, 0, &x)) return 1;
  if (!api->output(context, 0, x.rank - 1, x.sizes, &y)) return 0;
  const int64_t width = x.sizes[x.rank - 1];
  const auto* in = static_cast<const float*>(x.data);
  auto* out = static_cast<float*>(y.data);
  for (int64_t row = 0; row < elements(y); ++row) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += in[row * width + i];
    out[row] = sum;
  }
  return 0;
}

int row_sum_grad(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor dy, x, dx;
  if (!read(context, api, 0, &dy) || !read(context, api, 1, &x)) return 1;
  if (!api->output(context, 0, x.rank, x.sizes, &dx)) return 0;
  const int64_t width = x.sizes[x.rank - 1];
  const auto* grad = static_cast<const float*>(dy.data);
  auto* out = static_cast<float*>(dx.data);
  for (int64_t i = 0; i < elements(x); ++i) out[i] = grad[i / width];
  return 0;
}

int softplus_forward(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor x, y;
  if (!read(context, api, 0, &x)) return 1;
  if (!api->output(context, 0, x.rank, x.sizes, &y)) return 0;
  const auto* in = static_cast<const float*>(x.data);
  auto* out = static_cast<float*>(y.data);
  for (int64_t i = 0; i < elements(x); ++i) out[i] = std::log1p(std::exp(in[i]));
  return 0;
}

int threshold(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensor x, y;
  if (!read(context, api, 0, &x)) return 1;
  if (!api->output(context, 0, x.rank, x.sizes, &y)) return 0;
  const auto value = static_cast<float>(api->attribute_float(context, "value", 0.0));
  const auto* in = static_cast<const float*>(x.data);
  auto* out = static_cast<float*>(y.data);
  for (int64_t i = 0; i < elements(x); ++i) out[i] = in[i] > value ? in[i] : 0;
  return 0;
}

const OrtmoduleParameter kX[] = {{"x", 0}};
const OrtmoduleParameter kY[] = {{"y", 0}};
const OrtmoduleParameter kGradInputs[] = {{"dy", 0}, {"x", 0}};

const char* const kGradAndInput[] = {"GO(0)", "I(0)"};
const char* const kFirstInput[] = {"GI(0)"};
const OrtmoduleGradientNode kSquareGradient[] = {
    {"com.example::ScaledSquareGrad", kGradAndInput, 2, kFirstInput, 1},
};

const OrtmoduleGradientNode kRowSumGradient[] = {
    {"com.example::RowSumGrad", kGradAndInput, 2, kFirstInput, 1},
};

// Softplus' gradient in standard operators: dx = dy * sigmoid(x), with a value between the two nodes.
const char* const kSigmoidIn[] = {"I(0)"};
const char* const kSigmoidOut[] = {"slope"};
const char* const kProductIn[] = {"GO(0)", "slope"};
const OrtmoduleGradientNode kSoftplusGradient[] = {
    {"Sigmoid", kSigmoidIn, 1, kSigmoidOut, 1},
    {"Mul", kProductIn, 2, kFirstInput, 1},
};

int type_of_second(OrtmoduleContext* context, const OrtmoduleApi* api, void*) {
  OrtmoduleTensorType x;
  if (!api->input_type(context, 1, &x)) return 1;
  api->set_output_type(context, 0, &x);
  return 0;
}

OrtmoduleCustomOp make(const char* name, OrtmoduleFunction compute) {
  OrtmoduleCustomOp op{};
  op.struct_size = sizeof(OrtmoduleCustomOp);
  op.domain = "com.example";
  op.name = name;
  op.since_version = 1;
  op.inputs = kX;
  op.input_count = 1;
  op.outputs = kY;
  op.output_count = 1;
  op.compute = compute;
  return op;
}

// A gradient kernel: (dy, x) -> dx, of x's type, not differentiable itself.
OrtmoduleCustomOp make_grad(const char* name, OrtmoduleFunction compute) {
  OrtmoduleCustomOp op = make(name, compute);
  op.inputs = kGradInputs;
  op.input_count = 2;
  op.infer = type_of_second;
  op.flags = ORTMODULE_NOT_DIFFERENTIABLE;
  return op;
}

}  // namespace

const OrtmoduleCustomOpLibrary* OrtmoduleRegisterCustomOps(void) {
  static const auto square = [] {
    OrtmoduleCustomOp op = make("ScaledSquare", scaled_square);
    op.gradient = kSquareGradient;
    op.gradient_count = 1;
    return op;
  }();
  static const auto sum = [] {
    OrtmoduleCustomOp op = make("RowSum", row_sum);
    op.infer = row_sum_type;
    op.gradient = kRowSumGradient;
    op.gradient_count = 1;
    return op;
  }();
  static const auto softplus = [] {
    OrtmoduleCustomOp op = make("Softplus", softplus_forward);
    op.gradient = kSoftplusGradient;
    op.gradient_count = 2;
    return op;
  }();
  static const auto cut = make("Threshold", threshold);
  static const auto square_grad = make_grad("ScaledSquareGrad", scaled_square_grad);
  static const auto sum_grad = make_grad("RowSumGrad", row_sum_grad);
  static const OrtmoduleCustomOp* const ops[] = {&square, &sum, &softplus, &cut, &square_grad, &sum_grad};
  static const OrtmoduleCustomOpLibrary library{ORTMODULE_CUSTOM_OP_ABI_VERSION, sizeof(OrtmoduleCustomOpLibrary), ops,
                                                sizeof(ops) / sizeof(ops[0])};
  return &library;
}
