// What the CUDA kernels that gather rows of a table and sum rows into it take (rows.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// y[i] = table[ids[i]]; rows are bytes, whatever their elements. A negative position counts from the table's end.
struct GatherRowsLaunch {
  int64_t count, row_bytes, table_rows;
  const void *table, *ids;  // int64[count]
  void* y;
};

// Sums of dy[count, width] by id into the table, which holds what they are added to. A row of the table is summed in
// the order of the rows of dy, so that runs give the same bits.
struct SumRowsLaunch {
  Element type;
  int64_t count, width, table_rows;
  int64_t skipped;  // an id whose rows are left out; below 0: none
  const void* dy;
  const void* ids;        // int64[count], ascending
  const void* positions;  // int64[count]: the row of dy that an id in this order belongs to, ascending for equal ids
  void* table;            // [table_rows, width]
  void* workspace;        // sum_rows_workspace() floats
};

constexpr int64_t kSumChunk = 64;

// Ids are taken in chunks: a sum that goes on behind a chunk's end is kept there, and so is one that came from before.
inline int64_t sum_rows_workspace(int64_t count, int64_t width) {
  return (count + kSumChunk - 1) / kSumChunk * 2 * width;
}

}  // namespace ortmodule::cuda
