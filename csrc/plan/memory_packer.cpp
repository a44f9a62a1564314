#include "plan/memory_packer.h"

#include <algorithm>
#include <numeric>

namespace ortmodule {
namespace {

size_t round_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

bool overlap(const BlockLifetime& a, const BlockLifetime& b) { return a.first < b.end && b.first < a.end; }

// `packing` has the places of the blocks `placed`, in the order of their offsets; those of `order` follow.
Packing pack_in_order(const std::vector<BlockLifetime>& blocks, const std::vector<size_t>& order, size_t alignment,
                      Packing packing, std::vector<size_t> placed) {
  for (size_t index : order) {
    const BlockLifetime& block = blocks[index];
    const size_t bytes = round_up(block.bytes, alignment);
    size_t best = SIZE_MAX, best_gap = SIZE_MAX, free_from = 0;
    for (size_t other : placed) {
      if (!overlap(block, blocks[other])) continue;
      const size_t begin = packing.offsets[other];
      if (begin > free_from && begin - free_from >= bytes && begin - free_from < best_gap) {
        best_gap = begin - free_from;
        best = free_from;
      }
      free_from = std::max(free_from, begin + round_up(blocks[other].bytes, alignment));
    }
    const size_t offset = best != SIZE_MAX ? best : free_from;
    packing.offsets[index] = offset;
    packing.bytes = std::max(packing.bytes, offset + bytes);
    const auto later = [&](size_t at, size_t other) { return at < packing.offsets[other]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset, later), index);
  }
  return packing;
}

}  // namespace

size_t live_peak(const std::vector<BlockLifetime>& blocks) {
  // Ends come before starts of the same moment: lifetimes are half open.
  std::vector<std::pair<uint32_t, long>> events;
  for (const BlockLifetime& block : blocks) {
    if (block.end <= block.first) continue;
    events.emplace_back(block.first, static_cast<long>(block.bytes));
    events.emplace_back(block.end, -static_cast<long>(block.bytes));
  }
  std::sort(events.begin(), events.end());
  long now = 0, peak = 0;
  for (const auto& [moment, change] : events) peak = std::max(peak, now += change);
  return static_cast<size_t>(peak);
}

namespace {

// The smallest of several orders; `bound` is what none can undercut.
Packing pack_smallest(const std::vector<BlockLifetime>& blocks, const std::vector<size_t>& free, size_t alignment,
                      const Packing& start, const std::vector<size_t>& placed, size_t bound) {
  const auto sorted_by = [&](auto&& key) {
    std::vector<size_t> out = free;
    std::stable_sort(out.begin(), out.end(), [&](size_t a, size_t b) { return key(blocks[a]) > key(blocks[b]); });
    return pack_in_order(blocks, out, alignment, start, placed);
  };
  Packing best = sorted_by([](const BlockLifetime& b) { return static_cast<double>(b.bytes); });
  const auto consider = [&](Packing other) {
    if (other.bytes < best.bytes) best = std::move(other);
  };
  // What lives long and is large decides the arena's size; short blocks then fill the gaps.
  if (best.bytes > bound)
    consider(sorted_by([](const BlockLifetime& b) { return static_cast<double>(b.bytes) * (b.end - b.first); }));
  if (best.bytes > bound) consider(sorted_by([](const BlockLifetime& b) { return -static_cast<double>(b.first); }));
  if (best.bytes > bound)
    consider(sorted_by([](const BlockLifetime& b) { return static_cast<double>(b.end - b.first); }));
  return best;
}

}  // namespace

Packing pack_memory(const std::vector<BlockLifetime>& blocks, size_t alignment) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  Packing start;
  start.offsets.assign(blocks.size(), 0);
  return pack_smallest(blocks, order, alignment, start, {}, live_peak(blocks));
}

namespace {

// Those of `kept` lie in the first arena, in that order; the others are `free`.
PackingApart pack_around(std::vector<BlockLifetime> all, const std::vector<char>& apart,
                         const std::vector<size_t>& kept, const std::vector<size_t>& free, size_t alignment) {
  const size_t count = all.size();
  Packing start;
  start.offsets.assign(count, 0);
  std::vector<size_t> placed = kept;
  for (const size_t i : kept) {
    start.offsets[i] = start.bytes;
    start.bytes += round_up(all[i].bytes, alignment);
  }
  PackingApart out;
  out.first_bytes = start.bytes;
  // One line of addresses for both, with a block between the two that is always there: no other lies across.
  const size_t border = start.bytes ? alignment : 0;
  if (border) {
    placed.push_back(all.size());
    start.offsets.push_back(start.bytes);
    all.push_back({border, 0, UINT32_MAX});
    start.bytes += border;
  }
  const size_t second = start.bytes;
  Packing packing = pack_smallest(all, free, alignment, start, placed, live_peak(all));
  out.second_bytes = packing.bytes - second;
  for (size_t i = 0; i < count; ++i) {
    out.in_first.push_back(apart[i] || packing.offsets[i] < out.first_bytes);
    out.offsets.push_back(out.in_first[i] ? packing.offsets[i] : packing.offsets[i] - second);
  }
  return out;
}

}  // namespace

PackingApart pack_memory_apart(const std::vector<BlockLifetime>& blocks, const std::vector<char>& apart,
                               size_t alignment) {
  std::vector<size_t> kept, free;
  std::vector<BlockLifetime> all = blocks;
  for (size_t i = 0; i < all.size(); ++i) {
    (apart[i] ? kept : free).push_back(i);
    if (apart[i]) all[i].end = UINT32_MAX;
  }
  PackingApart best = pack_around(all, apart, kept, free, alignment);
  const size_t bound = live_peak(all);
  if (best.first_bytes + best.second_bytes <= bound + bound / 100) return best;
  // Whether what is made last lies behind or before decides which of the others fit until then. It takes as long again:
  // only where more than a hundredth is to be won.
  std::reverse(kept.begin(), kept.end());
  PackingApart other = pack_around(all, apart, kept, free, alignment);
  return other.second_bytes < best.second_bytes ? other : best;
}

}  // namespace ortmodule
