// What torch asks of a device: the current one and its streams, events, and storages of another size.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace guarded {

// What was there is copied, by a job of the current stream.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace guarded
