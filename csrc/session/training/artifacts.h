// What `ortmodule.export_training_artifacts` has written: a folder with graphs, a checkpoint, and artifacts.json, which
// says what is what.
//
// The file names of a set are its own, and artifacts.json takes the place of an older one at the end: a folder is
// always a whole set.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ortmodule {

// A graph with the module's tensors as inputs, behind those that a call gives.
struct ArtifactGraph {
  std::string file;
  std::vector<std::string> inputs, tensors;  // graph inputs, in order
  std::vector<std::string> outputs;          // what the caller gets
  std::vector<std::pair<std::string, std::string>>
      written;  // (output behind those, tensor that it is the new value of)
};

struct ArtifactTensor {
  std::string name;  // in graphs and checkpoints
  bool trainable = false;
};

// What one graph updates: parameters of one group and type.
struct ArtifactRule {
  std::string file;
  size_t group = 0;
  std::vector<std::string> parameters, states;
};

struct Artifacts {
  std::string folder, checkpoint;
  ArtifactGraph training, evaluation, inference;
  std::vector<ArtifactTensor> tensors;
  std::vector<double> learning_rates;  // of each group
  std::vector<ArtifactRule> rules;

  std::string path_of(const std::string& file) const { return folder + "/" + file; }
};

// Throws kInvalidArgument where there is no such folder or set, kParse where artifacts.json is none, kUnsupported for
// one of a later version.
Artifacts read_artifacts(const std::string& folder);

}  // namespace ortmodule
