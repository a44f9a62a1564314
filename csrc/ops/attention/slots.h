// Which input and output of the attention operators is what; the records and the kernels read them by these names.
#pragma once

#include <cstddef>

namespace ortmodule {

// Of Attention, AttentionDropout and PhiloxAttention.
enum AttentionInput : size_t { kQuery, kKey, kValue, kMask, kPastKey, kPastValue };
// Of AttentionDropout and PhiloxAttention, which take no past.
constexpr size_t kRatio = 4, kRandomState = 5;

enum AttentionOutput : size_t { kResult, kPresentKey, kPresentValue, kScores, kLse };
constexpr size_t kPhiloxLse = 1;

enum AttentionGradInput : size_t {
  kGradOfResult,
  kGradQuery,
  kGradKey,
  kGradValue,
  kGradResult,
  kGradLse,
  kGradMask,
  kGradRatio,
  kGradRandomState,
};
enum AttentionGradOutput : size_t { kQueryGrad, kKeyGrad, kValueGrad, kMaskGrad };

}  // namespace ortmodule
