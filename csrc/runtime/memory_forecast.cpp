#include "runtime/memory_forecast.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/value_bytes.h"
#include "plan/memory_packer.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// A storage while the plan is walked; `counted`: it is not the caller's.
struct Storage {
  int64_t bytes = 0;
  int holders = 0;  // slots
  bool counted = false;
  size_t block = SIZE_MAX;
};

class Walk {
 public:
  Walk(const TrainingProgram& program, const SymbolTable& sizes) : program_(program), sizes_(sizes) {
    slots_.resize(std::max(program.slot_count, program.full_backward ? program.full_backward->slot_count : 0));
  }

  MemoryForecast run() {
    for (const int slot : program_.input_slots) given(slot);
    half("forward", *program_.forward, out_.peak_forward);
    const std::unordered_set<int> saved(program_.saved_slots.begin(), program_.saved_slots.end());
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      if (!saved.count(static_cast<int>(slot))) let_go(static_cast<int>(slot));
    mark_saved();
    if (const auto& backward = program_.full_backward) {
      for (const int slot : backward->dy_slots) given(slot);
      now_ = out_.saved;
      half("backward", *backward->executor, out_.peak_backward);
    }
    for (ForecastBlock& block : out_.blocks)
      if (block.end == SIZE_MAX) block.end = clock_ + 1;
    pack();
    return std::move(out_);
  }

 private:
  void given(int slot) {
    if (slot >= 0 && !slots_[slot]) hold(slot, std::make_shared<Storage>());
  }

  void hold(int slot, std::shared_ptr<Storage> storage) {
    if (slots_[slot] == storage) return;
    let_go(slot);
    ++storage->holders;
    slots_[slot] = std::move(storage);
  }

  void let_go(int slot) {
    if (slot < 0 || !slots_[slot]) return;
    const std::shared_ptr<Storage> storage = std::move(slots_[slot]);
    slots_[slot] = nullptr;
    if (--storage->holders > 0 || !storage->counted) return;
    now_ -= storage->bytes;
    if (storage->block != SIZE_MAX) out_.blocks[storage->block].end = clock_;
  }

  void half(const char* name, const Executor& executor, int64_t& peak) {
    for (const auto& [slot, value] : executor.plan().constants) given(slot);
    const std::vector<Step>& steps = executor.plan().steps;
    peak = now_;
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::vector<std::shared_ptr<Storage>> made = storages_of(name, steps[i], executor.may_overwrite(i));
      for (size_t k = 0; k < made.size(); ++k)
        if (made[k]) hold(steps[i].outputs[k], made[k]);
      peak = std::max(peak, now_);
      ++clock_;
      for (const int slot : steps[i].release) let_go(slot);
    }
  }

  // Per output, the storage that it will have.
  std::vector<std::shared_ptr<Storage>> storages_of(const char* half, const Step& step, bool may_overwrite) {
    std::vector<std::shared_ptr<Storage>> made(step.outputs.size());
    std::vector<char> taken(step.inputs.size(), 0);
    for (size_t k = 0; k < made.size(); ++k) {
      if (step.outputs[k] < 0) continue;
      const NodeArg& value = *step.node->output(k);
      const std::optional<int64_t> bytes = bytes_of(value);
      if (const auto source = viewed(step, value, bytes)) {
        made[k] = source;
      } else if (const auto operand = may_overwrite ? overwritten(step, value, bytes, taken) : nullptr) {
        made[k] = operand;
      } else {
        made[k] = fresh(half, value, bytes);
      }
    }
    return made;
  }

  std::shared_ptr<Storage> viewed(const Step& step, const NodeArg& value, std::optional<int64_t> bytes) const {
    const OpRecord& record = *step.node->record();
    if (!record.has(kView) && !record.has(kIdentity)) return nullptr;
    const NodeArg* source = step.node->input(0);
    if (!source || step.inputs[0] < 0 || source->type().dtype != value.type().dtype) return nullptr;
    const std::optional<int64_t> whole = bytes_of(*source);
    // A reduction over no axis is its operand, one over some is not.
    if (record.has(kReduction) && whole != bytes) return nullptr;
    return slots_[step.inputs[0]];
  }

  // An operand of the same type and size that dies here and that nobody else holds.
  std::shared_ptr<Storage> overwritten(const Step& step, const NodeArg& value, std::optional<int64_t> bytes,
                                       std::vector<char>& taken) const {
    if (!bytes) return nullptr;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const int slot = step.inputs[i];
      if (slot < 0 || taken[i] || !step.last_use[i] || !slots_[slot]) continue;
      const Storage& storage = *slots_[slot];
      if (!storage.counted || storage.holders > 1 || storage.bytes != *bytes) continue;
      if (step.node->input(i)->type().dtype != value.type().dtype) continue;
      taken[i] = 1;
      return slots_[slot];
    }
    return nullptr;
  }

  std::shared_ptr<Storage> fresh(const char* half, const NodeArg& value, std::optional<int64_t> bytes) {
    auto storage = std::make_shared<Storage>();
    storage->counted = true;
    storage->bytes = bytes.value_or(0);
    out_.complete = out_.complete && bytes.has_value();
    now_ += storage->bytes;
    if (storage->bytes > 0) {
      storage->block = out_.blocks.size();
      out_.blocks.push_back({half, value.name(), value.producer(), storage->bytes, clock_, SIZE_MAX, 0, false});
    }
    return storage;
  }

  std::optional<int64_t> bytes_of(const NodeArg& value) const { return known_bytes(value.type(), sizes_); }

  void mark_saved() {
    std::unordered_set<const Storage*> seen;
    for (const int slot : program_.saved_slots) {
      const Storage* storage = slot < 0 ? nullptr : slots_[slot].get();
      if (!storage || !storage->counted || !seen.insert(storage).second) continue;
      out_.saved += storage->bytes;
      if (storage->block != SIZE_MAX) out_.blocks[storage->block].saved = true;
    }
  }

  void pack() {
    std::vector<BlockLifetime> lives;
    for (const ForecastBlock& block : out_.blocks)
      lives.push_back({static_cast<size_t>(block.bytes), static_cast<uint32_t>(block.first),
                       static_cast<uint32_t>(std::max(block.end, block.first + 1))});
    const Packing packing = pack_memory(lives);
    for (size_t i = 0; i < lives.size(); ++i) out_.blocks[i].offset = packing.offsets[i];
    out_.arena_bytes = packing.bytes;
  }

  const TrainingProgram& program_;
  const SymbolTable& sizes_;
  std::vector<std::shared_ptr<Storage>> slots_;
  MemoryForecast out_;
  int64_t now_ = 0;
  size_t clock_ = 0;
};

}  // namespace

MemoryForecast forecast_memory(const TrainingProgram& program, const SymbolTable& sizes) {
  return Walk(program, sizes).run();
}

}  // namespace ortmodule
