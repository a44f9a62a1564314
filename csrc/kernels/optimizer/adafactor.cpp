// Adafactor: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018, algorithms 4
// and 5.
//
// torch.optim.Adafactor's form, and with the setting `transformers` that of the transformers library, which adds eps1
// to the squared gradients (torch bounds the estimate by it), can scale the rate by the parameter and by the step or
// not, has a first moment, and takes weight decay off after its own scaling. The gradient is read three times, nothing
// of its size is kept: for the sums by row and column, for the norm of the update, for the update.
//
// Settings: lr, beta2_decay, eps1, eps2, d, weight_decay; transformers: beta1 and has_beta1, scale_parameter,
// relative_step, warmup_init.
#include <cmath>
#include <memory>

#include "kernels/optimizer/exact.h"
#include "kernels/optimizer/rules.h"

namespace ortmodule {
namespace {

// Sums by column are kept for each piece of a matrix: so many at most.
constexpr int64_t kMostPieces = 64;

template <typename T>
ORTMODULE_INLINE double squares_of(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}
// The same, added to sums by column on the way.
template <typename T>
ORTMODULE_INLINE double squares_and_columns(const T* x, int64_t n, double* columns) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    columns[i] += square;
    sum += square;
  }
  return sum;
}
ORTMODULE_SIMD double squares(const float* x, int64_t n) { return squares_of(x, n); }
ORTMODULE_SIMD double squares(const double* x, int64_t n) { return squares_of(x, n); }
ORTMODULE_SIMD double squares(const float* x, int64_t n, double* columns) { return squares_and_columns(x, n, columns); }
ORTMODULE_SIMD double squares(const double* x, int64_t n, double* columns) {
  return squares_and_columns(x, n, columns);
}

// u = g / sqrt(max(estimate, least)), the estimate row * column / mean of a matrix (row is divided already) or, of a
// vector, what is in `columns`.
template <typename T>
ORTMODULE_INLINE void updates_of(const T* g, int64_t n, T factor, T row, const T* columns, T least, T* u) {
  for (int64_t i = 0; i < n; ++i) {
    const T estimate = row * columns[i];
    u[i] = g[i] * factor / root(estimate > least ? estimate : least);
  }
}
ORTMODULE_SIMD void updates(const float* g, int64_t n, float factor, float row, const float* columns, float least,
                            float* u) {
  updates_of(g, n, factor, row, columns, least, u);
}
ORTMODULE_SIMD void updates(const double* g, int64_t n, double factor, double row, const double* columns, double least,
                            double* u) {
  updates_of(g, n, factor, row, columns, least, u);
}

template <typename T>
struct Move {
  T length;         // what the update is multiplied by
  T before, after;  // factors of the parameter, the second one less one
  T beta1, rest1;
  bool has_beta1, torch;
};

template <typename T>
ORTMODULE_INLINE void move_by(const Move<T>& m, int64_t n, const T* u, T* p, T* first) {
  for (int64_t i = 0; i < n; ++i) {
    if (m.torch) {
      p[i] = fused(m.length, u[i], p[i] * m.before);
    } else {
      T change = u[i] * m.length;
      if (m.has_beta1) change = first[i] = fused(m.rest1, change, first[i] * m.beta1);
      p[i] = fused(m.after, p[i], p[i]) - change;
    }
  }
}
ORTMODULE_SIMD void move(const Move<float>& m, int64_t n, const float* u, float* p, float* first) {
  move_by(m, n, u, p, first);
}
ORTMODULE_SIMD void move(const Move<double>& m, int64_t n, const double* u, double* p, double* first) {
  move_by(m, n, u, p, first);
}

// One parameter: `matrices` of `rows` x `columns`, or a vector, which is one row.
template <typename T>
class Factored {
 public:
  explicit Factored(const Prepared& p)
      : p_(p),
        transformers_(p.setting("transformers") != 0),
        is_matrix_(p.tensors.states[1].defined()),
        columns_(is_matrix_ ? p.tensors.parameter.size(-1) : p.size),
        rows_(is_matrix_ ? p.tensors.parameter.size(-2) : 1),
        all_rows_(p.size / columns_),
        weight_(std::pow(p.step, p.setting("beta2_decay"))) {
    // Whole matrices where they are small, so that a column's sum is one piece's; else rows of one matrix.
    const int64_t large = std::max(kPiece, p.size / kMostPieces + 1);
    const int64_t matrix = rows_ * columns_;
    for (int64_t row = 0; row < all_rows_;) {
      const int64_t left = rows_ - row % rows_;
      const int64_t count = matrix <= large ? rows_ * std::max<int64_t>(1, large / matrix)
                                            : std::min(left, std::max<int64_t>(1, large / columns_));
      pieces_.push_back({row, std::min(row + count, all_rows_)});
      row = pieces_.back().end;
    }
  }

  void step() {
    double parameter = 0, update = 0;
    std::vector<double> parts(pieces_.size());
    if (is_matrix_) sum_squares();
    for_each_index(pieces_.size(), [&](size_t i) { parts[i] = parameter_squares(pieces_[i]); });
    for (double part : parts) parameter += part;
    update_variance();
    for_each_index(pieces_.size(), [&](size_t i) { parts[i] = update_squares(pieces_[i]); });
    for (double part : parts) update += part;
    const Move<T> how =
        move_for(std::sqrt(parameter / static_cast<double>(p_.size)), std::sqrt(update / static_cast<double>(p_.size)));
    for_each_index(pieces_.size(), [&](size_t i) { apply(pieces_[i], how); });
  }

 private:
  struct Rows {
    int64_t begin, end;
  };

  // Calls work(begin, n) for the runs of a piece's row.
  template <typename Work>
  void for_each_part(int64_t row, const Work& work) const {
    for (int64_t c = 0; c < columns_; c += kRun) work(row * columns_ + c, std::min(kRun, columns_ - c));
  }

  void sum_squares() {
    row_.assign(static_cast<size_t>(all_rows_), 0);
    column_.assign(static_cast<size_t>(all_rows_ / rows_ * columns_), 0);
    const bool shared = rows_ * columns_ > std::max(kPiece, p_.size / kMostPieces + 1);
    std::vector<std::vector<double>> parts(shared ? pieces_.size() : 0);
    for_each_index(pieces_.size(), [&](size_t i) {
      if (shared) parts[i].assign(static_cast<size_t>(columns_), 0);
      T scratch[kRun];
      for (int64_t row = pieces_[i].begin; row < pieces_[i].end; ++row) {
        double* const sums = shared ? parts[i].data() : column_.data() + row / rows_ * columns_;
        for_each_part(row, [&](int64_t at, int64_t n) {
          row_[row] += squares(opened(p_.gradient, at, n, scratch), n, sums + at % columns_);
        });
      }
    });
    for (size_t i = 0; i < parts.size(); ++i)
      for (int64_t c = 0; c < columns_; ++c) column_[pieces_[i].begin / rows_ * columns_ + c] += parts[i][c];
  }

  double parameter_squares(const Rows& piece) const {
    double sum = 0;
    T scratch[kRun];
    for (int64_t row = piece.begin; row < piece.end; ++row)
      for_each_part(row, [&](int64_t at, int64_t n) { sum += squares(opened(p_.parameter, at, n, scratch), n); });
    return sum;
  }

  // The running mean of squares moves towards `mean` by `weight_`; what it is then is returned.
  T moved(T variance, double mean) const {
    const auto weight = static_cast<T>(weight_);
    const T now = static_cast<T>(mean);
    if (transformers_) return fused(static_cast<T>(1 - (1 - weight_)), now, variance * static_cast<T>(1 - weight_));
    return weight < T(0.5) ? fused(weight, now - variance, variance) : fused(variance - now, 1 - weight, now);
  }

  // States of rows, columns or elements, and what the estimates are made of.
  void update_variance() {
    const double square = p_.factor * p_.factor, eps1 = p_.setting("eps1");
    const double added = transformers_ ? eps1 : 0;
    least_ = static_cast<T>(transformers_ ? 0 : eps1 * eps1);
    if (!is_matrix_) return update_vector(square, added);
    const auto walk = [&](const Column& state, std::vector<double>& sums, int64_t size, std::vector<T>& kept) {
      kept.resize(sums.size());
      T scratch[kRun];
      for (int64_t at = 0; at < static_cast<int64_t>(sums.size()); at += kRun) {
        const int64_t n = std::min(kRun, static_cast<int64_t>(sums.size()) - at);
        T* const values = opened(state, at, n, scratch);
        for (int64_t i = 0; i < n; ++i)
          kept[at + i] = values[i] = moved(values[i], sums[at + i] * square / static_cast<double>(size) + added);
        close(state, at, n, values);
      }
    };
    walk(p_.states[0], row_, columns_, rows_now_);
    walk(p_.states[1], column_, rows_, columns_now_);
    for (int64_t m = 0; m < all_rows_; m += rows_) {
      double mean = 0;
      for (int64_t i = m; i < m + rows_; ++i) mean += rows_now_[i];
      T divisor = static_cast<T>(mean / static_cast<double>(rows_));
      if (!transformers_) divisor = std::max(divisor, static_cast<T>(eps1));
      for (int64_t i = m; i < m + rows_; ++i) rows_now_[i] /= divisor;
    }
  }

  void update_vector(double square, double added) {
    columns_now_.resize(static_cast<size_t>(p_.size));
    rows_now_.assign(static_cast<size_t>(all_rows_), T(1));
    T gradients[kRun], scratch[kRun];
    for_each_part(0, [&](int64_t at, int64_t n) {
      const T* const g = opened(p_.gradient, at, n, gradients);
      T* const variance = opened(p_.states[0], at, n, scratch);
      for (int64_t i = 0; i < n; ++i) {
        const double mean = static_cast<double>(g[i]) * static_cast<double>(g[i]) * square + added;
        columns_now_[at + i] = variance[i] = moved(variance[i], mean);
      }
      close(p_.states[0], at, n, variance);
    });
  }

  const T* estimates(int64_t row) const { return columns_now_.data() + row / rows_ * columns_; }

  // Calls work(at, n, updates) for the runs of a piece.
  template <typename Work>
  void for_each_update(const Rows& piece, const Work& work) const {
    T scratch[kRun], u[kRun];
    for (int64_t row = piece.begin; row < piece.end; ++row)
      for_each_part(row, [&](int64_t at, int64_t n) {
        const T* const g = opened(p_.gradient, at, n, scratch);
        updates(g, n, static_cast<T>(p_.factor), rows_now_[row], estimates(row) + at % columns_, least_, u);
        work(at, n, u);
      });
  }

  double update_squares(const Rows& piece) const {
    double sum = 0;
    for_each_update(piece, [&](int64_t, int64_t n, const T* u) { sum += squares(u, n); });
    return sum;
  }

  Move<T> move_for(double parameter_size, double update_size) const {
    const double t = p_.step, decay = p_.setting("weight_decay"), clip = std::max(1.0, update_size / p_.setting("d"));
    const double scale = std::max(p_.setting("eps2"), parameter_size), given = p_.setting("lr");
    Move<T> m{};
    m.torch = !transformers_;
    m.before = m.torch && decay != 0 ? static_cast<T>(1 - given * decay) : T(1);
    if (m.torch) {
      m.length = static_cast<T>(-scale * std::min(given, 1 / std::sqrt(t)) / clip);
      return m;
    }
    double rate = given;
    if (p_.setting("relative_step") != 0)
      rate = std::min(p_.setting("warmup_init") != 0 ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
    if (p_.setting("scale_parameter") != 0) rate *= scale;
    m.length = static_cast<T>(rate / clip);
    m.has_beta1 = p_.setting("has_beta1") != 0;
    m.beta1 = static_cast<T>(p_.setting("beta1"));
    m.rest1 = static_cast<T>(1 - p_.setting("beta1"));
    m.after = static_cast<T>(-decay * rate);
    return m;
  }

  void apply(const Rows& piece, const Move<T>& how) const {
    T parameters[kRun], firsts[kRun];
    for_each_update(piece, [&](int64_t at, int64_t n, const T* u) {
      T* const p = opened(p_.parameter, at, n, parameters);
      T* const first = opened(p_.states[2], at, n, firsts);
      move(how, n, u, p, first);
      close(p_.states[2], at, n, first);
      close(p_.parameter, at, n, p, p_.copy ? Rounding{} : p_.rounding);
      close(p_.copy, at, n, p, p_.rounding);
    });
  }

  const Prepared& p_;
  const bool transformers_, is_matrix_;
  const int64_t columns_, rows_, all_rows_;
  const double weight_;
  T least_{};
  std::vector<Rows> pieces_;
  std::vector<double> row_, column_;       // sums of squares of the gradient
  std::vector<T> rows_now_, columns_now_;  // variances; of rows over their mean
};

}  // namespace

void adafactor_step(const std::vector<Prepared>& parameters) {
  for (const Prepared& p : parameters) {
    if (p.size == 0) continue;
    in_its_type(p, [&]<typename T>(T) { Factored<T>(p).step(); });
  }
}

}  // namespace ortmodule
