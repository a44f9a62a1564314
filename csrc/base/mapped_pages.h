// Files that are mapped into memory, and pages of theirs that need not stay there.
#pragma once

#include <cstddef>
#include <memory>

namespace ortmodule {

// Notes that [start, start + size) is of a file, mapped to be read alone; it is until what is returned is gone, which
// comes before it is unmapped.
std::shared_ptr<const void> note_mapped(const void* start, size_t size);

// Gives the whole pages in [start, start + size) back to the system where they are of such a file: whoever looks at
// them again gets the file's. Anywhere else it does nothing.
void release_pages(const void* start, size_t size);

}  // namespace ortmodule
