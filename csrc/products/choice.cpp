#include "products/choice.h"

#include <algorithm>

namespace ortmodule {
namespace {

using Facts = ProductFacts;
using Machine = ProductMachine;

// Below this many multiplications a library's cost per call (some microseconds) outweighs any gain.
constexpr int64_t kSmallProduct = int64_t{1} << 21;
// Of packed_product, which shares its work out to few threads well.
constexpr int kMostPackedThreads = 8;
constexpr int64_t kLeastTileRows = 24, kFewRows = 8;
constexpr int64_t kLeastPacked = int64_t{1} << 17, kLeastPackedBfloat16 = int64_t{1} << 18;
// On Intel's processors: without a bias, and what counts as short.
constexpr int64_t kLeastWithoutBias = int64_t{1} << 20, kShortSums = 512, kShortProduct = int64_t{1} << 25;
// On processors with AVX2 alone that are not Intel's, on one thread.
constexpr int64_t kLeastOnAvx2 = int64_t{1} << 22;
// Few rows by many columns, as scores over a vocabulary for the labelled rows are.
constexpr int64_t kFlatRows = 256, kFlatColumns = 2048;
// Measured on two threads: shorter pairs gain an eighth, at the upper end nothing is left.
constexpr int64_t kLeastPair = int64_t{1} << 16, kLargestPair = int64_t{1} << 30;
constexpr int kMostPairThreads = 8;

int64_t size_of(const Facts& p) { return p.m * p.n * p.k; }

bool is_free(const Facts& p) { return p.provider == MatmulProvider::kAuto && !p.deterministic; }

bool may_pack(const Facts& p, const Machine& machine) {
  return is_free(p) && machine.avx2 && p.threads <= kMostPackedThreads;
}

bool may_pack_floats(const Facts& p, const Machine& machine) {
  return may_pack(p, machine) && p.type != Facts::Type::kBFloat16;
}

bool fits_tiles(const Facts& p) { return p.m >= kLeastTileRows && p.n >= 16 && p.k >= 16; }

// What a copy of b costs each product is paid once: on one thread a tenth to a quarter faster than MKL with a copy for
// up to 128 rows, as fast for thousands (Intel, AVX-512). Elsewhere MKL is no faster.
bool packed_once(const Facts& p, const Machine& machine) {
  return p.constant && p.type == Facts::Type::kFloat && may_pack(p, machine) && p.n >= 16 && p.k >= 16 &&
         (machine.avx512 || !machine.intel);
}

// oneDNN's copy and reorder more, and are a kernel of their own for each shape (below); tiles of the processor are its
// alone.
bool bfloat16_packed(const Facts& p, const Machine& machine) {
  return may_pack(p, machine) && p.type == Facts::Type::kBFloat16 && !machine.tiles && p.m >= 24 && p.n >= 16 &&
         p.k >= 32;
}

// A tenth faster for all but tiny products, and up to twice over a vocabulary.
bool packed_on_split_vectors(const Facts& p, const Machine& machine) {
  return may_pack_floats(p, machine) && machine.split_avx512 && fits_tiles(p);
}

bool may_take_onednn(const Facts& p, const Machine& machine) {
  return p.on_cpu && p.type == Facts::Type::kFloat && machine.onednn;
}

// Vectors of full width that MKL does not use.
bool has_spare_vectors(const Machine& machine) { return machine.avx512 && !machine.split_avx512 && !machine.intel; }

// Half of MKL's time. So is oneDNN's, but that makes a kernel for each shape that it meets, and keeps some half MiB of
// it: rows that vary from step to step took it four times as long, and memory grew with every size.
bool packed_on_spare_vectors(const Facts& p, const Machine& machine) {
  return may_pack_floats(p, machine) && has_spare_vectors(machine) && p.m >= kFewRows && p.n >= 16 && p.k >= 16;
}

// Few rows by a weight, as a model that decodes has them, are shapes that come again: oneDNN reads the weight at up to
// twice MKL's rate, and does not copy it first.
bool few_rows_of_a_layer(const Facts& p) { return p.linear && p.m < kLeastTileRows; }

// MKL is as fast on its own processors, but slower where operands are no longer in the caches nearest to a thread, and
// a bias goes before it, in a pass over the result.
bool packed_on_intel(const Facts& p, const Machine& machine) {
  return may_pack_floats(p, machine) && machine.intel && machine.avx512 && !machine.split_avx512 && fits_tiles(p) &&
         (p.bias || size_of(p) >= kLeastWithoutBias) &&
         ((p.k <= kShortSums && !p.transposed) || size_of(p) <= kShortProduct);
}

bool may_pack_on_avx2(const Facts& p, const Machine& machine) {
  return may_pack_floats(p, machine) && !machine.intel && !machine.avx512 && size_of(p) >= kLeastOnAvx2 * p.threads;
}

// MKL runs at half to nine tenths of its rate for these two; elsewhere the two are equal to within what can be
// measured.
bool packed_few_rows(const Facts& p, const Machine& machine) {
  return may_pack_on_avx2(p, machine) && p.m >= 16 && p.m <= 128 && p.n >= 2048;
}
bool packed_short_sums(const Facts& p, const Machine& machine) {
  return may_pack_on_avx2(p, machine) && p.k >= 16 && p.k <= 96 && p.m * p.n >= int64_t{1} << 20;
}

// at::mm and at::linear find out about types, layouts, aliases and names first: more than a narrow layer's product.
bool small(const Facts& p, const Machine&) { return p.provider != MatmulProvider::kOneDnn; }

// Where the processor multiplies bfloat16, ATen's products of it are oneDNN's, but a bias is copied over the result
// first and added to by a slower kernel. oneDNN's own linear layer adds it to the sums, for the same bits.
bool bfloat16_bias(const Facts& p, const Machine& machine) {
  return p.on_cpu && p.linear && p.bias && p.plain_bias && p.type == Facts::Type::kBFloat16 &&
         p.provider != MatmulProvider::kAten && !p.deterministic && machine.pairs && machine.onednn;
}

bool onednn_asked_for(const Facts& p, const Machine& machine) {
  return p.provider == MatmulProvider::kOneDnn && may_take_onednn(p, machine);
}

bool onednn_on_spare_vectors(const Facts& p, const Machine& machine) {
  return is_free(p) && may_take_onednn(p, machine) && has_spare_vectors(machine) &&
         (few_rows_of_a_layer(p) || p.threads > kMostPackedThreads);
}

// The BLAS reads a weight badly in one call.
bool flat(const Facts& p, const Machine&) { return p.linear && p.k > 0 && p.m <= kFlatRows && p.n >= kFlatColumns; }

bool always(const Facts&, const Machine&) { return true; }

constexpr int64_t kAny = INT64_MAX;

constexpr ProductRow kTable[] = {
    {"a constant's panels, made once", ProductKernel::kPackedOnce, kLeastPacked, kAny, packed_once},
    {"bfloat16 in panels of our own", ProductKernel::kPacked, kLeastPackedBfloat16, kAny, bfloat16_packed},
    {"AVX-512 in halves: tiles of our own", ProductKernel::kPacked, kLeastPacked, kAny, packed_on_split_vectors},
    {"few rows on AVX-512 that MKL does not use: oneDNN", ProductKernel::kOneDnn, kSmallProduct, kAny,
     onednn_on_spare_vectors},
    {"AVX-512 that MKL does not use: tiles of our own", ProductKernel::kPacked, kLeastPacked, kAny,
     packed_on_spare_vectors},
    {"short on Intel's AVX-512: tiles of our own", ProductKernel::kPacked, kLeastPacked, kAny, packed_on_intel},
    {"few rows, many columns on AVX2: tiles of our own", ProductKernel::kPacked, kLeastOnAvx2, kAny, packed_few_rows},
    {"short sums on AVX2: tiles of our own", ProductKernel::kPacked, kLeastOnAvx2, kAny, packed_short_sums},
    {"small: past the dispatcher", ProductKernel::kBlas, 0, kSmallProduct, small},
    {"bfloat16 with a bias in oneDNN's sums", ProductKernel::kOneDnn, kSmallProduct, kAny, bfloat16_bias},
    {"oneDNN was asked for", ProductKernel::kOneDnn, 1, kAny, onednn_asked_for},
    {"few rows, many columns: strips past the dispatcher", ProductKernel::kBlas, 1, kAny, flat},
    {"ATen's", ProductKernel::kAten, 0, kAny, always},
};

}  // namespace

std::span<const ProductRow> product_table() { return kTable; }

const ProductRow& choose_product(const ProductFacts& product, const ProductMachine& machine, const ProductRow* after) {
  const int64_t size = size_of(product);
  const ProductRow* row = after ? after + 1 : kTable;
  while (size < row->least || size >= row->most || !row->when(product, machine)) ++row;
  return *row;
}

bool shares_threads(const ProductFacts& p) {
  if (p.provider == MatmulProvider::kOneDnn || p.deterministic) return false;
  if (p.threads > kMostPairThreads || std::min(p.m, p.n) < 16 * p.threads) return false;
  return size_of(p) >= kLeastPair && size_of(p) <= kLargestPair;
}

}  // namespace ortmodule
