// In which loop over a row each value of a program is computed, and which are held for later ones.
#pragma once

#include <set>
#include <vector>

#include "ops/fused/cuda_source.h"

namespace ortmodule {

// Note [Generated kernels]. Loop s computes the reductions of level s + 1; the last one what is stored.
class CudaSchedule {
 public:
  CudaSchedule(const FusedProgram& program, const CudaVariant& variant);

  int loops() const { return loops_; }
  bool held(int value) const { return held_[value] != 0; }
  // Whether loop s computes it, and does not have it from an earlier one.
  bool computed_in(int value, int s) const {
    return needed_[value].count(s) > 0 && (!held(value) || s == first_loop(value));
  }
  int first_loop(int value) const { return needed_[value].empty() ? -1 : *needed_[value].begin(); }
  // Reductions that must have ended before the value is known.
  int level(int value) const { return level_[value]; }
  bool used(int value) const { return used_[value] != 0; }
  // Reductions that end loop s.
  const std::vector<int>& reductions(int s) const { return reductions_[s]; }
  int held_count() const;

 private:
  void find_levels();
  void find_needs();
  bool is_row(int value) const { return variant_.by_rows && variant_.row[value]; }
  bool may_hold(int value) const;

  const FusedProgram& program_;
  const CudaVariant& variant_;
  int loops_ = 1;
  std::vector<int> level_;
  std::vector<char> held_, barred_, used_;
  std::vector<std::set<int>> needed_;  // per full value: the loops that read it
  std::vector<std::vector<int>> reductions_;
};

}  // namespace ortmodule
