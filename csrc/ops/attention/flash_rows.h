// The element work of tiled attention: one row of a tile of scores at a time, vectorised, in fp32.
#pragma once

#include <cstdint>

namespace ortmodule {

// Rows of scores have room for n rounded up to whole vectors, and what lies beyond n there is written, too: the end of
// a row would cost as much as half of the rest.
constexpr int64_t kRowStep = 16;

// The largest of a row, -inf for an empty one. A NaN does not count: exp_row brings it back. -inf up to a whole vector.
float largest_in_row(float* s, int64_t n);
// s = s * scale (+ bias), and the same.
float scale_row(float* s, const float* bias, float scale, int64_t n);
// s = e^((s - shift) * scale) for scale > 0, of a row that was looked through as above; returns the sum.
float exp_row(float* s, float scale, float shift, int64_t n);
// s = e^(s * scale (+ bias) - lse).
void probability_row(float* s, const float* bias, float scale, float lse, int64_t n);
// s = e^((s - lse) * scale) for scale > 0. Whole vectors.
void raw_probability_row(float* s, float scale, float lse, int64_t n);
// p = 0 where the element's word is below the threshold.
void drop_row(float* p, const uint32_t* words, uint32_t threshold, int64_t n);
// dp = p * (dp - delta), the gradient of the scores. Whole vectors.
void score_grad_row(float* dp, const float* p, float delta, int64_t n);
// The same under dropout, and p becomes what v was multiplied with: with f = 0 or factor,
// dp = p * (dp * f - delta), p = p * f.
void dropped_score_grad_row(float* dp, float* p, const uint32_t* words, uint32_t threshold, float factor, float delta,
                            int64_t n);
// x *= factor
void multiply_row(float* x, float factor, int64_t n);
// sum += x
void add_row(float* sum, const float* x, int64_t n);
// out[i] = a b over n, for each of `rows` rows that lie `a_step` and `b_step` floats apart.
void dot_rows(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t rows, int64_t n, float* out);
float sum_row(const float* x, int64_t n);
// Fills words[64 * blocks] with the words of Philox blocks first, first + 1, ...
void philox_words(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words);

}  // namespace ortmodule
