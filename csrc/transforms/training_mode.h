// Operators that do one thing in training and another in inference, where the model does not say which it means.
//
// Dropout without the input `training_mode` and BatchNormalization without the attribute of that name are the
// standard's operators for which a run may decide (RunOptions.training_mode). Not here: what says itself what it does.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// Whether the graph, or a body in it, has one.
bool follows_training_mode(Graph& graph);

// Lets all of them, those in bodies too, do what they do in training. Before types are inferred.
void set_training_mode(Graph& graph);

}  // namespace ortmodule
