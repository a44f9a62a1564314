#include "bindings/calls/given_containers.h"

#include <algorithm>

namespace py = pybind11;

namespace ortmodule {

GivenContainers::GivenContainers(const std::vector<PyObject*>& containers, const py::list& reached) {
  for (size_t i = 0; i < containers.size(); ++i) {
    const auto first = std::find(containers.begin(), containers.end(), containers[i]);
    first_.push_back(static_cast<size_t>(first - containers.begin()));
    different_ += first_.back() == i;
  }
  for (const py::handle value : reached) reached_.push_back(value.ptr());
  std::sort(reached_.begin(), reached_.end(), std::less<>());
}

bool GivenContainers::admit(const std::vector<PyObject*>& containers) const {
  for (size_t i = 0; i < containers.size(); ++i) {
    if (containers[first_[i]] != containers[i]) return false;
    if (std::binary_search(reached_.begin(), reached_.end(), containers[i], std::less<>())) return false;
  }
  if (containers.size() < 2) return true;
  std::vector<PyObject*> sorted = containers;
  std::sort(sorted.begin(), sorted.end(), std::less<>());
  return static_cast<size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin()) == different_;
}

}  // namespace ortmodule
