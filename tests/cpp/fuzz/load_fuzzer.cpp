// What libFuzzer calls with bytes that it has made: reading a model, checking it, writing it and reading that.
//
// The first part of what compile_fuzzer.cpp does, many times as fast: bytes that are no model get no further, and most
// that libFuzzer makes are none. Errors of the library are fine, everything else ends the process.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "fuzz_limits.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "records/resolve.h"
#include "records/upgrade.h"
#include "transforms/inline_functions.h"
#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

// As csrc/compile/stages.cpp reads a model.
std::unique_ptr<Graph> loaded(std::string_view model) {
  ImportOptions options;
  options.limits = fuzz_limits();
  std::unique_ptr<Graph> graph = import_model(model.data(), model.size(), options);
  upgrade(*graph);
  inline_functions(*graph, options.limits);
  share_constants_with_subgraphs(*graph);
  resolve(*graph);
  return graph;
}

}  // namespace
}  // namespace ortmodule

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ortmodule;
  const Allowance::Scope limited(std::make_shared<Allowance>(fuzz_limits()));
  try {
    const std::string written = export_model(*loaded({reinterpret_cast<const char*>(data), size}));
    loaded(written);  // what we write we read
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) return 0;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
