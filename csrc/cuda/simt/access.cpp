#include "cuda/simt/access.h"

#include <algorithm>
#include <atomic>
#include <set>

namespace ortmodule::cuda::simt {
namespace {

std::atomic<Reach> the_reach{nullptr};

thread_local AccessLog the_log;

}  // namespace

void set_reach(Reach reach) { the_reach = reach; }

Reached reach(const void* address) {
  const Reach function = the_reach;
  if (function) return function(address);
  return {static_cast<char*>(const_cast<void*>(address)), nullptr, nullptr};
}

void Traffic::add(const Traffic& other) {
  loaded += other.loaded;
  stored += other.stored;
  requests += other.requests;
  touched += other.touched;
  needed += other.needed;
}

AccessLog& AccessLog::of_this_thread() { return the_log; }

void AccessLog::start(bool count_sectors) {
  traffic_ = {};
  count_sectors_ = count_sectors;
  places_.clear();
}

void AccessLog::add(const void* address, size_t bytes, bool store, Site site) {
  (store ? traffic_.stored : traffic_.loaded) += bytes;
  if (!count_sectors_) return;
  Place& place = places_[{running->warp(), site.number * 2 + store}];
  const uint32_t time = place.times[running->lane()]++;
  if (place.requests.size() <= time) place.requests.resize(time + 1);
  place.requests[time].parts.emplace_back(reinterpret_cast<uint64_t>(address), static_cast<uint32_t>(bytes));
}

void AccessLog::end_block() {
  for (auto& [where, place] : places_) {
    for (Request& request : place.requests) {
      std::sort(request.parts.begin(), request.parts.end());
      std::set<uint64_t> sectors;
      uint64_t bytes = 0, end = 0;
      for (const auto& [address, size] : request.parts) {
        for (uint64_t s = address / kSector; s <= (address + size - 1) / kSector; ++s) sectors.insert(s);
        const uint64_t first = std::max(address, end);  // one byte that several lanes ask for is one
        if (address + size > first) bytes += address + size - first;
        end = std::max(end, address + size);
      }
      ++traffic_.requests;
      traffic_.touched += sectors.size();
      traffic_.needed += (bytes + kSector - 1) / kSector;
    }
  }
  places_.clear();
}

}  // namespace ortmodule::cuda::simt
