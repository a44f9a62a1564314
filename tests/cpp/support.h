// What the C++ tests share: graphs from text, and errors compared by code and wording.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "records/resolve.h"
#include "transforms/transformer.h"

namespace ortmodule::testing {

inline std::unique_ptr<Graph> resolved(std::string_view text) {
  auto graph = parse_text(text);
  resolve(*graph);
  return graph;
}

inline size_t count(const Graph& graph, const std::string& op) {
  size_t n = 0;
  graph.for_each([&](Node& node) { n += node.qualified_op() == op; });
  return n;
}

// Applies a pass and checks that the graph is still sound.
inline size_t run_pass(const std::unique_ptr<GraphTransformer>& pass, Graph& graph,
                       const TransformContext& context = {}) {
  const size_t modifications = pass->apply(graph, context);
  verify_edges(graph);
  resolve(graph);
  return modifications;
}

template <typename F>
void expect_error(ErrorCode code, const std::string& wording, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    EXPECT_NE(std::string(e.what()).find(wording), std::string::npos) << e.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with '" << wording << "'";
}

}  // namespace ortmodule::testing
