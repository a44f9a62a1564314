#include "counts.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <sstream>

#include "host_view.h"
#include "streams.h"

namespace guarded {
namespace {

struct Count {
  uint64_t launches = 0, bytes = 0;
};

std::mutex mutex;
std::map<std::string, Count> by_name;
std::atomic<uint64_t> waits{0};

// A tensor that repeats its elements has no more of them than its memory.
uint64_t bytes_of(const at::Tensor& t) {
  return t.device().type() == kDevice ? std::min<uint64_t>(t.nbytes(), t.storage().nbytes()) : 0;
}

uint64_t bytes_of(const torch::jit::Stack& values) {
  uint64_t bytes = 0;
  for (const c10::IValue& value : values)
    for (const at::Tensor& t : tensors_of(value)) bytes += bytes_of(t);
  return bytes;
}

void add(const std::string& name, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  Count& count = by_name[name];
  ++count.launches;
  count.bytes += bytes;
}

}  // namespace

void count_operator(const c10::OperatorHandle& op, const torch::jit::Stack& operands,
                    const torch::jit::Stack& results) {
  if (OwnWork::going_on()) return;
  const std::string& name = op.schema().name();
  const uint64_t read = bytes_of(operands), written = bytes_of(results);
  const bool picks =
      name == "aten::embedding" || name == "aten::index_select" || name == "aten::index" || name == "aten::gather";
  const bool fills = name == "aten::zero_" || name == "aten::fill_";
  add(name, fills ? written : picks ? std::min(read, written) + written : read + written);
}

void count_copy(const at::Tensor& from, const at::Tensor& to) {
  if (!OwnWork::going_on()) add("aten::copy_", bytes_of(from) + bytes_of(to));
}

void count_wait() {
  if (!OwnWork::going_on()) ++waits;
}

std::string told_counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::ostringstream out;
  out << "{\"waits\": " << waits << ", \"operators\": {";
  const char* between = "";
  for (const auto& [name, count] : by_name) {
    out << between << '"' << name << "\": {\"launches\": " << count.launches << ", \"bytes\": " << count.bytes << '}';
    between = ", ";
  }
  out << "}}";
  return out.str();
}

void reset_counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  by_name.clear();
  waits = 0;
}

}  // namespace guarded
