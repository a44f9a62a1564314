#include "plan/separate_backwards.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "records/registry.h"

namespace ortmodule {
namespace {

// One set of outputs per value of the graph, as words of bits.
class SetsByValue {
 public:
  using Words = std::vector<uint64_t>;

  SetsByValue(size_t values, size_t outputs) : words_((outputs + 63) / 64), bits_(values * words_) {}

  void insert(const NodeArg& value, size_t output) { at(value)[output / 64] |= uint64_t{1} << (output % 64); }
  void add_to(Words& set, const NodeArg& value) const {
    for (size_t w = 0; w < words_; ++w) set[w] |= bits_[value.id() * words_ + w];
  }
  void add(const NodeArg& value, const Words& set) {
    for (size_t w = 0; w < words_; ++w) at(value)[w] |= set[w];
  }
  Words none() const { return Words(words_); }

 private:
  uint64_t* at(const NodeArg& value) { return &bits_[value.id() * words_]; }
  size_t words_;
  Words bits_;
};

bool is_empty(const SetsByValue::Words& set) {
  return std::all_of(set.begin(), set.end(), [](uint64_t word) { return word == 0; });
}

OutputSet unpacked(const SetsByValue::Words& set, size_t outputs) {
  OutputSet out(outputs);
  for (size_t k = 0; k < outputs; ++k) out[k] = (set[k / 64] >> (k % 64)) & 1;
  return out;
}

// Values whose elements are known from sizes and constants alone.
std::vector<char> known_from_sizes(const Graph& graph) {
  std::vector<char> known(graph.value_id_bound(), 0);
  graph.for_each([&](Node& node) {
    if (!node.record() || node.record()->has(kRandom)) return;
    const bool sizes = node.record()->has(kShapeOnly);
    bool all = !node.inputs().empty();
    for (const NodeArg* in : node.inputs()) all = all && (!in || in->constant() || known[in->id()]);
    if (sizes || all)
      for (const NodeArg* out : node.outputs())
        if (out) known[out->id()] = 1;
  });
  return known;
}

}  // namespace

SeparateBackwards separate_backwards(const Graph& graph, const std::vector<NodeArg*>& dys) {
  const std::vector<char> known = known_from_sizes(graph);
  SetsByValue carried(graph.value_id_bound(), dys.size()), needed(graph.value_id_bound(), dys.size());
  std::vector<char> is_dy(graph.value_id_bound(), 0), holds_elements(graph.value_id_bound(), 0);
  for (size_t k = 0; k < dys.size(); ++k) {
    if (!dys[k]) continue;
    carried.insert(*dys[k], k);
    is_dy[dys[k]->id()] = 1;
  }
  const auto of_forward = [&](const NodeArg& value) {
    if (value.constant() || is_dy[value.id()]) return false;
    return !value.producer() || value.producer()->phase() == Phase::kForward;
  };

  std::vector<Node*> backward;
  std::vector<SetsByValue::Words> carries;     // parallel to it
  std::set<SetsByValue::Words> read_together;  // few different ones
  graph.for_each([&](Node& node) {
    if (node.phase() != Phase::kBackward) return;
    SetsByValue::Words set = carried.none();
    bool reads = false;
    for (const NodeArg* in : node.inputs()) {
      if (!in) continue;
      carried.add_to(set, *in);
      reads = reads || (!known[in->id()] && (of_forward(*in) || holds_elements[in->id()]));
    }
    const bool again = is_empty(set);  // a forward value, computed once more
    for (const NodeArg* out : node.outputs()) {
      if (!out) continue;
      carried.add(*out, set);
      holds_elements[out->id()] = again && reads;
    }
    if (reads && !again) read_together.insert(set);
    backward.push_back(&node);
    carries.push_back(std::move(set));
  });

  SeparateBackwards result;
  SetsByValue::Words none = carried.none();
  std::vector<SetsByValue::Words> meets(dys.size(), none);
  for (const SetsByValue::Words& set : read_together)
    for (size_t k = 0; k < dys.size(); ++k)
      if ((set[k / 64] >> (k % 64)) & 1)
        for (size_t w = 0; w < set.size(); ++w) meets[k][w] |= set[w];
  for (const SetsByValue::Words& set : meets) result.meets.push_back(unpacked(set, dys.size()));

  for (size_t i = backward.size(); i-- > 0;) {
    SetsByValue::Words set = carries[i];
    if (is_empty(set))
      for (const NodeArg* out : backward[i]->outputs())
        if (out) needed.add_to(set, *out);
    for (const NodeArg* in : backward[i]->inputs())
      if (in) needed.add(*in, set);
  }
  for (const Node* node : backward)
    for (const NodeArg* in : node->inputs()) {
      if (!in || !of_forward(*in) || result.needs.count(in->name())) continue;
      SetsByValue::Words set = none;
      needed.add_to(set, *in);
      result.needs.emplace(in->name(), unpacked(set, dys.size()));
    }
  return result;
}

}  // namespace ortmodule
