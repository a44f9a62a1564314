// Results in memory of their own.
//
// Note [Results]
// Whoever gets a result may write it. In eager it lies in memory of its own, or is a view of what the caller can reach.
// In the graph a value may be the very tensor of an input or of a constant (clone and torch.tensor are nothing to
// compute), or of another result; or two results may be views of one value because a pass has merged two. What is kept
// by nobody but the run is the result's own: how many hold a tensor and its memory tells, so that a result that was
// just computed costs two comparisons. A result that is a view of a value that backward reads counts its writes with
// it, as views do in eager, and backward finds out (TrainingAgent::Seen). Writes that nobody counts (through an array
// of numpy's) may not reach what backward reads, for which eager mostly keeps something else, the scores' softmax in a
// loss, say: the memory is copied when one is about to be made. Not here: views of what the caller gave
// (ortmodule/capture/result_views.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ortmodule {

// What backward reads of a result's memory. Held for as long as somebody has the result, so that no kernel of the
// backward overwrites it.
struct ReadResult {
  c10::Storage memory;                                  // of the saved slots
  c10::weak_intrusive_ptr<c10::StorageImpl> of_result;  // the caller's

  // Whether the result still shows it.
  bool is_shown() const;
};

struct ResultsApart {
  std::vector<int> viewed;  // saved slots that share memory with a result without being it
  std::vector<ReadResult> read;
};

// Copies those of the first `count` outputs that somebody else holds too: neither another output nor a slot of `saved`,
// or an output before them, which they share memory with and have another of `owners` than (both by an output's index;
// empty: any may share). Writes of an output and of what shares memory with it are counted together from here on.
ResultsApart set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<size_t>& owners,
                               std::vector<at::Tensor>& slots, const std::vector<int>& saved);
// The same for a run that keeps nothing.
void set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<size_t>& owners);

// Whether one of a run's inputs is a picture, or a weight, with channels last.
bool any_channels_last(const std::vector<at::Tensor>& inputs);

// Gives the first `count` outputs the order of elements that eager's have where no input lies with channels last: row
// by row. Convolutions on a device leave theirs with channels last (ops/conv/channels_last.h).
void set_row_by_row(std::vector<at::Tensor>& outputs, size_t count);

}  // namespace ortmodule
