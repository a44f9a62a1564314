// Results in memory of their own.
//
// Note [Results]
// Whoever gets a result may write it. In eager it lies in memory of its own, or is a view of what the caller can reach.
// In the graph a value may be the very tensor of an input or of a constant (clone and torch.tensor are nothing to
// compute), or of another result. What is kept by nobody but the run is the result's own: how many hold a tensor and
// its memory tells, so that a result that was just computed costs two comparisons. A result that is a view of a value
// that backward reads counts its writes with it, as views do in eager, and backward finds out (TrainingAgent::Seen).
// Not here: views of what the caller gave (ortmodule/capture/result_views.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ortmodule {

// Copies those of the first `count` outputs that somebody else holds too: neither another output nor a slot of `saved`,
// or an output before them. Returns the saved slots that share memory with an output without being it; their writes are
// counted together from here on.
std::vector<int> set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<at::Tensor>& slots,
                                   const std::vector<int>& saved);

// Whether one of a run's inputs is a picture, or a weight, with channels last.
bool any_channels_last(const std::vector<at::Tensor>& inputs);

// Gives the first `count` outputs the order of elements that eager's have where no input lies with channels last: row
// by row. Convolutions on a device leave theirs with channels last (ops/conv/channels_last.h).
void set_row_by_row(std::vector<at::Tensor>& outputs, size_t count);

}  // namespace ortmodule
