// Kernel of GroupQueryAttention, composed of ATen operators that autograd can differentiate.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/rerun_kernel.h"
#include "ops/attention/composed.h"
#include "ops/attention/rotary.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

enum Input {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kInputs
};

std::vector<int64_t> host_ints(const at::Tensor& t) {
  const at::Tensor host = t.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

struct GroupQuery {
  explicit GroupQuery(const Node& node)
      : name("[GroupQueryAttention] (" + node.describe() + ")"),
        heads(node.get_int("num_heads", 0)),
        kv_heads(node.get_int("kv_num_heads", 0)),
        window(node.get_int("local_window_size", -1)),
        scale(node.get_float("scale", 0)),
        softcap(node.get_float("softcap", 0)),
        smooth(node.get_int("smooth_softmax", 0) != 0),
        rotates(node.get_int("do_rotary", 0) != 0) {
    rotary.interleaved = node.get_int("rotary_interleaved", 0) != 0;
    rotary.name = name;
  }

  Tensors operator()(Tensors in) const {
    in.resize(kInputs);
    at::Tensor q = in[kQuery], k = in[kKey], v = in[kValue];
    ORTMODULE_CHECK(q.dim() == 3 && k.defined() == v.defined() && in[kPastKey].defined() == in[kPastValue].defined(),
                    kRuntime, name, " query should have rank 3, key comes with value and past_key with past_value");
    if (!k.defined()) {
      ORTMODULE_CHECK(q.size(2) % (heads + 2 * kv_heads) == 0, kRuntime, name, " ", q.size(2),
                      " features do not divide over ", heads, " + 2 * ", kv_heads, " heads");
      const int64_t size = q.size(2) / (heads + 2 * kv_heads);
      const auto parts = q.split_with_sizes({heads * size, kv_heads * size, kv_heads * size}, 2);
      q = parts[0];
      k = parts[1];
      v = parts[2];
    }
    ORTMODULE_CHECK(k.dim() == 3 && v.dim() == 3 && k.sizes() == v.sizes() && k.size(0) == q.size(0) &&
                        k.size(1) == q.size(1) && k.size(2) * heads == q.size(2) * kv_heads,
                    kRuntime, name, " query ", q.sizes(), ", key ", k.sizes(), " and value ", v.sizes(), " do not fit");
    const int64_t batch = q.size(0), queries = q.size(1);
    const std::vector<int64_t> last = host_ints(in[kLengths]), totals = host_ints(in[kTotal]);
    ORTMODULE_CHECK(static_cast<int64_t>(last.size()) == batch && totals.size() == 1, kRuntime, name, " seqlens_k ",
                    in[kLengths].sizes(), " should hold one number per sequence, total_sequence_length one");
    const int64_t room = in[kPastKey].defined() ? in[kPastKey].size(-2) : 0, total = totals[0];
    // Where all there is are the queries themselves, shorter sequences are padded at their end.
    std::vector<int64_t> before;
    for (const int64_t at : last) {
      before.push_back(total == queries ? 0 : at + 1 - queries);
      ORTMODULE_CHECK(before.back() >= 0 && before.back() <= room && before.back() + queries <= total, kRuntime, name,
                      " a last position of ", at, " does not fit ", queries, " new positions, ", room,
                      " past ones and a total length of ", total);
    }
    const at::Tensor start = at::tensor(before, at::TensorOptions(at::kLong)).to(q.device());
    const at::Tensor place = start.unsqueeze(1).add(at::arange(queries, start.options()));  // [B, S]

    q = split_heads(q, heads, name);
    k = split_heads(k, kv_heads, name);
    v = split_heads(v, kv_heads, name);
    if (rotates) {
      ORTMODULE_CHECK(in[kCos].defined() && in[kSin].defined() && in[kCos].dim() == 2, kRuntime, name,
                      " do_rotary needs cos_cache and sin_cache of rank 2");
      Rotary turn = rotary;
      turn.dim = 2 * in[kCos].size(1);
      const at::Tensor positions = in[kPositions].defined() ? in[kPositions] : place;
      q = turn(q, in[kCos], in[kSin], positions);
      k = turn(k, in[kCos], in[kSin], positions);
    }
    const int64_t length = std::max(room, total);
    k = joined(in[kPastKey], k, before, length);
    v = joined(in[kPastValue], v, before, length);
    return {attend(q, k.narrow(2, 0, total), v.narrow(2, 0, total), place, in[kBias], in[kSink]), k, v};
  }

 private:
  // The past up to each sequence's start, the new rows, zeros up to `length`.
  at::Tensor joined(const at::Tensor& past, const at::Tensor& fresh, const std::vector<int64_t>& before,
                    int64_t length) const {
    if (past.defined())
      ORTMODULE_CHECK(past.dim() == 4 && past.size(0) == fresh.size(0) && past.size(1) == fresh.size(1) &&
                          past.size(3) == fresh.size(3),
                      kRuntime, name, " a past of ", past.sizes(), " does not fit ", fresh.sizes());
    Tensors rows;
    for (size_t b = 0; b < before.size(); ++b) {
      Tensors parts;
      const auto at = static_cast<int64_t>(b);
      if (before[b] > 0) parts.push_back(past[at].narrow(1, 0, before[b]));
      parts.push_back(fresh[at]);
      const int64_t rest = length - before[b] - fresh.size(2);
      if (rest > 0) parts.push_back(at::zeros({fresh.size(1), rest, fresh.size(3)}, fresh.options()));
      rows.push_back(at::cat(parts, 1));
    }
    return rows.empty() ? at::zeros({0, fresh.size(1), length, fresh.size(3)}, fresh.options()) : at::stack(rows);
  }

  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& place,
                    const at::Tensor& bias, const at::Tensor& sink) const {
    const double factor = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
    const at::Tensor keys = repeat_key_heads(k, heads / kv_heads), values = repeat_key_heads(v, heads / kv_heads);
    at::Tensor scores = at::mul(at::matmul(q, keys.transpose(-1, -2)), factor);
    if (softcap > 0) scores = at::mul(at::tanh(at::mul(scores, 1 / softcap)), softcap);
    if (bias.defined()) scores = at::add(scores, bias.narrow(-1, 0, std::min(bias.size(-1), k.size(2))));
    const at::Tensor key = at::arange(k.size(2), place.options()), row = place.unsqueeze(1).unsqueeze(-1);
    at::Tensor hidden = key.gt(row);
    if (window >= 0) hidden = hidden.logical_or(key.le(row.sub(window)));
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (!smooth && !sink.defined()) return merge_heads(at::matmul(safe_softmax(scores, std::nullopt), values));
    // One more score per row takes its share and is dropped.
    const at::Tensor extra = sink.defined() ? sink.view({1, heads, 1, 1}) : at::zeros({1, 1, 1, 1}, scores.options());
    scores = at::cat({scores, extra.to(scores.scalar_type()).expand({scores.size(0), heads, scores.size(2), 1})}, -1);
    return merge_heads(at::matmul(at::softmax(scores, -1).narrow(-1, 0, k.size(2)), values));
  }

  std::string name;
  int64_t heads, kv_heads, window;
  double scale, softcap;
  bool smooth, rotates;
  Rotary rotary;
};

TensorFunction group_query(const Node& node) {
  return [attention = GroupQuery(node)](const Tensors& in) { return attention(in); };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", GroupQueryAttention, "aten", function_kernel_of<group_query>);
ORTMODULE_KERNEL("ai.ortmodule", GroupQueryAttentionGrad, "aten", rerun_kernel_of<group_query>);

}  // namespace ortmodule
