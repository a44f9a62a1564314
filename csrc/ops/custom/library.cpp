// Opens shared libraries of custom operators and checks what they describe, before anything is registered.
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "ops/custom/custom_ops.h"
#include "records/grad_context.h"

namespace ortmodule {
namespace {

constexpr const char* kEntry = "OrtmoduleRegisterCustomOps";

class Library {
 public:
  explicit Library(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_) return;
    const char* reason = dlerror();
    fail(ErrorCode::kInvalidArgument, "'", path, "' is no library that can be loaded: ", reason ? reason : "unknown");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle_) dlclose(handle_);
  }

  void* symbol(const char* name) const { return dlsym(handle_, name); }
  // The library stays loaded: records point into it.
  void keep() { handle_ = nullptr; }

 private:
  const std::string& path_;
  void* handle_;
};

const OrtmoduleCustomOpLibrary& description(const Library& library, const std::string& path) {
  void* entry = library.symbol(kEntry);
  if (!entry && library.symbol("RegisterCustomOps"))
    fail(ErrorCode::kInvalidArgument, "the library '", path,
         "' is one for ONNX Runtime (it exports RegisterCustomOps); ", "ORTModule's export ", kEntry,
         ", see <ortmodule/custom_op.h>");
  ORTMODULE_CHECK_ARG(entry, "the library '", path, "' has no symbol ", kEntry, "; see <ortmodule/custom_op.h>");
  const auto* described = reinterpret_cast<const OrtmoduleCustomOpLibrary* (*)()>(entry)();
  ORTMODULE_CHECK_ARG(described, kEntry, " of '", path, "' returned null");
  ORTMODULE_CHECK_ARG(described->abi_version == ORTMODULE_CUSTOM_OP_ABI_VERSION, "the library '", path,
                      "' was built for version ", described->abi_version,
                      " of the interface for custom operators, this "
                      "ORTModule has version ",
                      ORTMODULE_CUSTOM_OP_ABI_VERSION,
                      "; build it again with the header of this installation (ortmodule.include_dir())");
  ORTMODULE_CHECK_ARG(described->struct_size >= sizeof(OrtmoduleCustomOpLibrary), "the library '", path,
                      "' gives a struct_size of ", described->struct_size, " for its description");
  return *described;
}

// Checks one operator; every message begins with the library and the operator.
class OpCheck {
 public:
  OpCheck(const std::string& path, const OrtmoduleCustomOp* op) : path_(path), op_(op) {}

  void run() {
    demand(op_ != nullptr, "a null operator");
    demand(op_->struct_size >= sizeof(OrtmoduleCustomOp), str("a struct_size of ", op_->struct_size));
    demand(op_->name && *op_->name, "an operator without a name");
    demand(op_->domain != nullptr, "no domain");
    static const std::set<std::string> reserved{"", "ai.onnx", "ai.onnx.ml", kOwnDomain, kAtenDomain};
    demand(!reserved.count(op_->domain), str("the domain '", op_->domain, "' is not for custom operators"));
    demand(op_->since_version > 0, str("a since_version of ", op_->since_version));
    demand(op_->compute != nullptr, "no function `compute`");
    parameters("input", op_->inputs, op_->input_count);
    parameters("output", op_->outputs, op_->output_count);
    demand(op_->output_count > 0, "no output");
    demand(op_->infer || op_->input_count > 0, "no function `infer` and no input whose type the outputs could have");
    gradient();
  }

 private:
  void demand(bool holds, const std::string& text) const {
    if (holds) return;
    const bool named = op_ && op_->name && op_->domain;
    fail(ErrorCode::kInvalidArgument, "the library '", path_, "' describes ",
         named ? str(op_->domain, "::", op_->name, " with ") : std::string(), text);
  }

  void parameters(const char* what, const OrtmoduleParameter* list, size_t count) const {
    demand(list || count == 0, str("a null list of ", what, "s"));
    std::set<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      demand(list[i].name && names.insert(list[i].name).second, str(what, " ", i, " without a name of its own"));
      demand(!(list[i].flags & ORTMODULE_VARIADIC) || i + 1 == count,
             str("a variadic ", what, " that is not the last"));
    }
  }

  static bool in_range(size_t i, const OrtmoduleParameter* list, size_t count) {
    return i < count || (count > 0 && (list[count - 1].flags & ORTMODULE_VARIADIC));
  }

  void gradient() const {
    demand(op_->gradient || op_->gradient_count == 0, "a null gradient");
    std::set<std::string> between;
    for (size_t k = 0; k < op_->gradient_count; ++k) {
      const OrtmoduleGradientNode& node = op_->gradient[k];
      demand(node.op && *node.op && node.output_count > 0, str("gradient node ", k, " without an operator or output"));
      for (size_t i = 0; i < node.input_count; ++i) {
        const std::string name = node.inputs[i] ? node.inputs[i] : "";
        const auto wire = wired(name);
        const bool is_input = wire && wire->first == "I";
        const bool known = name.empty() || (!wire && between.count(name)) ||
                           (is_input && in_range(wire->second, op_->inputs, op_->input_count)) ||
                           (wire && (wire->first == "O" || wire->first == "GO") &&
                            in_range(wire->second, op_->outputs, op_->output_count));
        demand(known, str("a gradient whose node ", node.op, " reads '", name, "', which is not there"));
      }
      for (size_t i = 0; i < node.output_count; ++i) {
        const std::string name = node.outputs[i] ? node.outputs[i] : "";
        const auto wire = wired(name);
        demand(!wire || (wire->first == "GI" && in_range(wire->second, op_->inputs, op_->input_count)),
               str("a gradient whose node ", node.op, " writes '", name, "'"));
        if (!wire) between.insert(name);
      }
    }
  }

  const std::string& path_;
  const OrtmoduleCustomOp* op_;
};

}  // namespace

std::vector<std::string> load_custom_ops(const std::string& given) {
  static std::mutex one_at_a_time;
  static auto& loaded = *new std::map<std::string, std::vector<std::string>>;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  std::error_code error;
  ORTMODULE_CHECK_ARG(std::filesystem::is_regular_file(given, error), "there is no file '", given, "'");
  const std::string path = std::filesystem::canonical(given);
  if (const auto found = loaded.find(path); found != loaded.end()) return found->second;

  Library library(path);
  const OrtmoduleCustomOpLibrary& described = description(library, path);
  ORTMODULE_CHECK_ARG(described.ops || described.op_count == 0, "the library '", path,
                      "' gives a null list of operators");
  std::vector<const OrtmoduleCustomOp*> ops;
  std::set<std::string> seen;
  std::vector<std::string> names;
  for (size_t i = 0; i < described.op_count; ++i) {
    OpCheck(path, described.ops[i]).run();
    const OrtmoduleCustomOp& op = *described.ops[i];
    names.push_back(str(op.domain, "::", op.name));
    ORTMODULE_CHECK_ARG(seen.insert(str(names.back(), " ", op.since_version)).second, "the library '", path,
                        "' describes ", names.back(), " twice");
    ops.push_back(&op);
  }
  register_custom_ops(ops, path);
  library.keep();
  loaded[path] = names;
  return names;
}

}  // namespace ortmodule
