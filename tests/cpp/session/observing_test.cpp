// What observers and recorders are told of a session's runs: every value once, in order, in every kind of call.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

#include "onnx/export.h"
#include "runtime/run_recorder.h"
#include "session/session.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

constexpr const char* kModel =
    "graph g(x: float[batch, 3], w: float[3]) -> (y, z)\n %h = Mul(%x, %w)\n %y = Tanh(%h)\n %z = Neg(%x)";

std::shared_ptr<Session> make(bool training) {
  SessionSettings options;
  options.training = training;
  if (training) options.trainable = {"w"};
  options.weights = {"w"};
  options.fusion = false;
  return std::make_shared<Session>(export_model(*resolved(kModel)), std::move(options));
}

// What a recorder was told.
struct Notes {
  std::vector<std::vector<std::string>> layouts;
  std::vector<std::string> halves;
  std::vector<RunRecorder::Half> written;

  std::shared_ptr<RunRecorder> recorder(int64_t every = 1) {
    const auto choose = [this](const std::string& half, const std::vector<RecordedValue>& values) {
      std::vector<std::string> names;
      for (const RecordedValue& v : values)
        names.push_back((v.kind == RecordedValue::Kind::kInputsGradient ? "d " : v.op.empty() ? "in " : "") + v.name);
      layouts.push_back(names);
      halves.push_back(half);
      return std::pair(layouts.size() - 1, std::vector<char>(values.size(), 1));
    };
    return make_recorder(choose, [this](const RunRecorder::Half& half) { written.push_back(half); }, true, every);
  }
};

TEST(Observing, RecordsInputsNodesAndGradientsInOrder) {
  const auto session = make(true);
  Notes notes;
  const auto recorder = notes.recorder();
  session->observe(recorder);
  const at::Tensor w = at::full({3}, 2.0f).requires_grad_(true);
  for (int run = 0; run < 2; ++run) torch::autograd::backward({session->run({at::ones({4, 3}), w})[0].sum()}, {});
  ASSERT_EQ(notes.written.size(), 4u);
  EXPECT_EQ(notes.halves, (std::vector<std::string>{"forward", "backward"})) << "asked once per plan";
  EXPECT_EQ(notes.layouts[0][0], "in x");
  EXPECT_EQ(notes.layouts[0][1], "in w");
  EXPECT_EQ(notes.layouts[1][0], "in y");
  EXPECT_EQ(notes.layouts[1].back(), "d w");
  for (const RunRecorder::Half& half : notes.written) {
    EXPECT_TRUE(half.whole);
    EXPECT_EQ(half.values.size(), notes.layouts[half.layout].size());
  }
  EXPECT_EQ(notes.written[0].values[1].mean, 2);
  EXPECT_EQ(notes.written[0].values[0].shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(notes.written[1].values.back().shape, (std::vector<int64_t>{3}));
  EXPECT_EQ(notes.written[0].values[0].fingerprint, notes.written[2].values[0].fingerprint);

  recorder->enable(false);
  session->run({at::ones({4, 3}), w});
  EXPECT_EQ(notes.written.size(), 4u);
  recorder->enable(true);
  session->stop_observing(recorder.get());
  session->run({at::ones({4, 3}), w});
  EXPECT_EQ(notes.written.size(), 4u);
}

TEST(Observing, SeesCallsForSomeOfTheOutputsAndWhatFailed) {
  const auto session = make(false);
  Notes notes;
  session->observe(notes.recorder());
  session->infer({at::ones({4, 3}), at::ones({3})});
  session->infer({at::ones({4, 3}), at::ones({3})}, {false, true});
  ASSERT_EQ(notes.written.size(), 2u);
  EXPECT_EQ(notes.layouts[1], (std::vector<std::string>{"in x", "z"})) << "nothing else is computed";
  RunStop stop;
  stop.ask();
  EXPECT_ANY_THROW(session->infer({at::ones({4, 3}), at::ones({3})}, {}, &stop));
  ASSERT_EQ(notes.written.size(), 3u);
  EXPECT_FALSE(notes.written[2].whole);
  EXPECT_EQ(notes.written[2].values.size(), 2u) << "the inputs were there";
}

TEST(Observing, RecordsEveryManyThRun) {
  const auto session = make(false);
  Notes notes;
  session->observe(notes.recorder(3));
  for (int run = 0; run < 7; ++run) session->infer({at::ones({4, 3}), at::ones({3})});
  ASSERT_EQ(notes.written.size(), 3u);
  EXPECT_EQ(notes.written[2].run, 6);
}

}  // namespace
}  // namespace ortmodule
