// A stack on which a simulated thread runs, and the way there and back.
//
// AddressSanitizer is told of each switch: else it takes frames there for what lies beyond its own stack, and a throw
// for one that leaves it. Not here: who runs next (block.cpp).
#pragma once

#include <boost/context/fiber.hpp>
#include <functional>

namespace ortmodule::cuda::simt {

class Fiber {
 public:
  // `body` runs on the first enter(). It may not return, and the fiber lives as long as the process.
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;

  void enter();  // until leave()
  void leave();  // inside: until the next enter()

 private:
  struct Side {
    const void* bottom = nullptr;
    size_t bytes = 0;
    void* frames = nullptr;  // the sanitizer's
  };
  static void start_switch(Side& from, const Side& to);
  static void finish_switch(Side& to, Side& from);

  std::function<void()> body_;
  Side inside_, outside_;
  boost::context::fiber context_, scheduler_;
};

}  // namespace ortmodule::cuda::simt
