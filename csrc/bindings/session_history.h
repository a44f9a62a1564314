// What a session keeps for tools: the history of its graph, and where its memory lies.
#pragma once

#include <pybind11/pybind11.h>

#include "session/session.h"

namespace ortmodule {

// {"versions": [...], "events": [...], "sources": [...]} as GraphHistory has them. Throws kInvalidArgument where the
// session was made without keep_history.
pybind11::dict history_as_dict(const Session& session);

pybind11::dict placed_memory_as_dict(const Session& session);

}  // namespace ortmodule
