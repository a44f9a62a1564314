#include "cuda/simt/shared.h"

#include <map>
#include <memory>
#include <vector>

namespace ortmodule::cuda::simt {
namespace {

constexpr char kPoison = static_cast<char>(0xCC);

struct Array {
  std::vector<double> bytes;  // aligned for what kernels keep
  std::vector<SharedCell> cells;
  uint64_t block = 0;  // whose this is
};

// Blocks reuse the memory of those before.
struct Arrays {
  std::map<const void*, Array> by_declaration;
  uint64_t block = 0;
  size_t used = 0, dynamic_bytes = 0;
};

thread_local Arrays* const arrays = new Arrays;
const char dynamic_declaration = 0;

bool ordered(int other, uint32_t block, uint32_t warp) {
  const Thread& self = *running;
  if (block != block_waits()) return true;
  if (other < 0 || static_cast<unsigned>(other) / kWarp != self.warp()) return false;
  return warp != warp_waits(self.warp());
}

std::string name(int thread) { return thread < 0 ? "several threads" : "thread " + std::to_string(thread); }

}  // namespace

SharedMemory shared_memory(const void* declaration, size_t elements, size_t element_bytes) {
  Array& array = arrays->by_declaration[declaration];
  if (array.block != arrays->block) {
    array.block = arrays->block;
    array.bytes.resize((elements * element_bytes + 15) / 16 * 2);
    std::memset(array.bytes.data(), kPoison, array.bytes.size() * sizeof(double));
    array.cells.assign(elements, SharedCell{});
    arrays->used += elements * element_bytes;
    if (arrays->used > kMostSharedBytes)
      fail(std::to_string(arrays->used) + " bytes of shared memory, of " + std::to_string(kMostSharedBytes));
  }
  return {reinterpret_cast<char*>(array.bytes.data()), array.cells.data()};
}

SharedMemory dynamic_shared_memory(size_t element_bytes, size_t* elements) {
  *elements = arrays->dynamic_bytes / element_bytes;
  return shared_memory(&dynamic_declaration, *elements, element_bytes);
}

void start_shared_memory() {
  ++arrays->block;
  arrays->used = 0;
}

void set_dynamic_shared(size_t bytes) { arrays->dynamic_bytes = bytes; }

void note_read(SharedCell& cell) {
  const int self = static_cast<int>(running->number), warp = static_cast<int>(running->warp());
  if (cell.writer == SharedCell::kNone) fail("shared memory is read that no thread has written");
  if (cell.writer != self && !ordered(cell.writer, cell.write_block, cell.write_warp))
    fail("a race: shared memory is read that " + name(cell.writer) + " wrote since the last barrier");
  const bool same_span = cell.reader != SharedCell::kNone && cell.read_block == block_waits();
  cell.reader = !same_span || cell.reader == self ? self : SharedCell::kSeveral;
  cell.reading_warp = !same_span || cell.reading_warp == warp ? warp : SharedCell::kSeveral;
  cell.read_block = block_waits();
  cell.read_warp = warp_waits(running->warp());
}

void note_write(SharedCell& cell) {
  const int self = static_cast<int>(running->number), warp = static_cast<int>(running->warp());
  if (cell.writer != SharedCell::kNone && cell.writer != self &&
      !ordered(cell.writer, cell.write_block, cell.write_warp))
    fail("a race: shared memory is written that " + name(cell.writer) + " wrote since the last barrier");
  if (cell.reader != SharedCell::kNone && cell.reader != self && cell.read_block == block_waits()) {
    const bool after_warp = cell.reading_warp == warp && cell.read_warp != warp_waits(running->warp());
    if (!after_warp)
      fail("a race: shared memory is written that " + name(cell.reader) + " read since the last barrier");
  }
  cell.writer = self;
  cell.write_block = block_waits();
  cell.write_warp = warp_waits(running->warp());
}

}  // namespace ortmodule::cuda::simt
