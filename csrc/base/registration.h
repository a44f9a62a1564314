// What goes wrong in a static constructor that registers something.
//
// An exception there would end the process, in the middle of dlopen for a library that a user loads. It is kept, and
// told to whoever loads the library, or at the next compilation.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

ORTMODULE_API void note_registration_error(const std::string& message);
// Forgets them.
ORTMODULE_API std::vector<std::string> take_registration_errors();

// Whether `add` registered what it is for.
template <typename Add>
bool registered(Add add) noexcept {
  try {
    add();
    return true;
  } catch (const std::exception& error) {
    note_registration_error(error.what());
    return false;
  }
}

}  // namespace ortmodule
