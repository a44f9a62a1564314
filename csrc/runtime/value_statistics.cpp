#include "runtime/value_statistics.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/Parallel.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/aten_bridge.h"
#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/sequence_value.h"

namespace ortmodule {
namespace {

constexpr int64_t kPieceBytes = 1 << 15;
constexpr int64_t kBlock = 2048;  // elements whose figures are taken at a time
constexpr int64_t kPiecesPerThread = 4;
constexpr int kLanes = 64;  // products of one lane wait for one another: with fewer the processor waits too
constexpr int64_t kStripe = kLanes * sizeof(uint32_t);
constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;  // odd, 2^64 over the golden ratio

// Every step can be undone, so that a change of one word changes the result for certain.
ORTMODULE_INLINE uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kPrime;
  return hash ^ (hash >> 32);
}

ORTMODULE_SIMD void hash_stripes(const uint8_t* bytes, int64_t stripes, uint32_t* result) {
  uint32_t lanes[kLanes];
  std::memcpy(lanes, result, sizeof(lanes));
  for (int64_t s = 0; s < stripes; ++s) {
    uint32_t words[kLanes];
    std::memcpy(words, bytes + s * kStripe, kStripe);
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t x = (lanes[l] ^ words[l]) * 0x9e3779b1u;
      lanes[l] = x ^ (x >> 15);
    }
  }
  std::memcpy(result, lanes, sizeof(lanes));
}

uint64_t hash_of(const uint8_t* bytes, int64_t size) {
  std::array<uint32_t, kLanes> lanes;
  for (int l = 0; l < kLanes; ++l) lanes[l] = static_cast<uint32_t>(l + 1);
  hash_stripes(bytes, size / kStripe, lanes.data());
  if (const int64_t rest = size % kStripe) {
    std::array<uint8_t, kStripe> last{};
    std::memcpy(last.data(), bytes + size - rest, rest);
    hash_stripes(last.data(), 1, lanes.data());
  }
  uint64_t hash = static_cast<uint64_t>(size);
  for (int l = 0; l < kLanes; l += 2) hash = mixed(hash, lanes[l] | static_cast<uint64_t>(lanes[l + 1]) << 32);
  return hash;
}

// Of some elements; joined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
// sample variances" (1979).
struct Figures {
  int64_t finite = 0, nans = 0, infinities = 0;
  double min = std::numeric_limits<double>::infinity(), max = -min;
  double mean = 0, squares = 0;  // the sum of (x - mean)^2

  void join(const Figures& other) {
    nans += other.nans;
    infinities += other.infinities;
    if (!other.finite) return;
    const auto mine = static_cast<double>(finite), theirs = static_cast<double>(other.finite), both = mine + theirs;
    const double apart = other.mean - mean;
    squares += other.squares + apart * apart * (mine * theirs / both);
    mean += apart * (theirs / both);
    finite += other.finite;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
};

// Right where nothing is NaN or infinite; returns how many are. Deviations are summed from the first element, which
// costs no precision: it is one of n, so that its square is at most n times the variance.
template <typename T, typename Bits, Bits kExponent>
ORTMODULE_INLINE int64_t quick_figures(const T* x, int64_t n, Figures& out) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const auto pivot = static_cast<double>(x[0]);
  Bits special = 0;
  T lo = kInfinity, hi = -kInfinity;
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : special, sum, squares) reduction(min : lo) reduction(max : hi)
  for (int64_t i = 0; i < n; ++i) {
    special += static_cast<Bits>((std::bit_cast<Bits>(x[i]) & kExponent) == kExponent);
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
    const double apart = static_cast<double>(x[i]) - pivot;
    sum += apart;
    squares += apart * apart;
  }
  const double offset = sum / static_cast<double>(n);
  squares = std::max(squares - sum * offset, 0.0);
  out = {n, 0, 0, static_cast<double>(lo), static_cast<double>(hi), pivot + offset, squares};
  return static_cast<int64_t>(special);
}

ORTMODULE_SIMD int64_t quick_floats(const float* x, int64_t n, Figures& out) {
  return quick_figures<float, uint32_t, 0x7f800000u>(x, n, out);
}

ORTMODULE_SIMD int64_t quick_doubles(const double* x, int64_t n, Figures& out) {
  return quick_figures<double, uint64_t, 0x7ff0000000000000u>(x, n, out);
}

template <typename T>
Figures careful_figures(const T* x, int64_t n) {
  Figures out;
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    if (std::isnan(value))
      ++out.nans;
    else if (std::isinf(value))
      ++out.infinities;
    else
      out.join({1, 0, 0, value, value, value, 0});
  }
  return out;
}

Figures figures_of(const float* x, int64_t n) {
  Figures out;
  return quick_floats(x, n, out) ? careful_figures(x, n) : out;
}

Figures figures_of(const double* x, int64_t n) {
  Figures out;
  return quick_doubles(x, n, out) ? careful_figures(x, n) : out;
}

// Elements [begin, end) of contiguous memory.
Figures figures_in(const uint8_t* elements, at::ScalarType type, int64_t begin, int64_t end) {
  Figures out;
  std::array<float, kBlock> floats;
  std::array<double, kBlock> doubles;
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    if (type == at::kFloat) {
      out.join(figures_of(reinterpret_cast<const float*>(elements) + begin, n));
    } else if (type == at::kDouble) {
      out.join(figures_of(reinterpret_cast<const double*>(elements) + begin, n));
    } else if (converts(type)) {
      load_elements(type, elements + begin * static_cast<int64_t>(c10::elementSize(type)), 1, floats.data(), n);
      out.join(figures_of(floats.data(), n));
    } else {
      AT_DISPATCH_V2(type, "figures", AT_WRAP([&] {
                       const auto* from = reinterpret_cast<const scalar_t*>(elements) + begin;
                       for (int64_t i = 0; i < n; ++i) doubles[i] = static_cast<double>(from[i]);
                     }),
                     AT_EXPAND(AT_INTEGRAL_TYPES_V2));
      out.join(figures_of(doubles.data(), n));
    }
  }
  return out;
}

struct Piece {
  uint64_t hash = 0;
  Figures figures;
};

void add(const Piece& piece, ValueStatistics& out, Figures& figures) {
  out.fingerprint = mixed(out.fingerprint, piece.hash);
  figures.join(piece.figures);
}

// A tensor of the host whose figures figures_in knows how to take, with the same elements.
at::Tensor countable(const at::Tensor& t) {
  const at::Tensor real = t.is_complex() ? at::view_as_real(t.detach()) : t;
  const at::ScalarType type = real.scalar_type();
  const bool known = type == at::kDouble || converts(type) || c10::isIntegralType(type, true);
  return known ? real : real.detach().to(at::kFloat);
}

void add_tensor(const at::Tensor& t, bool figures, ValueStatistics& out, Figures& all) {
  at::Tensor here = t;
  if (!here.device().is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(here.device().type());
    guard.synchronizeDevice(here.device().index());
    here = here.detach().cpu();
  }
  if (here.is_conj() || here.is_neg() || !here.is_contiguous())
    here = here.detach().resolve_conj().resolve_neg().contiguous();
  const at::Tensor counted = figures ? countable(here) : here;
  const auto* bytes = static_cast<const uint8_t*>(here.const_data_ptr());
  const auto* elements = static_cast<const uint8_t*>(counted.const_data_ptr());
  const auto size = static_cast<int64_t>(here.nbytes());
  const int64_t pieces = (size + kPieceBytes - 1) / kPieceBytes;
  // `counted` may have elements of another size: it is cut into as many pieces.
  const int64_t numel = counted.numel(), each = pieces ? (numel + pieces - 1) / pieces : 0;
  const auto piece_of = [&, type = counted.scalar_type()](int64_t p) {
    Piece piece;
    const int64_t from = p * kPieceBytes;
    piece.hash = hash_of(bytes + from, std::min(kPieceBytes, size - from));
    const int64_t first = std::min(p * each, numel), last = std::min(first + each, numel);
    if (figures) piece.figures = figures_in(elements, type, first, last);
    return piece;
  };
  if (pieces <= kPiecesPerThread) {
    for (int64_t p = 0; p < pieces; ++p) add(piece_of(p), out, all);
  } else {
    std::vector<Piece> found(static_cast<size_t>(pieces));
    at::parallel_for(0, pieces, kPiecesPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) found[p] = piece_of(p);
    });
    for (const Piece& piece : found) add(piece, out, all);
  }
  if (!figures) all.finite += numel;
}

}  // namespace

ValueStatistics statistics_of(const at::Tensor& value, bool figures) {
  ValueStatistics out;
  if (!value.defined()) return out;
  Figures all;
  out.fingerprint = kPrime;
  if (holds_sequence(value)) {
    const std::vector<at::Tensor>& elements = sequence_elements(value);
    out.dtype = to_dtype(sequence_element_type(value));
    out.shape = {static_cast<int64_t>(elements.size())};
    for (const at::Tensor& element : elements) add_tensor(element, figures, out, all);
  } else {
    out.dtype = to_dtype(value.scalar_type());
    out.shape = value.sizes().vec();
    add_tensor(value, figures, out, all);
  }
  out.finite = all.finite;
  out.nans = all.nans;
  out.infinities = all.infinities;
  if (figures && all.finite) {
    out.min = all.min;
    out.max = all.max;
    out.mean = all.mean;
    out.deviation = std::sqrt(all.squares / static_cast<double>(all.finite));
  }
  return out;
}

}  // namespace ortmodule
