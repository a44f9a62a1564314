// Operators that arrive while the process runs: who looks up records or kernels shares this lock, who adds some holds
// it alone, and only with complete records in hand. Records stay where they are, so what a look-up gave stays valid.
#pragma once

#include <shared_mutex>

namespace ortmodule {

std::shared_mutex& registry_mutex();

}  // namespace ortmodule
