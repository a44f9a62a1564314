// Import: what files may hold, and a typed error naming byte, node or value for everything else.
//
// Models are written by export_model, then cut, changed byte by byte, or built in text with the fault.
#include "onnx/import.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "onnx/export.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

constexpr const char* kModel = R"(graph main(x: float[batch, 4]) -> (y)
  opset "" 23
  const %w: float[4, 2] = [1, 2, 3, 4, 5, 6, 7, 8]
  %h: float[batch, 2] = MatMul(%x, %w) @{name="layer/matmul"}
  %y: float[batch, 2] = Relu(%h))";

std::unique_ptr<Graph> read(const std::string& bytes, const ImportOptions& options = {}) {
  return import_model(bytes.data(), bytes.size(), options);
}

std::string written(const char* text) { return export_model(*parse_text(text)); }

// A folder of its own per test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/ortmodule_test_XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { [[maybe_unused]] const int rc = std::system(("rm -rf '" + path + "'").c_str()); }
  std::string path;
};

TEST(OnnxImport, ReadsWhatExportWrites) {
  const auto g = read(written(kModel));
  resolve(*g);
  verify_edges(*g);
  EXPECT_EQ(g->find("h")->producer()->name(), "layer/matmul");
  EXPECT_EQ(g->find("y")->type().text(), "float[batch, 2]");
  EXPECT_EQ(g->find("w")->constant()->to_doubles()[7], 8.0);
  EXPECT_EQ(export_model(*g), written(kModel));
}

TEST(OnnxImport, RefusesEveryTruncation) {
  const std::string bytes = written(kModel);
  for (size_t n = 0; n < bytes.size(); ++n) {
    try {
      resolve(*read(bytes.substr(0, n)));
      // A cut between two fields of the model leaves a smaller model; it must still be a whole one.
    } catch (const Error& e) {
      EXPECT_NE(static_cast<int>(e.code()), static_cast<int>(ErrorCode::kInternal)) << n << ": " << e.what();
    }
  }
  expect_error(ErrorCode::kParse, "byte", [&] { read(bytes.substr(0, bytes.size() / 2)); });
}

TEST(OnnxImport, NamesTheByteWhereParsingStopped) {
  // Field 7 (graph) of 100 bytes, with 2 bytes left.
  expect_error(ErrorCode::kParse, "at byte 2 stands a field of 100 bytes with 2 left",
               [] { read(std::string("\x08\x0b\x3a\x64\x0a\x00", 6)); });
  // A node inside the graph that claims too much: the innermost field is named.
  expect_error(ErrorCode::kParse, "at byte 6 in graph.node[0] stands a field of 9 bytes with 0 left",
               [] { read(std::string("\x08\x0b\x3a\x04\x0a\x02\x0a\x09", 8)); });
  expect_error(ErrorCode::kParse, "no ONNX model", [] { read("this is text, not a model"); });
  expect_error(ErrorCode::kParse, "neither a version nor a graph", [] { read(""); });
}

TEST(OnnxImport, SurvivesRandomBytes) {
  const std::string bytes = written(kModel);
  std::mt19937 random(1234);
  size_t accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string mutant = bytes;
    for (int k = 0; k < 3; ++k) mutant[random() % mutant.size()] = static_cast<char>(random());
    try {
      auto g = read(mutant);
      resolve(*g);
      verify_edges(*g);
      ++accepted;
    } catch (const Error& e) {
      ASSERT_NE(static_cast<int>(e.code()), static_cast<int>(ErrorCode::kInternal)) << e.what();
    }
  }
  EXPECT_GT(accepted, 0u);
}

TEST(OnnxImport, ReportsACycle) {
  const std::string bytes = written("graph g(x: float[2]) -> (b)\n %a = Add(%x, %b)\n %b = Relu(%a)");
  expect_error(ErrorCode::kInvalidGraph, "cycle", [&] { resolve(*read(bytes)); });
}

TEST(OnnxImport, ReportsAnUnknownOperatorWithASuggestion) {
  const std::string bytes = written("graph g(x: float[2]) -> (y)\n %y = Rellu(%x) @{name=\"act\"}");
  const auto g = read(bytes);  // importing is fine
  expect_error(ErrorCode::kUnsupported, "unknown operator Rellu", [&] { resolve(*g); });
  expect_error(ErrorCode::kUnsupported, "did you mean 'Relu'", [&] { resolve(*g); });
}

TEST(OnnxImport, ReportsAMissingInput) {
  const std::string bytes = written("graph g(x: float[2]) -> (y)\n %y = MatMul(%x, _) @{name=\"mm\"}");
  expect_error(ErrorCode::kInvalidGraph, "'mm'", [&] { resolve(*read(bytes)); });
}

TEST(OnnxImport, ReportsAnInputThatNothingProduces) {
  std::string bytes = written(kModel);
  // The MatMul's first input "x" becomes "q" (length-delimited: \x0a \x01 'x').
  const size_t at = bytes.find(std::string("\x0a\x01x\x0a\x01w", 6));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 2] = 'q';
  expect_error(ErrorCode::kInvalidGraph, "[MatMul] reads 'q' as input 0", [&] { read(bytes); });
}

TEST(OnnxImport, ReportsAWrongElementType) {
  const std::string bytes = written("graph g(x: float[2], i: int64[2]) -> (y)\n %y = Add(%x, %i) @{name=\"sum\"}");
  expect_error(ErrorCode::kInvalidGraph, "'sum'", [&] { resolve(*read(bytes)); });
}

TEST(OnnxImport, ReportsAnInputWithoutType) {
  expect_error(ErrorCode::kInvalidGraph, "the input 'x' of graph 'g' has no type",
               [] { read(written("graph g(x) -> (y)\n %y = Relu(%x)")); });
}

TEST(OnnxImport, RefusesOtherVersions) {
  expect_error(ErrorCode::kUnsupported, "opset 0", [] { read(written("graph g()\n opset \"\" 0")); });
  expect_error(ErrorCode::kUnsupported, "opset 99", [] { read(written("graph g()\n opset \"\" 99")); });
  EXPECT_NO_THROW(read(written("graph g()\n opset \"\" 13\n opset \"my.domain\" 77")));
}

TEST(OnnxImport, FoldsConstantNodes) {
  const auto g = read(written(R"(graph g(x: float[2]) -> (y)
    %c = Constant() {value=tensor float[2] [1, 2]}
    %i = Constant() {value_ints=[3, 4]}
    %f = Constant() {value_float=0.5}
    %y = Add(%x, %c))"));
  EXPECT_EQ(g->node_count(), 1u);
  EXPECT_EQ(g->find("c")->constant()->to_doubles()[1], 2.0);
  EXPECT_EQ(g->find("i")->constant()->to_ints()[1], 4);
  EXPECT_EQ(g->find("f")->type().text(), "float[]");
}

TEST(OnnxImport, ReadsFloatAttributesAsTheDecimalThatWasMeant) {
  const auto g = read(written("graph g(x: float[2]) -> (y)\n %y = LeakyRelu(%x) {alpha=1e-05}"));
  EXPECT_EQ(g->find("y")->producer()->get_float("alpha", 0), 1e-5);
}

TEST(OnnxImport, KeepsSubgraphsAndWhatTheyCapture) {
  const char* text = R"(graph g(c: bool[], x: float[2]) -> (y)
    %n = Neg(%x)
    %y = If(%c, %n) {ortmodule.captured=["n"], then_branch=graph t(n: float[2]) -> (r) {
      %r = Relu(%n)
    }, else_branch=graph e(n: float[2]) -> (s) {
      %s = Exp(%n)
    }})";
  const std::string bytes = written(text);
  const auto g = read(bytes);
  const Node* node = g->find("y")->producer();
  ASSERT_EQ(node->inputs().size(), 2u);
  EXPECT_EQ(node->input(1), g->find("n"));  // an edge: no pass can remove the producer
  EXPECT_EQ(export_model(*g), bytes);
}

TEST(OnnxImport, KeepsFunctions) {
  const std::string bytes = written(R"(graph g(x: float[2]) -> (y)
  %y = my::F(%x)
function "my" "F" = graph F(a) -> (b) {
  opset "" 23
  %b = Relu(%a)
})");
  const auto g = read(bytes);
  ASSERT_EQ(g->functions().size(), 1u);
  EXPECT_EQ(g->functions()[0].body->find("b")->producer()->op(), "Relu");
  EXPECT_EQ(export_model(*g), bytes);
}

TEST(OnnxImport, MakesAnUnreadableDimALoneSymbol) {
  const std::string bytes = written("graph g(x: float[batchsize]) -> (y)\n %y = Relu(%x)");
  std::string odd = bytes;
  for (size_t at = 0; (at = odd.find("batchsize", at)) != std::string::npos; ++at) odd.replace(at, 9, "batch siz");
  EXPECT_EQ(read(odd)->find("x")->type().text(), "float[batch_20siz]");
}

TEST(OnnxImport, RefusesTensorsOverTheLimitBeforeReadingThem) {
  const std::string bytes = written(kModel);
  EXPECT_NO_THROW(read(bytes, {.limits = {.tensor_bytes = 32}}));
  expect_error(ErrorCode::kInvalidGraph, "the initializer 'w' brings the model's tensors over the limit of 31 bytes",
               [&] { read(bytes, {.limits = {.tensor_bytes = 31}}); });
}

// -- external data: Note [External data] ------------------------------------------------------------------------------

std::string model_with_location(const std::string& folder, const std::string& location) {
  ExportOptions options;
  options.external_data_dir = folder;
  options.external_data_file = std::string(location.size(), 'w');
  options.external_threshold = 16;
  std::string bytes = export_model(*parse_text(kModel), options);
  bytes.replace(bytes.find(options.external_data_file), location.size(), location);
  return bytes;
}

TEST(OnnxImport, ReadsExternalData) {
  const Folder folder;
  const std::string bytes = model_with_location(folder.path, "wwww");
  EXPECT_EQ(read(bytes, {.external_data_dir = folder.path})->find("w")->constant()->to_doubles()[7], 8.0);
  expect_error(ErrorCode::kInvalidArgument, "give the model's folder", [&] { read(bytes); });
}

TEST(OnnxImport, MapsManyBytesAndReadsFew) {
  const Folder folder;
  for (const int64_t elements : {int64_t{64}, int64_t{1} << 19}) {
    Graph graph;
    std::vector<int64_t> numbers(static_cast<size_t>(elements));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
    graph.opsets()[""] = 20;
    graph.add_output(graph.add_initializer("w", TensorData::of_ints(numbers)));
    const ExportOptions options{.external_data_dir = folder.path, .external_data_file = "w", .external_threshold = 16};
    const std::string bytes = export_model(graph, options);
    SharedBytes held;
    {
      const auto read_back = read(bytes, {.external_data_dir = folder.path});
      held = read_back->find("w")->constant()->bytes;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held->data()) % kTensorAlignment, 0u);
    EXPECT_EQ(std::memcmp(held->data(), numbers.data(), held->size()), 0) << "kept when the graph is gone";
    ::unlink((folder.path + "/w").c_str());
    EXPECT_EQ(held->back(), 0) << "and the file's name too";
  }
}

TEST(OnnxImport, PutsNumbersForFreeSizes) {
  const auto graph = parse_text("graph g(x: float[batch, 3]) -> (y)\n %y = Relu(%x)");
  graph->opsets()[""] = 20;
  const std::string bytes = export_model(*graph);
  EXPECT_EQ(read(bytes, {.sizes = {{"batch", 5}}})->inputs()[0]->type().text(), "float[5, 3]");
  expect_error(ErrorCode::kInvalidArgument, "no free size 'n'; it has 'batch'",
               [&] { read(bytes, {.sizes = {{"n", 5}}}); });
}

TEST(OnnxImport, TakesGivenInitializers) {
  const std::string bytes = written(kModel);
  const TensorData own = *read(bytes)->find("w")->constant();
  TensorData other = own;
  other.bytes = std::string(own.bytes->size(), '\0');
  EXPECT_EQ(read(bytes, {.initializers = {{"w", other}}})->find("w")->constant()->bytes->data(), other.bytes->data());
  other.dims = {static_cast<int64_t>(own.elements())};
  expect_error(ErrorCode::kInvalidArgument, "the tensor that was given for it",
               [&] { read(bytes, {.initializers = {{"w", other}}}); });
  expect_error(ErrorCode::kInvalidArgument, "'v', which is no initializer",
               [&] { read(bytes, {.initializers = {{"v", own}}}); });
}

TEST(OnnxImport, RefusesExternalPathsThatLeaveTheFolder) {
  const Folder folder;
  for (const char* location : {"../wwww", "/etc/passwd", "a/../../www", "a/..", "./.", "a\\b"}) {
    const std::string bytes = model_with_location(folder.path, location);
    expect_error(ErrorCode::kInvalidArgument, "is refused", [&] { read(bytes, {.external_data_dir = folder.path}); });
  }
}

TEST(OnnxImport, RefusesLinks) {
  const Folder folder;
  const std::string bytes = model_with_location(folder.path, "data");  // lies in "wwww"
  const std::string data = folder.path + "/data", real = folder.path + "/wwww";
  const ImportOptions options{.external_data_dir = folder.path};
  ASSERT_EQ(::symlink("wwww", data.c_str()), 0);
  expect_error(ErrorCode::kInvalidArgument, "symbolic links are refused", [&] { read(bytes, options); });
  ::unlink(data.c_str());
  ASSERT_EQ(::link(real.c_str(), data.c_str()), 0);
  expect_error(ErrorCode::kInvalidArgument, "several hard links", [&] { read(bytes, options); });
  ::unlink(data.c_str());
  ASSERT_EQ(::mkfifo(data.c_str(), 0600), 0);
  expect_error(ErrorCode::kInvalidArgument, "no regular file", [&] { read(bytes, options); });
  ::unlink(data.c_str());
  const std::string inner = model_with_location(folder.path, "d/wwww");
  ASSERT_EQ(::symlink(".", (folder.path + "/d").c_str()), 0);
  expect_error(ErrorCode::kInvalidArgument, "symbolic links are refused", [&] { read(inner, options); });
}

TEST(OnnxImport, RefusesARangeOutsideTheExternalFile) {
  const Folder folder;
  const std::string bytes = model_with_location(folder.path, "data");
  std::ofstream(folder.path + "/data") << "short";
  expect_error(ErrorCode::kInvalidGraph, "asks for 32 bytes at 0 of 'data', which has 5 bytes",
               [&] { read(bytes, {.external_data_dir = folder.path}); });
}

}  // namespace
}  // namespace ortmodule
