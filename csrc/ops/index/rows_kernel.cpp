// Kernels of compact rows; see Note [Compact rows] beside the records. Lists of rows live in host memory's reach only
// where the CPU computes them: on other devices the lists are made on the host and copied.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/step_waits.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// -- lists ------------------------------------------------------------------------------------------------------------

// The rows that are marked and enough others to make the count a multiple of a step: a sixteenth of all rows, and less
// than a quarter more than is marked. All rows when 7/8 are marked.
at::Tensor listed(const std::vector<char>& marked) {
  const auto n = static_cast<int64_t>(marked.size());
  const int64_t count = std::count(marked.begin(), marked.end(), 1);
  const auto quarter = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)) / 4);
  const int64_t step = std::max<int64_t>(1, std::min((n + 15) / 16, quarter));
  int64_t kept = std::min(n, std::max<int64_t>(1, (count + step - 1) / step) * step);
  if (8 * kept >= 7 * n) kept = n;
  if (kept == n) return at::arange(n, at::TensorOptions(at::kLong));
  at::Tensor rows = at::empty({kept}, at::kLong);
  int64_t *out = rows.mutable_data_ptr<int64_t>(), spare = kept - count;
  for (int64_t r = 0; r < n; ++r)
    if (marked[static_cast<size_t>(r)] || spare-- > 0) *out++ = r;
  return rows;
}

at::Tensor rows_of(const at::Tensor& given, int64_t ignored) {
  const at::Tensor labels = given.to(at::kLong).contiguous();
  const auto* label = labels.const_data_ptr<int64_t>();
  std::vector<char> marked(static_cast<size_t>(labels.numel()));
  for (size_t r = 0; r < marked.size(); ++r) marked[r] = label[r] != ignored;
  return listed(marked);
}

// Whether a step may take all rows before it knows its labels.
//
// Labels on a device reach the host when the device has done what was queued before, so that the host, which would be a
// step ahead, waits at the head of each forward. All rows are right whatever the labels are; fewer save work. So after
// some steps whose lists were all rows the next ones take that for granted, and look at their labels when these are
// there: at the first list with fewer rows they wait again. The last bits of a sum over rows then depend on which steps
// came before, so that deterministic computing always waits.
class AllRows {
 public:
  bool expected(const at::Tensor& labels, const StepWaits& waits, int64_t ignored) {
    const std::lock_guard<std::mutex> lock(mutex_);
    look(ignored);
    if (streak_ < kStreak || at::globalContext().deterministicAlgorithms()) return false;
    if (!unseen_.defined()) {
      behind_ = waits.inputs_events();
      if (behind_.empty()) return false;
      unseen_ = labels;
    }
    return true;
  }

  void note(bool all) {
    const std::lock_guard<std::mutex> lock(mutex_);
    streak_ = all ? std::min(streak_ + 1, kStreak) : 0;
  }

 private:
  static constexpr int kStreak = 3;  // a list of fewer rows is seldom late then, where lengths vary

  void look(int64_t ignored) {
    if (!unseen_.defined()) return;
    for (const auto& event : behind_)
      if (!event->query()) return;
    if (rows_of(unseen_, ignored).numel() < unseen_.numel()) streak_ = 0;
    unseen_.reset();
    behind_.clear();
  }

  std::mutex mutex_;
  int streak_ = 0;
  at::Tensor unseen_;  // labels of a step that took all rows
  std::vector<std::shared_ptr<const c10::Event>> behind_;
};

Kernel label_rows(const Node& node) {
  return [ignored = node.get_int("ignore_index", -100), all = std::make_shared<AllRows>()](KernelContext& c) {
    const at::Tensor& labels = c.host(0);
    if (c.waits() && all->expected(labels, *c.waits(), ignored))
      return c.out(0, at::arange(labels.numel(), at::TensorOptions(at::kLong)));
    if (c.waits()) c.waits()->wait_for_inputs();
    at::Tensor rows = rows_of(labels, ignored);
    if (c.waits()) all->note(rows.numel() == labels.numel());
    c.out(0, std::move(rows));
  };
}

// A mask as visible(batch, query, key), whatever it broadcasts over.
class Visible {
 public:
  // `mask` may be undefined: everything is visible.
  Visible(const at::Tensor& mask, bool causal, int64_t batch, int64_t length) : causal_(causal), length_(length) {
    if (!mask.defined()) return;
    at::Tensor m = mask;
    if (m.scalar_type() != at::kBool) m = m.to(at::kFloat);
    while (m.dim() < 4) m = m.unsqueeze(0);
    boolean_ = m.scalar_type() == at::kBool;
    mask_ = m.expand({batch, m.size(1), length, length});
    same_queries_ = mask_.stride(2) == 0 && !causal;
  }

  // Whether every query of a batch item sees the same keys: one look at it is enough.
  bool same_queries() const { return same_queries_ || (!mask_.defined() && !causal_); }

  // Whether a query sees itself and every key before it, and nothing else.
  bool all_before() const { return !mask_.defined() && causal_; }

  // Marks what the query sees. An additive mask hides what lies 10,000 or more below the row's largest entry: the
  // exponential of such a difference is zero. A row that is hidden throughout is thereby visible throughout, which is
  // how softmax takes it where the number is finite.
  void mark(int64_t b, int64_t q, char* keys) const {
    const int64_t end = causal_ ? q + 1 : length_;
    if (!mask_.defined()) {
      std::fill(keys, keys + end, 1);
      return;
    }
    for (int64_t h = 0; h < mask_.size(1); ++h) {
      const int64_t at = b * mask_.stride(0) + h * mask_.stride(1) + q * mask_.stride(2), step = mask_.stride(3);
      if (boolean_) {
        const bool* row = mask_.const_data_ptr<bool>() + at;
        for (int64_t k = 0; k < end; ++k) keys[k] |= static_cast<char>(row[k * step]);
      } else {
        const float* row = mask_.const_data_ptr<float>() + at;
        float largest = row[0];
        for (int64_t k = 1; k < end; ++k) largest = std::max(largest, row[k * step]);
        for (int64_t k = 0; k < end; ++k)
          keys[k] |= static_cast<char>(row[k * step] > largest - 1e4f || row[k * step] == largest);
      }
    }
  }

 private:
  at::Tensor mask_;
  bool causal_, boolean_ = false, same_queries_ = false;
  int64_t length_;
};

// The closure for one batch item; `needed` [length] holds the seeds.
void close(const std::vector<Visible>& attentions, int64_t b, int64_t length, char* needed) {
  std::vector<char> asked(static_cast<size_t>(length), 0);
  bool first = true;
  int64_t seen = 0;  // keys that a query has seen which sees all before it
  for (bool grew = true; grew;) {
    grew = false;
    for (int64_t q = length - 1; q >= 0; --q) {  // the last query of a causal attention sees what the others see
      if (!needed[q] || asked[static_cast<size_t>(q)]) continue;
      asked[static_cast<size_t>(q)] = 1;
      grew = true;
      for (const Visible& attention : attentions) {
        const bool known = attention.same_queries() ? !first : attention.all_before() && q < seen;
        if (!known) attention.mark(b, q, needed);
        if (attention.all_before()) seen = std::max(seen, q + 1);
      }
      first = false;
    }
  }
}

Kernel attended_rows(const Node& node) {
  const auto seeds = static_cast<size_t>(node.get_int("seeds", 0));
  const std::vector<int64_t> causal = node.get_ints("causal"), masked = node.get_ints("masked");
  return [=](KernelContext& c) {
    const std::vector<int64_t> sizes = c.ints(0);
    const int64_t batch = sizes.at(0), length = sizes.at(1);
    constexpr int64_t kMost = int64_t{1} << 40;
    ORTMODULE_CHECK(batch >= 0 && length >= 0 && (length == 0 || batch <= kMost / length), kRuntime, "[AttendedRows] ",
                    batch, " sequences of ", length, " rows");
    std::vector<char> needed(static_cast<size_t>(batch * length), 0);
    ORTMODULE_CHECK(seeds < c.input_count(), kRuntime, "[AttendedRows] there are fewer than ", seeds, " lists of rows");
    for (size_t i = 0; i < seeds; ++i) {
      ORTMODULE_CHECK(c.has(1 + i), kRuntime, "[AttendedRows] list of rows ", i, " is missing");
      const at::Tensor rows = c.host(1 + i).contiguous();
      const auto* row = rows.const_data_ptr<int64_t>();
      for (int64_t k = 0; k < rows.numel(); ++k) needed.at(static_cast<size_t>(row[k])) = 1;
    }
    if (std::all_of(needed.begin(), needed.end(), [](char one) { return one != 0; })) return c.out(0, listed(needed));
    std::vector<Visible> attentions;
    size_t next = 1 + seeds;
    for (size_t i = 0; i < causal.size(); ++i) {
      const bool has_mask = i < masked.size() && masked[i] != 0;
      ORTMODULE_CHECK(!has_mask || c.has(next), kRuntime, "[AttendedRows] the mask of attention ", i, " is missing");
      attentions.emplace_back(has_mask ? c.in(next++) : at::Tensor(), causal[i] != 0, batch, length);
    }
    at::parallel_for(0, batch, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, length * length)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t b = begin; b < end; ++b) close(attentions, b, length, needed.data() + b * length);
                     });
    c.out(0, listed(needed));
  };
}

void relative_rows(KernelContext& c) {
  const at::Tensor inner = c.host(0).contiguous(), outer = c.host(1).contiguous();
  at::Tensor out = at::empty({inner.numel()}, at::kLong);
  const int64_t *in = inner.const_data_ptr<int64_t>(), *all = outer.const_data_ptr<int64_t>();
  auto* position = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0, k = 0; i < inner.numel(); ++i) {
    while (k < outer.numel() && all[k] < in[i]) ++k;
    ORTMODULE_CHECK(k < outer.numel() && all[k] == in[i], kRuntime, "[RelativeRows] row ", in[i],
                    " is missing in the larger list");
    position[i] = k;
  }
  c.out(0, std::move(out));
}

Kernel sliced_rows(const Node& node) {
  return [start = node.get_int("start", 0)](KernelContext& c) {
    const std::vector<int64_t> sizes = c.ints(1);
    const int64_t length = sizes.at(0), kept = sizes.at(1);
    ORTMODULE_CHECK(kept > 0, kRuntime, "[SlicedRows] ", kept, " rows are kept of each sequence");
    const at::Tensor rows = c.host(0).contiguous();
    at::Tensor out = at::empty_like(rows);
    const auto* in = rows.const_data_ptr<int64_t>();
    auto* to = out.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < rows.numel(); ++i) {
      const bool fits = !__builtin_mul_overflow(in[i] / kept, length, to + i) &&
                        !__builtin_add_overflow(to[i], start, to + i) &&
                        !__builtin_add_overflow(to[i], in[i] % kept, to + i);
      ORTMODULE_CHECK(fits, kRuntime, "[SlicedRows] row ", in[i], " of sequences of ", length, " has no number");
    }
    c.out(0, std::move(out));
  };
}

// -- into the compact form and back ------------------------------------------------------------------------------

int64_t product(at::IntArrayRef sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

std::vector<int64_t> with_rest(at::IntArrayRef lead, at::IntArrayRef rest) {
  std::vector<int64_t> sizes(lead.begin(), lead.end());
  sizes.insert(sizes.end(), rest.begin(), rest.end());
  return sizes;
}

// Rows are listed in rising order, each once, among `count`.
void check_rows(const at::Tensor& rows, int64_t count) {
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i)
    ORTMODULE_CHECK(row[i] > (i ? row[i - 1] : -1) && row[i] < count, kRuntime, "row number ", i, " is ", row[i],
                    "; rows should rise and lie below ", count);
}

// Calls copy(i, row) for each listed row, threaded by the bytes that a row has.
template <typename F>
void for_rows(const at::Tensor& rows, int64_t row_bytes, F&& copy) {
  const auto* row = rows.const_data_ptr<int64_t>();
  at::parallel_for(0, rows.numel(), std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_bytes)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) copy(i, row[i]);
                   });
}

// A row of x as pieces of `bytes` each: one, or (a transposed view: heads before positions) one per index of the first
// axis behind the leading ones. All strides are in bytes.
struct RowLayout {
  bool regular;  // x is of that kind
  int64_t pieces = 1, bytes, piece_stride = 0, inner = 1, outer_stride, inner_stride = 0;

  RowLayout(const at::Tensor& x, int64_t lead) {
    const auto item = static_cast<int64_t>(x.element_size());
    int64_t axis = x.dim() - 1, stride = 1;
    for (; axis >= lead && (x.stride(axis) == stride || x.size(axis) == 1); --axis) stride *= x.size(axis);
    bytes = stride * item;
    if (axis == lead) {
      pieces = x.size(axis);
      piece_stride = x.stride(axis--) * item;
    }
    regular = axis < lead && (lead == 1 || lead == 2);
    outer_stride = x.stride(0) * item;
    if (lead == 2) {
      inner = x.size(1);
      inner_stride = x.stride(1) * item;
    }
  }
};

Kernel gather_rows(const Node& node) {
  return [lead = node.get_int("lead", 1)](KernelContext& c) {
    const at::Tensor &x = c.in(0), rows = c.in(1).contiguous();
    const at::IntArrayRef front = x.sizes().slice(0, lead), rest = x.sizes().slice(lead);
    const int64_t n = product(front), m = rows.numel();
    const std::vector<int64_t> sizes = with_rest({m}, rest);
    if (m == n) return c.out(0, x.reshape(sizes));
    const RowLayout layout(x, lead);
    if (!x.is_cpu() || !layout.regular) return c.out(0, at::index_select(x.reshape(with_rest({n}, rest)), 0, rows));
    check_rows(rows, n);
    at::Tensor y = at::empty(sizes, x.options());
    if (y.numel() == 0) return c.out(0, std::move(y));
    const auto* from = static_cast<const char*>(x.const_data_ptr());
    auto* to = static_cast<char*>(y.mutable_data_ptr());
    for_rows(rows, layout.pieces * layout.bytes, [&](int64_t i, int64_t r) {
      const char* row = from + r / layout.inner * layout.outer_stride + r % layout.inner * layout.inner_stride;
      char* target = to + i * layout.pieces * layout.bytes;
      for (int64_t p = 0; p < layout.pieces; ++p)
        std::memcpy(target + p * layout.bytes, row + p * layout.piece_stride, static_cast<size_t>(layout.bytes));
    });
    c.out(0, std::move(y));
  };
}

// The rows of x at their places; all others are zero, or copies of x's first row.
template <bool zeros>
void spread(KernelContext& c, size_t lead) {
  const at::Tensor &x = c.in(0), rows = c.in(1).contiguous();
  std::vector<int64_t> front = c.ints(2);
  ORTMODULE_CHECK(lead <= front.size(), kRuntime, "there are ", front.size(), " sizes for ", lead, " leading axes");
  front.resize(lead);
  const std::vector<int64_t> sizes = with_rest(front, x.sizes().slice(1));
  const int64_t n = product(front), m = rows.numel();
  if (m == n) return c.out(0, x.reshape(sizes));
  if (m == 0 || product(x.sizes().slice(1)) == 0) return c.out(0, at::zeros(sizes, x.options()));
  if (!x.is_cpu()) {
    at::Tensor y = zeros ? at::zeros(with_rest({n}, x.sizes().slice(1)), x.options())
                         : x.slice(0, 0, 1).expand(with_rest({n}, x.sizes().slice(1))).contiguous();
    y.index_copy_(0, rows, x);
    return c.out(0, y.view(sizes));
  }
  check_rows(rows, n);
  ORTMODULE_CHECK(x.size(0) == m, kRuntime, "there are ", m, " row numbers for ", x.size(0), " rows");
  const at::Tensor source = x.contiguous(), y = at::empty(sizes, x.options());
  const int64_t bytes = product(x.sizes().slice(1)) * static_cast<int64_t>(x.element_size());
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  const auto* row = rows.const_data_ptr<int64_t>();
  // Task i writes listed row i and the gap before it; the last one the gap behind it too.
  for_rows(rows, bytes, [&](int64_t i, int64_t r) {
    const int64_t gap = i == 0 ? 0 : row[i - 1] + 1, end = i + 1 == m ? n : r + 1;
    for (int64_t k = gap; k < end; ++k) {
      if (k == r)
        std::memcpy(to + k * bytes, from + i * bytes, static_cast<size_t>(bytes));
      else if (zeros)
        std::memset(to + k * bytes, 0, static_cast<size_t>(bytes));
      else
        std::memcpy(to + k * bytes, from, static_cast<size_t>(bytes));
    }
  });
  c.out(0, y);
}

template <bool zeros>
Kernel make_spread(const Node& node) {
  return [lead = static_cast<size_t>(node.get_int("lead", 1))](KernelContext& c) { spread<zeros>(c, lead); };
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", LabelRows, "aten", label_rows);
ORTMODULE_KERNEL("ai.ortmodule", AttendedRows, "aten", attended_rows);
ORTMODULE_KERNEL("ai.ortmodule", RelativeRows, "aten", [](const Node&) -> Kernel { return relative_rows; });
ORTMODULE_KERNEL("ai.ortmodule", SlicedRows, "aten", sliced_rows);
ORTMODULE_KERNEL("ai.ortmodule", GatherRows, "aten", gather_rows);
ORTMODULE_KERNEL("ai.ortmodule", GatherRowsGrad, "aten", make_spread<true>);
ORTMODULE_KERNEL("ai.ortmodule", SpreadRows, "aten", make_spread<false>);

}  // namespace ortmodule
