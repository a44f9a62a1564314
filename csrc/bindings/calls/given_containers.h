// Which containers a call may be given: a trace has others, made of the same leaves, so that it cannot tell a container
// from an equal one (`a is b`).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace ortmodule {

class GivenContainers {
 public:
  // containers: of an example, as CallPattern finds them. reached: those that the forward reaches on another way; they
  // live as long as what is watched is as it was.
  GivenContainers(const std::vector<PyObject*>& containers, const pybind11::list& reached);

  // Whether the same ones of a call are one object, and none is reached on another way.
  bool admit(const std::vector<PyObject*>& containers) const;

 private:
  std::vector<size_t> first_;  // by container, the first that is the same object
  size_t different_ = 0;
  std::vector<PyObject*> reached_;  // sorted, compared only
};

}  // namespace ortmodule
