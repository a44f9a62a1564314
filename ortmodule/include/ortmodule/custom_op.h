// Operators of your own for ORTModule, in a shared library.
//
// A library defines OrtmoduleRegisterCustomOps (below), which returns a description of its operators: plain data and
// function pointers. It is compiled with any C or C++ compiler, links nothing of ORTModule, and is loaded with
// `SessionOptions.register_custom_ops_library(path)` or `Options(custom_op_libraries=(path,))`.
//
// Stability: this is ABI version 1. Fields are only ever added at the end of a structure, whose `struct_size` tells the
// reader which ones are there; anything else would be a new ABI version, and is refused with a clear error.
// Everything that a library returns must stay valid, and unchanged, for the life of the process.
// Functions of a library may be called from several threads at once. A C++ exception may not leave them.
#ifndef ORTMODULE_CUSTOM_OP_H_
#define ORTMODULE_CUSTOM_OP_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORTMODULE_CUSTOM_OP_ABI_VERSION 1

/* Element types: the values of ONNX's TensorProto.DataType. Booleans are one byte, 0 or 1. */
enum {
  ORTMODULE_FLOAT = 1,
  ORTMODULE_UINT8 = 2,
  ORTMODULE_INT8 = 3,
  ORTMODULE_INT16 = 5,
  ORTMODULE_INT32 = 6,
  ORTMODULE_INT64 = 7,
  ORTMODULE_BOOL = 9,
  ORTMODULE_FLOAT16 = 10,
  ORTMODULE_DOUBLE = 11,
  ORTMODULE_BFLOAT16 = 16
};

enum { ORTMODULE_DEVICE_CPU = 0, ORTMODULE_DEVICE_CUDA = 1 };

/* A dense row-major tensor. `data` is null where it has no elements. A scalar has rank 0. The pointers are valid during
 * the call that received them. */
typedef struct OrtmoduleTensor {
  void* data;
  const int64_t* sizes;
  int32_t rank;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
} OrtmoduleTensor;

/* What is known of a tensor before the run. `rank` is -1 where it is not known. An element of `sizes` is a size, or
 * ORTMODULE_DIM_OF(input, axis) for "the same as that axis of that input", or ORTMODULE_DIM_UNKNOWN. */
typedef struct OrtmoduleTensorType {
  const int64_t* sizes;
  int32_t rank;
  int32_t dtype;
} OrtmoduleTensorType;

#define ORTMODULE_DIM_UNKNOWN ((int64_t)-1)
#define ORTMODULE_DIM_OF(input, axis) ((int64_t)-2 - ((int64_t)(input) * 64 + (int64_t)(axis)))

/* One call of `infer` or `compute`. */
typedef struct OrtmoduleContext OrtmoduleContext;

/* What the engine offers to `infer` and `compute`. */
typedef struct OrtmoduleApi {
  size_t struct_size;
  uint32_t abi_version;

  size_t (*input_count)(const OrtmoduleContext* context);
  size_t (*output_count)(const OrtmoduleContext* context);

  /* Attributes; the fallback where there is none of that name and kind. Lists: the number of elements, and where they
   * are (valid during the call); 0 where there is no such list. */
  int64_t (*attribute_int)(const OrtmoduleContext* context, const char* name, int64_t fallback);
  double (*attribute_float)(const OrtmoduleContext* context, const char* name, double fallback);
  const char* (*attribute_string)(const OrtmoduleContext* context, const char* name, const char* fallback);
  size_t (*attribute_ints)(const OrtmoduleContext* context, const char* name, const int64_t** values);
  size_t (*attribute_floats)(const OrtmoduleContext* context, const char* name, const double** values);

  /* In `infer`: the type of an input (0 where it is absent), and the setter for an output. */
  int (*input_type)(const OrtmoduleContext* context, size_t index, OrtmoduleTensorType* type);
  void (*set_output_type)(OrtmoduleContext* context, size_t index, const OrtmoduleTensorType* type);

  /* In `compute`: an input's tensor (0 where it is absent; it must not be written), and a new tensor for an output, of
   * the type that `infer` gave (0 where nobody reads the output: nothing need be computed). */
  int (*input)(const OrtmoduleContext* context, size_t index, OrtmoduleTensor* tensor);
  int (*output)(OrtmoduleContext* context, size_t index, int32_t rank, const int64_t* sizes, OrtmoduleTensor* tensor);
  /* In `compute` on a GPU: the cudaStream_t to work on; null on a CPU. */
  void* (*stream)(const OrtmoduleContext* context);

  /* Says what is wrong; the call should then return a number other than 0. The text is copied. */
  void (*fail)(OrtmoduleContext* context, const char* message);
} OrtmoduleApi;

/* 0: success. Anything else is an error in the caller's hands, with the text given to `fail`. */
typedef int (*OrtmoduleFunction)(OrtmoduleContext* context, const OrtmoduleApi* api, void* user_data);

enum {
  ORTMODULE_OPTIONAL = 1,   /* may be absent */
  ORTMODULE_VARIADIC = 2,   /* any number, also none; the last one only */
  ORTMODULE_ON_HOST = 4,    /* (inputs) in host memory on every device: axes, sizes */
  ORTMODULE_NO_GRADIENT = 8 /* (inputs) has no gradient; so have integers and booleans in any case */
};

typedef struct OrtmoduleParameter {
  const char* name;
  uint32_t flags;
} OrtmoduleParameter;

/* One node of a gradient. `op` is "Mul" (ai.onnx), "my.domain::SquareGrad" or any operator that the engine knows.
 * Values are named: I(0), O(0) are the forward operator's inputs and outputs, GO(0) the gradient of its output 0 (zeros
 * where none arrives), GI(0) as an output of the node is the gradient of input 0; every other name is a value between
 * the nodes, "" an absent one. Nodes outside ai.onnx get the forward operator's attributes. */
typedef struct OrtmoduleGradientNode {
  const char* op;
  const char* const* inputs;
  size_t input_count;
  const char* const* outputs;
  size_t output_count;
} OrtmoduleGradientNode;

enum {
  ORTMODULE_RANDOM = 1,            /* draws random numbers: never merged, never computed in advance */
  ORTMODULE_NOT_DIFFERENTIABLE = 2 /* gradients stop here, by intention */
};

typedef struct OrtmoduleCustomOp {
  size_t struct_size;
  const char* domain; /* one of yours, such as "com.example"; not ai.onnx nor one of ORTModule's */
  const char* name;
  int32_t since_version; /* 1 unless a model's opset import chooses between several */
  uint32_t flags;
  const OrtmoduleParameter* inputs;
  size_t input_count;
  const OrtmoduleParameter* outputs;
  size_t output_count;
  OrtmoduleFunction infer; /* null: every output is of the type and shape of input 0 */
  OrtmoduleFunction compute;
  void* user_data;
  /* The gradient, in order; none: differentiating through the operator is an error unless
   * `ortmodule.register_gradient` gives one, or NOT_DIFFERENTIABLE is set. */
  const OrtmoduleGradientNode* gradient;
  size_t gradient_count;
} OrtmoduleCustomOp;

typedef struct OrtmoduleCustomOpLibrary {
  uint32_t abi_version; /* ORTMODULE_CUSTOM_OP_ABI_VERSION; stays the first field in every version */
  size_t struct_size;
  const OrtmoduleCustomOp* const* ops;
  size_t op_count;
} OrtmoduleCustomOpLibrary;

#if defined(__GNUC__)
#define ORTMODULE_EXPORT __attribute__((visibility("default")))
#else
#define ORTMODULE_EXPORT
#endif

/* The one symbol that a library exports. */
ORTMODULE_EXPORT const OrtmoduleCustomOpLibrary* OrtmoduleRegisterCustomOps(void);

#ifdef __cplusplus
}
#endif

#endif /* ORTMODULE_CUSTOM_OP_H_ */
