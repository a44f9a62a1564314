// Kernels of com.microsoft's normalizations of sums. "cpu": rows of floats, of which each is summed and normalized
// while it is in the cache; "aten": everything else, in ATen's operators.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "base/status.h"
#include "base/typed_error.h"
#include "kernels/cpu_simd.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"
#include "kernels/small_tensor.h"
#include "ops/norm/norm_rows.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor at_or_none(const Tensors& in, size_t i) { return i < in.size() ? in[i] : at::Tensor(); }

at::Tensor plus(const at::Tensor& sum, const at::Tensor& more) { return more.defined() ? at::add(sum, more) : sum; }

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

// y, mean, inverse deviation over the last axis
Tensors layer_norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta, double epsilon) {
  auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, gamma, beta, epsilon);
  return {y, widened(mean), widened(rstd)};
}

TensorFunction skip_layer_norm(const Node& node) {
  return [epsilon = node.get_float("epsilon", 1e-12)](const Tensors& in) -> Tensors {
    const at::Tensor sum = plus(at::add(in[0], in[1]), at_or_none(in, 4));
    const Tensors y = layer_norm(sum, in[2], at_or_none(in, 3), epsilon);
    return {y[0], y[1], y[2], sum};
  };
}

TensorFunction skip_rms_norm(const Node& node) {
  const bool forward = node.op() == "SkipSimplifiedLayerNormalization";
  ORTMODULE_CHECK(!forward || !node.output(1), kUnsupported,
                  "[SkipSimplifiedLayerNormalization] the output 'mean' is not computed (", node.describe(), ")");
  return [epsilon = node.get_float("epsilon", 1e-12)](const Tensors& in) -> Tensors {
    const at::Tensor sum = plus(at::add(in[0], in[1]), at_or_none(in, 3)), wide = widened(sum);
    const at::Tensor inverse = at::rsqrt(at::add(at::mean(wide.square(), {-1}, true), epsilon));
    const at::Tensor y = at::mul(at::mul(wide, inverse).to(sum.scalar_type()), in[2]).to(sum.scalar_type());
    return {y, at::Tensor(), inverse, sum};
  };
}

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg();
}

bool is_row(const at::Tensor& t, int64_t width) { return is_plain(t) && t.dim() == 1 && t.size(0) == width; }

const float* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// to = a + b + c; c may be null.
ORTMODULE_SIMD void add_row(const float* a, const float* b, const float* c, float* to, int64_t n) {
  if (c) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i] + c[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
  }
}

// Normalizes rows of which fill(r, to) writes row r; `of.x` is not read. The sums are kept where `sums` is given; means
// and inverse deviations where these are. beta may be null.
struct Sums {
  float *y, *sums, *mean, *inv_std;
  const float *gamma, *beta;
  int64_t rows, width;
  double epsilon;
  bool centers;
};

template <typename Fill>
void normalize_sums(const Sums& of, const Fill& fill) {
  at::parallel_for(0, of.rows, std::max<int64_t>(1, kNormGrain / of.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const y = of.y + r * of.width;
      float* const sum = of.sums ? of.sums + r * of.width : y;
      fill(r, sum);
      float mean = 0, inv_std = 0;
      const NormRows row{sum, of.gamma, 1, of.width};
      if (of.centers)
        normalize_row_range(row, of.beta, of.epsilon, y, &mean, &inv_std, 0, 1);
      else
        scale_row_by_rms(sum, of.gamma, of.width, of.epsilon, y, &inv_std);
      if (of.mean) of.mean[r] = mean;
      if (of.inv_std) of.inv_std[r] = inv_std;
    }
  });
}

// What a node of rows of floats writes: outputs y, mean and inverse deviation where `statistics` says so, and the sums
// at `sums`.
Sums outputs_of(KernelContext& c, const at::Tensor& y, bool statistics, size_t sums) {
  c10::DimVector ones(y.sizes().begin(), y.sizes().end());
  ones.back() = 1;
  Sums out{y.mutable_data_ptr<float>(), nullptr, nullptr, nullptr, nullptr, nullptr, 0, y.size(-1), 0, true};
  out.rows = y.numel() / out.width;
  const auto made = [&](size_t i, c10::IntArrayRef sizes) -> float* {
    if (!c.wants(i)) return nullptr;
    at::Tensor t = make_float(sizes);
    float* const data = t.mutable_data_ptr<float>();
    c.out(i, std::move(t));
    return data;
  };
  if (statistics) out.mean = made(1, ones);
  if (statistics) out.inv_std = made(2, ones);
  out.sums = made(sums, y.sizes());
  return out;
}

// False where the rows are not plain.
bool skip_rows(KernelContext& c, bool centers, double epsilon) {
  const at::Tensor &x = c.in(0), &skip = c.in(1), &gamma = c.in(2);
  const at::Tensor beta = centers ? c.in_or_undefined(3) : at::Tensor(), bias = c.in_or_undefined(centers ? 4 : 3);
  if (!is_plain(x) || !is_plain(skip) || x.dim() == 0 || x.numel() == 0 || x.sizes() != skip.sizes()) return false;
  const int64_t width = x.size(-1);
  if (width > kLongestNormRow || !is_row(gamma, width) || (beta.defined() && !is_row(beta, width)) ||
      (bias.defined() && !is_row(bias, width)))
    return false;
  const float *a = data_of(x), *b = data_of(skip), *added = data_of(bias);
  at::Tensor y = c.may_overwrite(0) ? x : make_float(x.sizes());
  Sums sums = outputs_of(c, y, true, 3);
  sums.gamma = data_of(gamma);
  sums.beta = data_of(beta);
  sums.epsilon = epsilon;
  sums.centers = centers;
  normalize_sums(sums, [&](int64_t r, float* to) { add_row(a + r * width, b + r * width, added, to, width); });
  c.out(0, std::move(y));
  return true;
}

template <bool centers>
Kernel make_skip(const Node& node) {
  Kernel general = function_kernel(centers ? skip_layer_norm(node) : skip_rms_norm(node));
  return [general = std::move(general), epsilon = node.get_float("epsilon", 1e-12)](KernelContext& c) {
    if (!skip_rows(c, centers, epsilon)) general(c);
  };
}

// -- embeddings ------------------------------------------------------------------------------------------------------

// Negative numbers count from the end, as Gather's do.
at::Tensor from_start(const at::Tensor& ids, const at::Tensor& table) {
  return at::where(ids.lt(0), at::add(ids, table.size(0)), ids);
}

void check_embedding(const at::Tensor& ids, const at::Tensor& segments, const at::Tensor& segment_embedding,
                     const std::string& name) {
  ORTMODULE_CHECK(ids.dim() == 2 && segments.defined() == segment_embedding.defined() &&
                      (!segments.defined() || segments.sizes() == ids.sizes()),
                  kRuntime,
                  "[EmbedLayerNormalization] input_ids should have rank 2, and segment_ids the same sizes, "
                  "with an embedding (",
                  name, ")");
}

at::Tensor counts_of(const at::Tensor& mask, const at::Tensor& ids) {
  return mask.defined() ? at::sum(mask, {1}, false, at::kInt) : at::zeros({ids.size(0)}, ids.options().dtype(at::kInt));
}

TensorFunction embed_layer_norm(const Node& node) {
  return [epsilon = node.get_float("epsilon", 1e-12), name = node.describe()](const Tensors& in) -> Tensors {
    const at::Tensor &ids = in[0], segments = at_or_none(in, 1), segment_embedding = at_or_none(in, 4),
                     given = at_or_none(in, 8);
    check_embedding(ids, segments, segment_embedding, name);
    const at::Tensor positions = given.defined() ? given : at::arange(ids.size(1), ids.options()).unsqueeze(0);
    const auto rows = [](const at::Tensor& table, const at::Tensor& which) {
      return at::embedding(table, from_start(which, table));
    };
    at::Tensor sum = at::add(rows(in[2], ids), rows(in[3], positions));
    if (segments.defined()) sum = at::add(sum, rows(segment_embedding, segments));
    return {layer_norm(sum, in[5], in[6], epsilon)[0], counts_of(at_or_none(in, 7), ids), sum};
  };
}

// A table of rows of floats, and which of them each token takes.
class Rows {
 public:
  Rows(const at::Tensor& table, const at::Tensor& ids, const std::string& name)
      : data_(data_of(table)), count_(table.size(0)), width_(table.size(1)), ids_(ids), name_(name) {
    if (ids_.scalar_type() == at::kLong)
      longs_ = ids_.const_data_ptr<int64_t>();
    else
      ints_ = ids_.const_data_ptr<int32_t>();
  }
  static bool fit(const at::Tensor& table, const at::Tensor& ids) {
    return is_plain(table) && table.dim() == 2 && ids.is_cpu() && ids.is_contiguous() &&
           (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt);
  }
  const float* row(int64_t i) const {
    const int64_t id = longs_ ? longs_[i] : ints_[i], at = id < 0 ? id + count_ : id;
    ORTMODULE_CHECK_INDEX(at >= 0 && at < count_, "[EmbedLayerNormalization] ", id, " is no row of a table of ", count_,
                          " (", name_, ")");
    return data_ + at * width_;
  }
  int64_t numel() const { return ids_.numel(); }

 private:
  const float* data_;
  int64_t count_, width_;
  at::Tensor ids_;
  const std::string& name_;
  const int64_t* longs_ = nullptr;
  const int32_t* ints_ = nullptr;
};

// False where the rows are not plain.
bool embed_rows(KernelContext& c, double epsilon, const std::string& name) {
  const at::Tensor &ids = c.in(0), &words = c.in(2), &positions = c.in(3), &gamma = c.in(5), &beta = c.in(6);
  const at::Tensor segments = c.in_or_undefined(1), segment_embedding = c.in_or_undefined(4),
                   given = c.in_or_undefined(8);
  check_embedding(ids, segments, segment_embedding, name);
  const at::Tensor places = given.defined() ? given : at::arange(ids.size(1), ids.options());
  const int64_t seq = ids.size(1);
  const bool fits = Rows::fit(words, ids) && Rows::fit(positions, places) &&
                    (!segments.defined() || Rows::fit(segment_embedding, segments));
  if (!fits || ids.numel() == 0 || (places.numel() != seq && places.numel() != ids.numel())) return false;
  const int64_t width = words.size(1);
  if (width == 0 || width > kLongestNormRow || positions.size(1) != width || !is_row(gamma, width) ||
      !is_row(beta, width) || (segments.defined() && segment_embedding.size(1) != width))
    return false;
  const Rows word(words, ids, name), place(positions, places, name);
  std::optional<Rows> segment;
  if (segments.defined()) segment.emplace(segment_embedding, segments, name);
  at::Tensor y = make_float({ids.size(0), seq, width});
  Sums sums = outputs_of(c, y, false, 2);
  sums.gamma = data_of(gamma);
  sums.beta = data_of(beta);
  sums.epsilon = epsilon;
  const bool shared = place.numel() == seq;
  normalize_sums(sums, [&](int64_t r, float* to) {
    add_row(word.row(r), place.row(shared ? r % seq : r), segment ? segment->row(r) : nullptr, to, width);
  });
  c.out(0, std::move(y));
  if (c.wants(1)) c.out(1, counts_of(c.in_or_undefined(7), ids));
  return true;
}

Kernel make_embed(const Node& node) {
  Kernel general = function_kernel(embed_layer_norm(node));
  return [general = std::move(general), epsilon = node.get_float("epsilon", 1e-12),
          name = node.describe()](KernelContext& c) {
    if (!embed_rows(c, epsilon, name)) general(c);
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", SkipLayerNormalization, "aten", function_kernel_of<skip_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", SkipLayerNormalization, "cpu", make_skip<true>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SkipLayerNormalizationGrad, "aten", rerun_kernel_of<skip_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", SkipSimplifiedLayerNormalization, "aten", function_kernel_of<skip_rms_norm>);
ORTMODULE_KERNEL("com.microsoft", SkipSimplifiedLayerNormalization, "cpu", make_skip<false>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SkipSimplifiedLayerNormalizationGrad, "aten", rerun_kernel_of<skip_rms_norm>);
ORTMODULE_KERNEL("com.microsoft", EmbedLayerNormalization, "aten", function_kernel_of<embed_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", EmbedLayerNormalization, "cpu", make_embed);
ORTMODULE_KERNEL("ai.ortmodule", EmbedLayerNormalizationGrad, "aten", rerun_kernel_of<embed_layer_norm>);

}  // namespace ortmodule
