// What work costs on a device beside other work there: one row for each kind of device, in prices.cpp.
//
// Passes decide with it what is worth a node: which values backward computes again (transforms/recompute.h), how much
// one generated kernel does (transforms/fuse.h), what stays on the host (placement/claims.cpp). A provider says which
// row is its own (placement/provider.h). Not here: measured times of kernels (runtime/step_cost.h).
#pragma once

#include <cstddef>
#include <string>

#include "ortmodule/export.h"

namespace ortmodule {

struct Prices {
  // A node whose operands lie on the host stays there while its results are no larger.
  double host_bytes = 0;
  // Arithmetic of products in the time that memory moves one byte: the peak over the bandwidth.
  double flops_per_byte = 10;
  // Bytes that memory moves in the shortest time of a kernel.
  double launch_bytes = 0;
  // Bytes that memory moves in the time that a device has nothing to do where the host waits for a result of its.
  double wait_bytes = 0;
  // Passes over memory that a kernel with transcendental functions or reductions counts for, where its record says no
  // other number.
  double not_cheap_passes = 4;
  // Passes that a conversion to another type counts for; most conversions of a host are computed where they are read.
  double conversion_passes = 0.05;
  // Of the step's time, what may be computed again without a budget.
  double recomputed_share = 0.03;
  // Bounds of a cluster: what it reads and holds stays within the caches, or the registers, and looking at it stays
  // cheap.
  size_t cluster_nodes = 24, cluster_instructions = 96, cluster_inputs = 16;
  // Whether a program serves normalizations that are one operator, so that they join clusters.
  bool whole_rows = false;
  // Whether there is something that runs programs; FusedKernel's own kernel has to be there too.
  bool runs_programs = true;

  bool operator==(const Prices&) const = default;
};

// The row of a type of device as torch names it ("cuda"); of one that launches CUDA kernels (cuda/tables.h) "cuda"'s,
// of any other the host's, but for the host's own work.
ORTMODULE_API const Prices& prices_of(const std::string& device_type);

}  // namespace ortmodule
