#include "records/registry.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "base/status.h"
#include "records/registry_lock.h"

namespace ortmodule {
namespace {

bool is_empty_list(const AttributeValue& value) {
  const auto* ints = std::get_if<std::vector<int64_t>>(&value);
  const auto* floats = std::get_if<std::vector<double>>(&value);
  const auto* strings = std::get_if<std::vector<std::string>>(&value);
  return (ints && ints->empty()) || (floats && floats->empty()) || (strings && strings->empty());
}

}  // namespace

OpRecord& OpRecord::input(const std::string& name, Presence presence) {
  inputs_.push_back({name, presence, false, FormalInput::Gradient::kUndeclared});
  return *this;
}

OpRecord& OpRecord::host_input(const std::string& name, Presence presence) {
  inputs_.push_back({name, presence, true, FormalInput::Gradient::kNone});
  return *this;
}

OpRecord& OpRecord::output(const std::string& name, Presence presence) {
  outputs_.push_back({name, presence, false});
  return *this;
}

OpRecord& OpRecord::saved(const std::string& name) {
  outputs_.push_back({name, Presence::kOptional, true});
  return *this;
}

OpRecord& OpRecord::attr(const std::string& name, AttrKind kind) {
  attributes_.push_back({name, kind, false});
  return *this;
}

OpRecord& OpRecord::required_attr(const std::string& name, AttrKind kind) {
  attributes_.push_back({name, kind, true});
  return *this;
}

OpRecord& OpRecord::infer(InferFn fn) {
  infer_ = std::move(fn);
  return *this;
}

OpRecord& OpRecord::traits(uint32_t bits) {
  traits_ |= bits;
  return *this;
}

OpRecord& OpRecord::fuses(FusionFn fn) {
  fuses_ = fn;
  return *this;
}

OpRecord& OpRecord::fuses_rows(FusionFn fn) {
  fuses_over_rows_ = true;
  return fuses(fn);
}

OpRecord& OpRecord::recompute(RecomputeFormFn form) {
  recompute_ = form;
  return *this;
}

OpRecord& OpRecord::shares(SharesFn fn) {
  shares_ = fn;
  return *this;
}

OpRecord& OpRecord::flops(FlopsFn fn) {
  flops_ = fn;
  return *this;
}

OpRecord& OpRecord::passes(double count) {
  passes_ = count;
  return *this;
}

OpRecord& OpRecord::rows(const RowRule& rule) {
  rows_ = &rule;
  return *this;
}

OpRecord& OpRecord::grad(const std::vector<std::string>& inputs, GradFn fn) {
  for (const std::string& name : inputs) {
    auto it = std::find_if(inputs_.begin(), inputs_.end(), [&](const FormalInput& f) { return f.name == name; });
    ORTMODULE_INTERNAL(it != inputs_.end(), qualified_name(), " has no input '", name, "' to differentiate (", file_,
                       ")");
    it->gradient = FormalInput::Gradient::kDifferentiable;
  }
  grad_ = std::move(fn);
  return *this;
}

OpRecord& OpRecord::no_grad(const std::vector<std::string>& inputs) {
  for (const std::string& name : inputs) {
    auto it = std::find_if(inputs_.begin(), inputs_.end(), [&](const FormalInput& f) { return f.name == name; });
    ORTMODULE_INTERNAL(it != inputs_.end(), qualified_name(), " has no input '", name, "' (", file_, ")");
    it->gradient = FormalInput::Gradient::kNone;
  }
  return *this;
}

OpRecord& OpRecord::not_differentiable() {
  for (FormalInput& f : inputs_) f.gradient = FormalInput::Gradient::kNone;
  return *this;
}

OpRecord& OpRecord::body(BodyFn fn) {
  body_ = std::move(fn);
  return *this;
}

OpRecord& OpRecord::formerly(const std::string& name, int64_t first, int64_t last, UpgradeFn fn) {
  older_.push_back({name, first, last, std::move(fn)});
  return *this;
}

const FormalInput* OpRecord::formal_input(size_t i) const {
  if (i < inputs_.size()) return &inputs_[i];
  return !inputs_.empty() && inputs_.back().presence == Presence::kVariadic ? &inputs_.back() : nullptr;
}

size_t OpRecord::output_slot(const std::string& name) const {
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].name == name) return i;
  fail(ErrorCode::kInternal, qualified_name(), " declares no output '", name, "'");
}

size_t OpRecord::first_saved() const {
  size_t n = 0;
  while (n < outputs_.size() && !outputs_[n].saved) ++n;
  return n;
}

void OpRecord::check_complete() const {
  for (const FormalInput& f : inputs_) {
    ORTMODULE_INTERNAL(f.gradient != FormalInput::Gradient::kUndeclared, "operator ", qualified_name(), ": input '",
                       f.name, "' is neither differentiable nor declared no_grad (", file_, ")");
    ORTMODULE_INTERNAL(f.gradient != FormalInput::Gradient::kDifferentiable || grad_, "operator ", qualified_name(),
                       ": input '", f.name, "' is differentiable but there is no formula (", file_, ")");
  }
  ORTMODULE_INTERNAL(infer_, "operator ", qualified_name(), " has no type and shape rule (", file_, ")");
}

void OpRecord::check_node(const Node& node) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const FormalInput& f = inputs_[i];
    if (f.presence == Presence::kRequired)
      ORTMODULE_CHECK_GRAPH(node.input(i), "[", name_, "] the required input '", f.name, "' (number ", i,
                            ") is missing (", node.describe(), ")");
  }
  const bool variadic_in = !inputs_.empty() && inputs_.back().presence == Presence::kVariadic;
  ORTMODULE_CHECK_GRAPH(variadic_in || node.inputs().size() <= inputs_.size(), "[", name_, "] takes at most ",
                        inputs_.size(), " inputs, got ", node.inputs().size(), " (", node.describe(), ")");
  // Own gradient operators and ATen nodes keep a slot for each input of another operator, bodies for each outer value.
  const bool has_body = std::any_of(attributes_.begin(), attributes_.end(),
                                    [](const FormalAttribute& f) { return f.kind == AttrKind::kGraph; });
  const bool holes = has_body || domain_ == kAtenDomain || (domain_ == kOwnDomain && !grad_);
  if (variadic_in && !holes)
    for (size_t k = inputs_.size() - 1; k < node.inputs().size(); ++k)
      ORTMODULE_CHECK_GRAPH(node.input(k), "[", name_, "] input ", k, ", one of '", inputs_.back().name,
                            "', is missing (", node.describe(), ")");
  const bool variadic_out = !outputs_.empty() && std::any_of(outputs_.begin(), outputs_.end(), [](const auto& f) {
    return f.presence == Presence::kVariadic;
  });
  ORTMODULE_CHECK_GRAPH(variadic_out || node.outputs().size() <= outputs_.size(), "[", name_, "] has at most ",
                        outputs_.size(), " outputs, got ", node.outputs().size(), " (", node.describe(), ")");
  for (const FormalAttribute& f : attributes_) {
    const AttributeValue* value = node.find_attribute(f.name);
    ORTMODULE_CHECK_GRAPH(value || !f.required, "[", name_, "] the attribute '", f.name, "' is missing (",
                          node.describe(), ")");
    if (!value) continue;
    const bool list = f.kind == AttrKind::kInts || f.kind == AttrKind::kFloats || f.kind == AttrKind::kStrings;
    const bool empty_list = list && is_empty_list(*value);  // which may come without its kind
    ORTMODULE_CHECK_GRAPH(static_cast<size_t>(f.kind) == value->index() || empty_list, "[", name_, "] the attribute '",
                          f.name, "' is of kind ", attribute_kind(*value), " (", node.describe(), ")");
  }
}

std::shared_mutex& registry_mutex() {
  static std::shared_mutex mutex;
  return mutex;
}

Registry& Registry::instance() {
  static Registry registry;
  return registry;
}

OpRecord& Registry::add(const std::string& domain, const std::string& name, int since, const char* file) {
  records_.push_back(std::make_unique<OpRecord>(domain, name, since, file));
  by_name_[domain + "::" + name].push_back(records_.back().get());
  return *records_.back();
}

void Registry::check_once() const {
  static std::mutex first_check;
  const std::lock_guard<std::mutex> lock(first_check);
  if (checked_) return;
  for (const auto& record : records_) record->check_complete();
  for (const auto& [name, versions] : by_name_)
    for (size_t i = 0; i < versions.size(); ++i)
      for (size_t j = i + 1; j < versions.size(); ++j)
        ORTMODULE_INTERNAL(versions[i]->since() != versions[j]->since(), "operator ", name,
                           " is declared twice: ", versions[i]->file(), " and ", versions[j]->file());
  for (const auto& record : records_)
    for (const OlderForm& form : record->older_forms()) {
      ORTMODULE_INTERNAL(form.first <= form.last && (form.name != record->name() || form.last < record->since()),
                         "operator ", record->qualified_name(), " declares an older form that overlaps it (",
                         record->file(), ")");
      older_by_name_[form.name].push_back(&form);
    }
  checked_ = true;
}

const OpRecord* Registry::find(const std::string& domain, const std::string& op, int64_t opset) const {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  check_once();
  auto it = by_name_.find(domain + "::" + op);
  if (it == by_name_.end() && domain == kOwnDomain) {
    // A standard operator with saved outputs, as files hold it; its version is the newest we have.
    opset = INT64_MAX;
    it = by_name_.find("::" + op);
    if (it == by_name_.end()) it = by_name_.find("com.microsoft::" + op);
  }
  if (it == by_name_.end()) return nullptr;
  const OpRecord* best = nullptr;
  for (const OpRecord* record : it->second)
    if (record->since() <= opset && (!best || record->since() > best->since())) best = record;
  return best;
}

const OlderForm* Registry::find_older(const std::string& op, int64_t opset) const {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  check_once();
  const auto it = older_by_name_.find(op);
  if (it == older_by_name_.end()) return nullptr;
  for (const OlderForm* form : it->second)
    if (form->first <= opset && opset <= form->last) return form;
  return nullptr;
}

std::string Registry::versions(const std::string& op) const {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  check_once();
  std::map<int64_t, std::string> ranges;
  if (const auto it = older_by_name_.find(op); it != older_by_name_.end())
    for (const OlderForm* form : it->second)
      ranges[form->first] = form->first == form->last ? str(form->first) : str(form->first, " to ", form->last);
  int64_t since = INT64_MAX;
  if (const auto it = by_name_.find("::" + op); it != by_name_.end())
    for (const OpRecord* record : it->second) since = std::min<int64_t>(since, record->since());
  if (since != INT64_MAX) ranges[since] = str(since, " and later");
  std::string out;
  for (const auto& [first, text] : ranges) out += (out.empty() ? "" : ", ") + text;
  return out;
}

std::vector<const OpRecord*> Registry::all() const {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  check_once();
  std::vector<const OpRecord*> out;
  for (const auto& record : records_) out.push_back(record.get());
  std::sort(out.begin(), out.end(),
            [](const OpRecord* a, const OpRecord* b) { return a->qualified_name() < b->qualified_name(); });
  return out;
}

std::string Registry::suggestion(const std::string& domain, const std::string& op) const {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  size_t best = 3;  // more than two edits apart is another word
  std::string name;
  for (const auto& record : records_) {
    if (record->domain() != domain) continue;
    const std::string& other = record->name();
    std::vector<size_t> row(other.size() + 1);
    for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= op.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t substituted = diagonal + (op[i - 1] != other[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best) {
      best = row.back();
      name = other;
    }
  }
  return name;
}

}  // namespace ortmodule
