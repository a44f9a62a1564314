// Execution providers: who runs a node, and on which device its values lie.
//
// A session has some in order of priority. Each says which nodes it can run (capability); place() (partition.h) gives
// every node to the first that claims it and puts transfers between them. A provider is one file of placement/providers
// or of a library that a program loads: it registers a factory, its kernels are registered under its name
// (records/kernel_registry.h), "aten"'s serve for the rest.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/registration.h"
#include "graph/graph.h"
#include "ortmodule/export.h"
#include "records/prices.h"

namespace ortmodule {

// How a user names one: "cuda:1", or the name of a registered provider with options.
struct ProviderSpec {
  std::string name;
  std::map<std::string, std::string> options{};
};

// Nodes that a provider wants to run. Several are one claim where `fused` names what they become together: one
// ai.ortmodule::Claimed node that has them as its subgraph, whose kernel the provider registers.
struct Claim {
  std::vector<const Node*> nodes;
  std::string fused{};
};

class ORTMODULE_API ExecutionProvider {
 public:
  // `location`: a device as torch names it ("cpu", "cuda:1"). Options that every provider takes: "operators", names
  // after one another with commas, which it runs alone; "except", those that it leaves to others. Throws
  // kInvalidArgument for any other that is not among `further`.
  ExecutionProvider(const ProviderSpec& spec, std::string location, const std::vector<std::string>& further = {});
  virtual ~ExecutionProvider() = default;

  const std::string& name() const { return name_; }
  const std::string& location() const { return location_; }
  // "cuda" of "cuda:1".
  std::string device_type() const { return location_.substr(0, location_.find(':')); }
  // Whether the options leave it this node.
  bool may_run(const Node& node) const;

  // What it runs of `nodes`, which stand in topological order. By default: each node by itself that has a kernel and
  // that the options allow.
  virtual std::vector<Claim> capability(const std::vector<const Node*>& nodes) const;
  // What its work costs: by default the row of its device.
  virtual Prices prices() const { return prices_of(device_type()); }

 private:
  std::string name_, location_;
  std::vector<std::string> operators_, except_;
};

using ProviderFactory = std::shared_ptr<const ExecutionProvider> (*)(const ProviderSpec&);

class ORTMODULE_API ProviderRegistry {
 public:
  static ProviderRegistry& instance();
  // Throws kInvalidArgument for a name that is taken.
  void add(const std::string& name, ProviderFactory factory);
  // A name that nobody registered is a device's. Throws kInvalidArgument for options that it does not know.
  std::shared_ptr<const ExecutionProvider> make(const ProviderSpec& spec) const;

 private:
  std::map<std::string, ProviderFactory> factories_;
};

}  // namespace ortmodule

// ORTMODULE_PROVIDER("mine", [](const ProviderSpec& spec) -> std::shared_ptr<const ExecutionProvider> {...});
#define ORTMODULE_PROVIDER(name, ...)                 \
  [[maybe_unused]] static const bool provider_added = \
      ::ortmodule::registered([] { ::ortmodule::ProviderRegistry::instance().add(name, __VA_ARGS__); })
