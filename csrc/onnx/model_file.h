// A model's own file, beside which its external data lies.
#pragma once

#include <string>

#include "graph/shared_bytes.h"
#include "ortmodule/export.h"

namespace ortmodule {

struct ModelFile {
  SharedBytes bytes;   // mapped, privately: the file must stay as it is while somebody has them
  std::string folder;  // for ImportOptions::external_data_dir
};

// Throws kInvalidArgument for what is no regular file or cannot be read.
ORTMODULE_API ModelFile open_model(const std::string& path);

}  // namespace ortmodule
