// Parameters that were checked, cut into pieces for threads and into runs for rules.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/optimizer/columns.h"
#include "kernels/optimizer/update.h"

namespace ortmodule {

struct Prepared {
  const UpdateGroup* group = nullptr;
  Updated tensors;  // dense, their elements in one order
  int64_t size = 0;
  bool doubles = false;          // what it is computed in; else floats
  double step = 0;               // this one's number, from 1 on
  bool steps_on_device = false;  // the device knows it
  double factor = 1;             // of the gradient: its sign, and the divisor's inverse
  bool writes_gradient = false;
  Column parameter, gradient, copy;
  std::array<Column, kMostStates> states;
  Rounding rounding;

  double setting(const char* name) const { return group->setting(name); }
};

// A run of elements in the type that they are computed in.
template <typename T>
struct Run {
  int64_t n;
  T* parameter;
  T* gradient;
  std::array<T*, kMostStates> states;
};

// Elements of a piece: worth a thread's while, and the same for any number of threads, so that sums over pieces are.
constexpr int64_t kPiece = 16 * kRun;

struct Piece {
  size_t parameter;
  int64_t begin, end;
};
std::vector<Piece> pieces_of(const std::vector<Prepared>& parameters);

// work(i) for each i below n on ATen's threads.
template <typename Work>
void for_each_index(size_t n, const Work& work) {
  at::parallel_for(0, static_cast<int64_t>(n), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(static_cast<size_t>(i));
  });
}

// What a pass over a parameter leaves changed.
struct Writes {
  bool parameter = false;  // and its copy
  bool states = false;
};

// Opens the columns of [begin, end) a run at a time and calls work(run); then writes back.
template <typename T, typename Work>
void for_each_run(const Prepared& p, int64_t begin, int64_t end, Writes writes, const Work& work) {
  constexpr size_t kColumns = 2 + kMostStates;
  alignas(64) T scratch[kColumns][kRun];
  bool direct = is_direct<T>(p.parameter) && is_direct<T>(p.gradient) && !p.copy;
  for (const Column& state : p.states) direct = direct && is_direct<T>(state);
  const int64_t most = direct ? end - begin : kRun;
  for (int64_t at = begin; at < end; at += most) {
    const int64_t n = std::min(most, end - at);
    Run<T> run{n, opened(p.parameter, at, n, scratch[0]), opened(p.gradient, at, n, scratch[1]), {}};
    for (size_t i = 0; i < kMostStates; ++i) run.states[i] = opened(p.states[i], at, n, scratch[2 + i]);
    work(run);
    if (writes.states)
      for (size_t i = 0; i < kMostStates; ++i) close(p.states[i], at, n, run.states[i]);
    if (!writes.parameter) continue;
    close(p.parameter, at, n, run.parameter, p.copy ? Rounding{} : p.rounding);
    close(p.copy, at, n, run.parameter, p.rounding);
  }
}

// Calls work with a zero of the type that the parameter is computed in.
template <typename Work>
void in_its_type(const Prepared& p, const Work& work) {
  if (p.doubles)
    work(double{});
  else
    work(float{});
}

// A step in which each element and its states change by themselves: work_of(p, T{}) is the work over runs of p.
template <typename WorkOf>
void step_by_elements(const std::vector<Prepared>& parameters, const WorkOf& work_of) {
  const std::vector<Piece> pieces = pieces_of(parameters);
  for_each_index(pieces.size(), [&](size_t i) {
    const Prepared& p = parameters[pieces[i].parameter];
    in_its_type(p, [&]<typename T>(T type) {
      for_each_run<T>(p, pieces[i].begin, pieces[i].end, {.parameter = true, .states = true}, work_of(p, type));
    });
  });
}

}  // namespace ortmodule
