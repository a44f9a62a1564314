#include "session/training/artifacts.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace ortmodule {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "ortmodule training artifacts";
constexpr int kVersion = 1;

// Graphs and checkpoints lie in the folder itself.
std::string file_name(const Json& value) {
  const auto name = value.get<std::string>();
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    throw std::invalid_argument("'" + name + "' is no plain file name");
  return name;
}

ArtifactGraph graph_of(const Json& value) {
  ArtifactGraph graph;
  graph.file = file_name(value.at("file"));
  value.at("inputs").get_to(graph.inputs);
  value.at("tensors").get_to(graph.tensors);
  value.at("outputs").get_to(graph.outputs);
  for (const Json& pair : value.at("written"))
    graph.written.emplace_back(pair.at(0).get<std::string>(), pair.at(1).get<std::string>());
  return graph;
}

ArtifactRule rule_of(const Json& value, size_t groups) {
  ArtifactRule rule{file_name(value.at("file")), value.at("group").get<size_t>(),
                    value.at("parameters").get<std::vector<std::string>>(),
                    value.at("states").get<std::vector<std::string>>()};
  if (rule.group >= groups) throw std::invalid_argument("there is no group " + std::to_string(rule.group));
  return rule;
}

Artifacts artifacts_of(const Json& json, const std::string& folder) {
  Artifacts out;
  out.folder = folder;
  out.checkpoint = file_name(json.at("checkpoint"));
  const Json& graphs = json.at("graphs");
  out.training = graph_of(graphs.at("training"));
  out.evaluation = graph_of(graphs.at("evaluation"));
  out.inference = graph_of(graphs.at("inference"));
  for (const Json& tensor : json.at("tensors"))
    out.tensors.push_back({tensor.at("name").get<std::string>(), tensor.at("trainable").get<bool>()});
  const Json& optimizer = json.at("optimizer");
  for (const Json& group : optimizer.at("groups"))
    out.learning_rates.push_back(group.at("learning_rate").get<double>());
  for (const Json& rule : optimizer.at("rules")) out.rules.push_back(rule_of(rule, out.learning_rates.size()));
  return out;
}

}  // namespace

Artifacts read_artifacts(const std::string& folder) {
  const std::string path = folder + "/artifacts.json";
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ORTMODULE_CHECK_ARG(file.is_open(), "'", folder, "' has no training artifacts: '", path, "' cannot be read");
  const Json json = Json::parse(text, nullptr, false);
  const bool ours = json.is_object() && json.contains("format") && json["format"] == kFormat &&
                    json.contains("version") && json["version"].is_number_integer();
  ORTMODULE_CHECK(ours, kParse, "'", path, "' does not describe training artifacts");
  ORTMODULE_CHECK(json["version"] == kVersion, kUnsupported, "'", path, "' is of version ", json["version"].dump(),
                  "; this ortmodule reads version ", kVersion);
  try {
    return artifacts_of(json, folder);
  } catch (const std::exception& error) {
    fail(ErrorCode::kParse, "'", path, "' does not describe training artifacts: ", error.what());
  }
}

}  // namespace ortmodule
