// What the rest of the engine needs of custom operators without seeing their C interface.
#pragma once

#include <string>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

// Loads the library at `path` and registers its operators; returns their names ("com.example::Op"). Loading one again
// changes nothing. Throws kInvalidArgument, naming the file and what is wrong with it: no file, no library, no entry
// symbol, another ABI version, a description that is not sound, an operator that exists already.
ORTMODULE_API std::vector<std::string> load_custom_ops(const std::string& path);

}  // namespace ortmodule
