// Which nodes become one kernel, and which never do.
#include "transforms/fuse.h"

#include "records/fused_program.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;

constexpr const char* kFused = "ai.ortmodule::FusedKernel";

FusionResult run(Graph& graph) {
  const FusionResult result = fuse(graph);
  verify_edges(graph);
  resolve(graph);
  return result;
}

TEST(Fuse, AChainBecomesOneKernelUnderTheNamesOfItsOutputs) {
  auto g =
      resolved("graph g(x: float[b, 8], w: float[8]) -> (y, e)\n %m = Mul(%x, %w)\n %e = Exp(%m)\n %y = Add(%e, %x)");
  const FusionResult result = run(*g);
  EXPECT_EQ(result.kernels, 1u);
  EXPECT_EQ(result.nodes, 3u);
  EXPECT_EQ(g->node_count(), 1u);
  ASSERT_NE(g->find("y"), nullptr);
  EXPECT_EQ(g->find("y")->producer(), g->find("e")->producer());
  EXPECT_EQ(g->find("m"), nullptr) << "what only the cluster reads is in no memory";
  EXPECT_EQ(g->find("y")->type().text(), "float[b, 8]");
}

TEST(Fuse, SingleNodesIntegersAndDoublesStayAsTheyAre) {
  for (const char* text : {"graph g(x: float[4, 4]) -> (y)\n %y = Exp(%x)",
                           "graph g(x: double[4, 4]) -> (y)\n %e = Exp(%x)\n %y = Add(%e, %x)",
                           "graph g(x: int64[4, 4]) -> (y)\n %e = Mul(%x, %x)\n %y = Add(%e, %x)",
                           "graph g(x: float[?]) -> (y)\n %e = Exp(%x)\n %y = Add(%e, %x)"}) {
    auto g = resolved(text);
    EXPECT_EQ(run(*g).kernels, 0u) << text;
  }
}

TEST(Fuse, ACycleThroughAnotherNodeIsNeverMade) {
  auto g =
      resolved("graph g(x: float[4, 4]) -> (y)\n %a = Exp(%x)\n %m = MatMul(%a, %x)\n %b = Neg(%m)\n %y = Add(%a, %b)");
  const FusionResult result = run(*g);
  EXPECT_EQ(result.kernels, 1u);
  EXPECT_EQ(g->find("a")->producer()->op(), "Exp") << "the product reads it before the sum";
  EXPECT_EQ(g->find("y")->producer()->qualified_op(), kFused);
}

TEST(Fuse, ForwardAndBackwardNeverMix) {
  auto g = resolved("graph g(x: float[4, 4]) -> (y)\n %a = Exp(%x)\n %b = Neg(%a)\n %y = Sqrt(%b)");
  g->find("y")->producer()->set_phase(Phase::kBackward);
  run(*g);
  EXPECT_EQ(g->find("y")->producer()->op(), "Sqrt");
  EXPECT_EQ(g->find("b")->producer()->qualified_op(), kFused);
}

TEST(Fuse, RowStatisticsAndSumsOverColumnsJoin) {
  auto g = resolved(R"(graph g(x: float[b, s, 16], w: float[16]) -> (y, d)
    const %e: float[] = [1e-6]
    const %last: int64[1] = [-1]
    const %first: int64[2] = [0, 1]
    %q = Mul(%x, %x)
    %m = ReduceMean(%q, %last)
    %v = Add(%m, %e)
    %i = Sqrt(%v)
    %n = Div(%x, %i)
    %y = Mul(%n, %w)
    %d = ReduceSum(%y, %first) {keepdims=0})");
  EXPECT_EQ(run(*g).kernels, 1u);
  const FusedProgram program = read_program(*g->find("y")->producer());
  EXPECT_EQ(g->find("d")->producer(), g->find("y")->producer());
  ASSERT_EQ(program.outputs.size(), 2u);
  EXPECT_EQ(program.outputs[1].form, OutputForm::kColumn);
  EXPECT_TRUE(program.needs_whole_rows());
}

TEST(Fuse, ReadersOfOneValueJoinWhereNoKernelRunsBetween) {
  const std::string head =
      "graph g(d: float[b, 16], x: float[b, 16], w: float[16, 16]) -> (y, s)\n"
      " const %rows: int64[1] = [0]\n %s = ReduceSum(%d, %rows) {keepdims=0}\n";
  auto g = resolved(head + " %y = Mul(%d, %x)");
  EXPECT_EQ(run(*g).kernels, 1u);
  g = resolved(head + " %m = MatMul(%x, %w)\n %y = Mul(%d, %m)");
  EXPECT_EQ(run(*g).kernels, 0u) << "the sum would wait for a product";
  g = resolved(head + " %t = Neg(%s)\n %y = Mul(%d, %x)");
  EXPECT_EQ(run(*g).kernels, 0u) << "another node reads the sum before";
}

TEST(Fuse, WhatReadsASumOverColumnsStaysOutside) {
  auto g = resolved(R"(graph g(x: float[b, 16]) -> (y)
    const %first: int64[1] = [0]
    %q = Mul(%x, %x)
    %d = ReduceSum(%q, %first) {keepdims=1}
    %y = Add(%q, %d))");
  run(*g);
  EXPECT_NE(g->find("y")->producer(), g->find("d")->producer());
}

TEST(Fuse, DropoutKeepsItsStateAndItsStream) {
  auto g = resolved(R"(graph g(x: float[4, 4]) -> (y, z)
    const %r: double[] = [0.5]
    %state = ai.ortmodule::RandomState()
    %d = ai.ortmodule::PhiloxDropout(%x, %r, %state) {stream=4}
    %y = Add(%d, %x)
    %z = ai.ortmodule::PhiloxDropout(%y, %r, %state) {stream=5})");
  EXPECT_EQ(run(*g).kernels, 1u);
  const Node* fused = g->find("y")->producer();
  EXPECT_EQ(fused, g->find("z")->producer());
  EXPECT_EQ(count(*g, "ai.ortmodule::RandomState"), 1u);
  const FusedProgram program = read_program(*fused);
  std::vector<int64_t> streams;
  for (const Instruction& i : program.code)
    if (i.op == Opcode::kPhiloxDropout) {
      streams.push_back(i.stream);
      EXPECT_EQ(fused->input(i.arguments[1]), g->find("state"));
    }
  EXPECT_EQ(streams, (std::vector<int64_t>{4, 5}));
}

TEST(FusedProgram, TextIsReadBackAsItWasWritten) {
  auto g = resolved("graph g(x: float[b, 8]) -> (y)\n %m = Exp(%x)\n %y = Add(%m, %x)");
  run(*g);
  const Node& node = *g->find("y")->producer();
  EXPECT_EQ(node.get_strings("program"), (std::vector<std::string>{"%1 = exp %0", "%2 = add %1 %0"}));
  EXPECT_EQ(node.get_strings("outputs"), (std::vector<std::string>{"full float %2"}));
  const Attributes again = write_program(read_program(node));
  EXPECT_EQ(std::get<std::vector<std::string>>(again.at("program")), node.get_strings("program"));
  EXPECT_EQ(std::get<std::vector<std::string>>(again.at("outputs")), node.get_strings("outputs"));
}

TEST(FusedProgram, AWrongLineIsNamed) {
  const auto refused = [](const std::string& line, const std::string& output) {
    const std::string text = "graph g(x: float[4]) -> (y)\n %y = ai.ortmodule::FusedKernel(%x) {outputs=[\"" + output +
                             "\"], program=[\"" + line + "\"]}";
    testing::expect_error(ErrorCode::kInvalidGraph, "is no line of a program", [&] { resolved(text); });
  };
  for (const char* line : {"", "%1 = expo %0", "%2 = exp %0", "%1 = exp %1", "%1 = exp %-1", "%1 = exp %x",
                           "%1 = add %0", "%1 = exp %0 %0", "exp %0", "%1 exp %0", "%1 = number x", "%1 = number 1x",
                           "%1 = number", "%1 = philox_dropout %0 %0 0.5"})
    refused(line, "full float %1");
  for (const char* output :
       {"", "whole float %1", "full single %1", "full float %2", "full float 1", "full float %1 %0"})
    refused("%1 = exp %0", output);
}

TEST(FusedProgram, NumbersKeepTheirBits) {
  for (const char* number : {"0.10000000000000001", "-0", "inf", "-inf", "4.9406564584124654e-324", "1e+30"}) {
    auto g = resolved(std::string("graph g(x: float[4]) -> (y)\n %y = ai.ortmodule::FusedKernel(%x) {outputs=[\"full "
                                  "float %2\"], program=[\"%1 = number ") +
                      number + "\", \"%2 = add %0 %1\"]}");
    const Attributes again = write_program(read_program(*g->find("y")->producer()));
    EXPECT_EQ(std::get<std::vector<std::string>>(again.at("program"))[0], std::string("%1 = number ") + number);
  }
}

// A gate's gradient: the product reads dv before du is asked for, and p is read by du alone.
constexpr const char* kGate =
    R"(graph g(dy: bfloat16[4, 8], u: bfloat16[4, 8], v: bfloat16[4, 8], w: bfloat16[8, 8]) -> (a, b)
    %dv = Mul(%dy, %u)
    %p = Mul(%dy, %v)
    %a = ai.ortmodule::Linear(%dv, %w, _)
    %du = ai.ortmodule::SiluGrad(%p, %u)
    %b = ai.ortmodule::Linear(%du, %w, _))";

TEST(Fuse, OnAGpuANodeRunsEarlyWhereThatSparesAValue) {
  auto g = resolved(kGate);
  EXPECT_EQ(fuse(*g).nodes, 2u) << "a host's programs stay where they are";
  g = resolved(kGate);
  const FusionResult result = fuse(*g, [](const std::string&) { return prices_of("cuda"); });
  verify_edges(*g);
  resolve(*g);
  EXPECT_EQ(result.nodes, 3u);
  EXPECT_EQ(g->find("du")->producer(), g->find("dv")->producer());
  EXPECT_EQ(g->find("p"), nullptr);
  EXPECT_EQ(g->nodes().front(), g->find("du")->producer());
}

TEST(Fuse, ANodeDoesNotRunEarlyWhereWhatItReadsComesLaterOrIsKeptAnyway) {
  for (const char* text : {// %a comes after the product that reads %dv
                           R"(graph g(dy: bfloat16[4, 8], u: bfloat16[4, 8], w: bfloat16[8, 8]) -> (b)
             %dv = Mul(%dy, %u)
             %p = Neg(%dy)
             %a = ai.ortmodule::Linear(%dv, %w, _)
             %du = ai.ortmodule::SiluGrad(%p, %a)
             %b = ai.ortmodule::Linear(%du, %w, _))",
                           // %p is read by others, too
                           R"(graph g(dy: bfloat16[4, 8], u: bfloat16[4, 8], w: bfloat16[8, 8]) -> (a, b, c)
             %dv = Mul(%dy, %u)
             %p = Neg(%dy)
             %a = ai.ortmodule::Linear(%dv, %w, _)
             %du = ai.ortmodule::SiluGrad(%p, %u)
             %b = ai.ortmodule::Linear(%du, %w, _)
             %c = ai.ortmodule::Linear(%p, %w, _))"}) {
    auto g = resolved(text);
    fuse(*g, [](const std::string&) { return prices_of("cuda"); });
    verify_edges(*g);
    resolve(*g);
    EXPECT_EQ(g->find("du")->producer()->op(), "SiluGrad") << text;
  }
}

// The second cluster reads s and x: s is computed from x there. In the first one u is read by others than s.
constexpr const char* kTwice =
    R"(graph g(x: bfloat16[4, 8], u: bfloat16[4, 8], dy: bfloat16[4, 8], w: bfloat16[8, 8]) -> (a, b, c)
    %s = ai.ortmodule::Silu(%x)
    %p = Mul(%s, %u)
    %a = ai.ortmodule::Linear(%p, %w, _)
    %t = Mul(%a, %s)
    %b = ai.ortmodule::SiluGrad(%t, %x)
    %c = Mul(%dy, %s))";

TEST(Fuse, OnAGpuAValueIsComputedAgainFromWhatAClusterReadsAnyway) {
  auto g = resolved(kTwice);
  fuse(*g);
  ASSERT_NE(g->find("s"), nullptr) << "a host reads what is there";
  g = resolved(kTwice);
  fuse(*g, [](const std::string&) { return prices_of("cuda"); });
  verify_edges(*g);
  resolve(*g);
  EXPECT_EQ(g->find("s"), nullptr) << "nobody reads it from memory";
  const Node* second = g->find("b")->producer();
  EXPECT_EQ(second->qualified_op(), kFused);
  EXPECT_EQ(std::count(second->inputs().begin(), second->inputs().end(), g->find("x")), 1);
}

TEST(Fuse, AValueIsNotComputedAgainWhereMoreWouldBeRead) {
  auto g = resolved(
      R"(graph g(x: bfloat16[4, 8], u: bfloat16[4, 8], w: bfloat16[8, 8]) -> (a, b)
    %s = ai.ortmodule::Silu(%x)
    %p = Mul(%s, %u)
    %a = ai.ortmodule::Linear(%p, %w, _)
    %t = Mul(%a, %s)
    %b = Exp(%t))");
  fuse(*g, [](const std::string&) { return prices_of("cuda"); });
  verify_edges(*g);
  EXPECT_NE(g->find("s"), nullptr);
}

}  // namespace
}  // namespace ortmodule
