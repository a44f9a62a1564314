// The loops of tile_ops.h, included once per instruction-set level by tile_ops_kernel.cpp, which sets LEVEL (a
// namespace), LEVEL_TARGET (a function attribute), LEVEL_BYTES (of a vector), LEVEL_SLEEF (the name of Sleef's function
// for such vectors) and LEVEL_SQRT.
//
// Formulas are those of ATen's CPU kernels, exponentials and the like are the same Sleef functions, so that fused and
// separate kernels differ by the contraction of a product and a sum at most.
// No include guard: it is meant to be included more than once.

namespace ortmodule::LEVEL {

typedef float V __attribute__((vector_size(LEVEL_BYTES)));
typedef float Loose __attribute__((vector_size(LEVEL_BYTES), aligned(4), may_alias));  // in memory, at any address
typedef int32_t Bits __attribute__((vector_size(LEVEL_BYTES)));
constexpr int64_t kLanes = LEVEL_BYTES / 4;

#define VECTOR_FUNCTION LEVEL_TARGET ORTMODULE_INLINE V

VECTOR_FUNCTION splat(float x) { return x - V{}; }
VECTOR_FUNCTION load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
VECTOR_FUNCTION v_sqrt(V x) { return LEVEL_SQRT(x); }
#define VECTOR_MATH(name)                                        \
  VECTOR_FUNCTION v_##name(V x) {                                \
    if (LEVEL_SLEEF(name)) return LEVEL_SLEEF(name)(x);          \
    for (int64_t k = 0; k < kLanes; ++k) x[k] = std::name(x[k]); \
    return x;                                                    \
  }
VECTOR_MATH(exp)
VECTOR_MATH(log)
VECTOR_MATH(tanh)
#undef VECTOR_MATH
// Abramowitz and Stegun 7.1.26 (error below 1.5e-7), which ATen takes for vectors of 16: 1 - t poly(t) exp(-x^2) with
// t = 1 / (1 + p |x|).
VECTOR_FUNCTION v_size(V x) { return (V)((Bits)x & INT32_MAX); }
VECTOR_FUNCTION v_erf(V x) {
  const V size = v_size(x), t = 1.0f / (0.3275911f * size + 1.0f);
  const V r = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  return (V)((Bits)(1.0f - r * t * v_exp(-(size * size))) | ((Bits)x & INT32_MIN));
}
VECTOR_FUNCTION flag(decltype(V{} < V{}) mask) { return mask ? splat(1) : splat(0); }
VECTOR_FUNCTION v_sigmoid(V x) { return 1.0f / (1.0f + v_exp(-x)); }
VECTOR_FUNCTION v_min(V x, V y) { return x != x ? x : (y < x || y != y ? y : x); }
VECTOR_FUNCTION v_max(V x, V y) { return x != x ? x : (y > x || y != y ? y : x); }

constexpr float kRootHalf = 0.70710678118654752f, kTanhScale = 0.79788456080286536f, kTanhCubic = 0.044715f;
constexpr float kBellHeight = 0.39894228040143268f;

VECTOR_FUNCTION v_gelu(V x) { return x * 0.5f * (1.0f + v_erf(x * kRootHalf)); }
VECTOR_FUNCTION v_gelu_grad(V dy, V x) {
  const V cdf = 0.5f * (1.0f + v_erf(x * kRootHalf));
  return dy * (cdf + x * (v_exp(x * x * -0.5f) * kBellHeight));
}
VECTOR_FUNCTION v_gelu_tanh(V x) { return 0.5f * x * (1.0f + v_tanh(kTanhScale * (x + kTanhCubic * (x * x * x)))); }
VECTOR_FUNCTION v_gelu_tanh_grad(V dy, V x) {
  const V square = x * x, t = v_tanh(kTanhScale * (x + kTanhCubic * (square * x)));
  const V right = 1.0f + t, left = 0.5f * x;
  const V inner = kTanhScale * (1.0f + 3.0f * kTanhCubic * square);
  return dy * (0.5f * right + left * (1.0f - t * t) * inner);
}
VECTOR_FUNCTION v_silu(V x) { return x / (1.0f + v_exp(-x)); }
VECTOR_FUNCTION v_silu_grad(V dy, V x) {
  const V s = v_sigmoid(x);
  return dy * s * (1.0f + x * (1.0f - s));
}

// To nearest, ties to even: half of the last place that stays is added, less one bit where that place is even, and the
// bits below it are cleared. NaN stays as it is.
LEVEL_TARGET ORTMODULE_INLINE V v_round_bits(V x, int dropped) {
  const Bits bits = (Bits)x, last = (bits >> dropped) & 1;
  const V rounded = (V)((bits + ((1 << (dropped - 1)) - 1) + last) & ~((1 << dropped) - 1));
  return x != x ? x : rounded;
}
VECTOR_FUNCTION v_round_bfloat16(V x) { return v_round_bits(x, 16); }
VECTOR_FUNCTION v_round_half(V x) {
  const Bits sign = (Bits)x & INT32_MIN;
  const V size = (V)((Bits)x ^ sign);
  // Below 2^-14 numbers are multiples of 2^-24, which is the last place of 0.5.
  const V small = (size + 0.5f) - 0.5f, normal = v_round_bits(size, 13);
  const V rounded = size < 0x1p-14f ? small : (normal > 65504.0f ? splat(HUGE_VALF) : normal);
  return (V)((Bits)rounded | sign);
}

LEVEL_TARGET ORTMODULE_INLINE V rest(TileOperand o, int64_t at, int64_t n) {
  if (o.single) return splat(*o.data);
  alignas(LEVEL_BYTES) float buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = o.data[at + i];
  return load(buffer);
}

// The plain loop, where every operand is in memory, is apart from what needs stack memory: its call has to be cheap.
// Elsewhere a single operand is a vector in memory that the loop reads again and again: one loop serves every mix.
#define TILE_OP(name, count, expression)                                                                              \
  LEVEL_TARGET __attribute__((noinline)) void name##_mixed(float* d, TileOperand ox, [[maybe_unused]] TileOperand oy, \
                                                           [[maybe_unused]] TileOperand oz, int64_t i, int64_t n) {   \
    const V sx = splat(*ox.data), sy = count > 1 ? splat(*oy.data) : V{};                                             \
    const V sz = count > 2 ? splat(*oz.data) : V{};                                                                   \
    const float* px = ox.single ? reinterpret_cast<const float*>(&sx) : ox.data;                                      \
    [[maybe_unused]] const float* py = oy.single ? reinterpret_cast<const float*>(&sy) : oy.data;                     \
    [[maybe_unused]] const float* pz = oz.single ? reinterpret_cast<const float*>(&sz) : oz.data;                     \
    const int64_t nx = !ox.single;                                                                                    \
    [[maybe_unused]] const int64_t ny = !oy.single, nz = !oz.single;                                                  \
    for (; i + kLanes <= n; i += kLanes) {                                                                            \
      const V x = load(px + i * nx);                                                                                  \
      [[maybe_unused]] const V y = count > 1 ? load(py + i * ny) : V{};                                               \
      [[maybe_unused]] const V z = count > 2 ? load(pz + i * nz) : V{};                                               \
      *reinterpret_cast<Loose*>(d + i) = (expression);                                                                \
    }                                                                                                                 \
    if (i == n) return;                                                                                               \
    const V x = rest(ox, i, n - i);                                                                                   \
    [[maybe_unused]] const V y = count > 1 ? rest(oy, i, n - i) : V{};                                                \
    [[maybe_unused]] const V z = count > 2 ? rest(oz, i, n - i) : V{};                                                \
    const V result = (expression);                                                                                    \
    for (int64_t k = 0; i < n; ++i, ++k) d[i] = result[k];                                                            \
  }                                                                                                                   \
  LEVEL_TARGET void name(float* d, TileOperand ox, [[maybe_unused]] TileOperand oy, [[maybe_unused]] TileOperand oz,  \
                         int64_t n) {                                                                                 \
    int64_t i = 0;                                                                                                    \
    if (!(ox.single || (count > 1 && oy.single) || (count > 2 && oz.single))) {                                       \
      for (; i + kLanes <= n; i += kLanes) {                                                                          \
        const V x = load(ox.data + i);                                                                                \
        [[maybe_unused]] const V y = count > 1 ? load(oy.data + i) : V{};                                             \
        [[maybe_unused]] const V z = count > 2 ? load(oz.data + i) : V{};                                             \
        *reinterpret_cast<Loose*>(d + i) = (expression);                                                              \
      }                                                                                                               \
      if (i == n) return;                                                                                             \
    }                                                                                                                 \
    name##_mixed(d, ox, oy, oz, i, n);                                                                                \
  }

TILE_OP(add, 2, x + y)
TILE_OP(sub, 2, x - y)
TILE_OP(mul, 2, x* y)
TILE_OP(div, 2, x / y)
TILE_OP(minimum, 2, v_min(x, y))
TILE_OP(maximum, 2, v_max(x, y))
TILE_OP(less, 2, flag(x < y))
TILE_OP(less_equal, 2, flag(x <= y))
TILE_OP(greater, 2, flag(x > y))
TILE_OP(greater_equal, 2, flag(x >= y))
TILE_OP(equal, 2, flag(x == y))
TILE_OP(both, 2, x* y)
TILE_OP(either, 2, v_max(x, y))
TILE_OP(unequal, 2, flag(x != y))
TILE_OP(where, 3, x != 0.0f ? y : z)
TILE_OP(negated, 1, 1.0f - x)
TILE_OP(neg, 1, -x)
TILE_OP(absolute, 1, x < 0.0f ? -x : x + 0.0f)
TILE_OP(square_root, 1, v_sqrt(x))
TILE_OP(rsqrt, 1, 1.0f / v_sqrt(x))
TILE_OP(reciprocal, 1, 1.0f / x)
TILE_OP(exponential, 1, v_exp(x))
TILE_OP(logarithm, 1, v_log(x))
TILE_OP(tangent, 1, v_tanh(x))
TILE_OP(error_function, 1, v_erf(x))
TILE_OP(sigmoid, 1, v_sigmoid(x))
TILE_OP(relu, 1, x < 0.0f ? V{} : x)
TILE_OP(gelu, 1, v_gelu(x))
TILE_OP(gelu_tanh, 1, v_gelu_tanh(x))
TILE_OP(silu, 1, v_silu(x))
TILE_OP(gelu_grad, 2, v_gelu_grad(x, y))
TILE_OP(gelu_tanh_grad, 2, v_gelu_tanh_grad(x, y))
TILE_OP(silu_grad, 2, v_silu_grad(x, y))
TILE_OP(tanh_grad, 2, x * (1.0f - y * y))
TILE_OP(sigmoid_grad, 2, x * ((1.0f - y) * y))
TILE_OP(round_bfloat16, 1, v_round_bfloat16(x))
TILE_OP(round_half, 1, v_round_half(x))

#define TILE_PAIRS(name, first)            \
  TILE_OP(name##_add, 3, (first) + z)      \
  TILE_OP(name##_sub, 3, (first) - z)      \
  TILE_OP(name##_sub_from, 3, z - (first)) \
  TILE_OP(name##_mul, 3, (first) * z)
TILE_PAIRS(add, x + y)
TILE_PAIRS(sub, x - y)
TILE_PAIRS(mul, x* y)
#undef TILE_PAIRS

LEVEL_TARGET void rotate(float* d, const float* x, int64_t rows, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t r = 0; r < rows; ++r, d += width, x += width) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const V first = load(x + i), second = load(x + half + i);
      *reinterpret_cast<Loose*>(d + i) = -second;
      *reinterpret_cast<Loose*>(d + half + i) = first;
    }
    for (; i < half; ++i) {
      const float first = x[i], second = x[half + i];
      d[i] = -second;
      d[half + i] = first;
    }
  }
}

// The sum of element(i) for i < n, in four vectors of partial sums.
#define TILE_SUM(name, parameters, vector_element, element)                             \
  LEVEL_TARGET float name parameters {                                                  \
    V sums[4] = {};                                                                     \
    int64_t i = 0;                                                                      \
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)                                        \
      for (int k = 0; k < 4; ++k) {                                                     \
        const int64_t at = i + k * kLanes;                                              \
        sums[k] += vector_element;                                                      \
      }                                                                                 \
    for (int64_t at = i; at + kLanes <= n; i = at += kLanes) sums[0] += vector_element; \
    const V all = (sums[0] + sums[1]) + (sums[2] + sums[3]);                            \
    float total = 0;                                                                    \
    for (int64_t k = 0; k < kLanes; ++k) total += all[k];                               \
    for (; i < n; ++i) total += element;                                                \
    return total;                                                                       \
  }
TILE_SUM(sum, (const float* x, int64_t n), load(x + at), x[i])
TILE_SUM(dot, (const float* x, const float* y, int64_t n), load(x + at) * load(y + at), x[i] * y[i])
#undef TILE_SUM

// In the order of Opcode.
constexpr TileOps kOps{{nullptr,
                        add,
                        sub,
                        mul,
                        div,
                        minimum,
                        maximum,
                        less,
                        less_equal,
                        greater,
                        greater_equal,
                        equal,
                        both,
                        either,
                        unequal,
                        where,
                        negated,
                        neg,
                        absolute,
                        square_root,
                        rsqrt,
                        reciprocal,
                        exponential,
                        logarithm,
                        tangent,
                        error_function,
                        sigmoid,
                        relu,
                        gelu,
                        gelu_tanh,
                        silu,
                        gelu_grad,
                        gelu_tanh_grad,
                        silu_grad,
                        tanh_grad,
                        sigmoid_grad,
                        round_bfloat16,
                        round_half,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr},
                       {{add_add, add_sub, add_sub_from, add_mul},
                        {sub_add, sub_sub, sub_sub_from, sub_mul},
                        {mul_add, mul_sub, mul_sub_from, mul_mul}},
                       rotate,
                       sum,
                       dot};

#undef TILE_OP
#undef VECTOR_FUNCTION

}  // namespace ortmodule::LEVEL

#undef LEVEL
#undef LEVEL_TARGET
#undef LEVEL_BYTES
#undef LEVEL_SLEEF
#undef LEVEL_SQRT
