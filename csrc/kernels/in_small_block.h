// Tensors and storages whose objects lie in small blocks (base/small_blocks.h) while a run makes them.
//
// They are c10's own in everything but where they lie: malloc serves a step's hundreds of objects, which come and go
// together, on its slow paths. Whoever holds one last frees it, on any thread, through its virtual destructor. Only
// *_kernel.cpp files and headers for them include this.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <new>

#include "base/small_blocks.h"

namespace ortmodule {

// `Base`: c10::TensorImpl or c10::StorageImpl, to be made by c10::make_intrusive.
template <typename Base>
struct InSmallBlock final : Base {
  using Base::Base;

  static_assert(alignof(Base) <= SmallBlocks::kAlignment);
  static void* operator new(size_t bytes) {
    void* const block = SmallBlocks::take(bytes);
    return block ? block : ::operator new(bytes);
  }
  static void operator delete(void* object) noexcept {
    if (SmallBlocks::owns(object))
      SmallBlocks::give(object);
    else
      ::operator delete(object);
  }
};

}  // namespace ortmodule
