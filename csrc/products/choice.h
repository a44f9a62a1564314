// Which kernel multiplies two matrices: one table, read from its top, a pure function of sizes, types, threads and the
// processor. Nothing is measured while a program runs: two runs on one type of machine multiply alike.
//
// Where the numbers come from: torch's BLAS is MKL, which takes its AVX2 path on processors of other makers. oneDNN,
// which torch carries too, is twice as fast there where vectors of 512 bits have their full width, and no faster
// elsewhere. Our own packed_product gains where neither is at its rate. What was measured stands beside each row.
// Not here: the kernels (packed_product.h, sgemm.h), and whether operands lie so that a kernel can read them; one that
// cannot passes the product on to the next row that applies (matmul_provider.h).
#pragma once

#include <cstdint>
#include <span>

namespace ortmodule {

// What a user asked for: the table, or one library.
enum class MatmulProvider { kAuto, kAten, kOneDnn };

// What the table asks of a machine.
struct ProductMachine {
  bool avx2 = false, intel = false;
  bool avx512 = false, split_avx512 = false;  // split: each vector of 512 bits in two, as Zen 4 does
  bool pairs = false, tiles = false;          // of bfloat16 (kernels/processor.h)
  bool onednn = false;                        // torch has it
};

// A product of a [m, k] and b [k, n].
struct ProductFacts {
  enum class Type { kFloat, kBFloat16, kOther };

  int64_t m = 0, n = 0, k = 0;
  Type type = Type::kFloat;
  bool on_cpu = true;
  bool linear = false;      // b is a weight [n, k] as it lies
  bool bias = false;        // one is added
  bool plain_bias = false;  // and it is a contiguous row of the same type
  bool constant = false;    // b is the same at each run, and its panels may be kept
  bool transposed = false;  // a's columns lie side by side, not its rows
  int threads = 1;
  bool deterministic = false;  // eager's bits are asked for (torch.use_deterministic_algorithms)
  MatmulProvider provider = MatmulProvider::kAuto;
};

enum class ProductKernel {
  kPacked,      // packed_product.h
  kPackedOnce,  // the same, with panels that are kept (constant_factor.h)
  kBlas,        // torch's BLAS without the dispatcher, sgemm.h
  kOneDnn,
  kAten,
};

// Applies to products of at least `least` and less than `most` multiplications of which `when` is true.
struct ProductRow {
  const char* reason;
  ProductKernel kernel;
  int64_t least, most;
  bool (*when)(const ProductFacts& product, const ProductMachine& machine);
};

// The last row always applies.
std::span<const ProductRow> product_table();
// The first row that applies; with `after`, the first behind that one.
const ProductRow& choose_product(const ProductFacts& product, const ProductMachine& machine,
                                 const ProductRow* after = nullptr);

// Whether both gradients of a linear layer, products of [m, n, k] in some order, should share the threads as
// blas_linear_grads does: where they are so short that threads meeting, and reading what others wrote, is much of their
// time.
bool shares_threads(const ProductFacts& product);

}  // namespace ortmodule
