// Which stream each step runs on, and what waits for what.
//
// Note [Streams]
// The host issues all steps in one order, on one thread. Steps of the host are done when they return; a device's are
// queued. Each device has a stream that computes, torch's current one, and one that brings values from the host, so
// that copies and work overlap. A copy to the host, or from another device, runs where the source is read or the
// result is used: on the computing stream of the source, or of the result.
// Where a step reads what another stream made, the maker's stream activates a notification behind it, and the reader's
// waits for it; the host waits (a barrier) for what is copied to it. What was waited for is known: vector clocks leave
// no wait twice, also where it follows from others. What leaves the plan, outputs and what is kept, is awaited at the
// end by the stream that computes where it lies, so that whoever comes next finds it as torch would leave it.
// Memory: what a copy reads on another stream is held until the copy is done, so that nobody overwrites it; what the
// caller has as well, who may write it behind the run, is awaited at the end. A device's memory that a second stream
// reads is recorded there (c10's recordDataPtrOnStream).
// What the host has waited for in forward needs no wait in backward.
// Collectives that were started and are waited for later run on a stream of their own, whose waits are kernels.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "plan/execution_plan.h"

namespace ortmodule {

struct StreamRequest {
  std::string device_type;          // of a graph without places
  const std::vector<char>& leaves;  // by value id: outputs and what is kept
  // Values of earlier plans that are made when this one begins (ExecutionPlan::settled).
  const std::unordered_set<std::string>& settled;
};

void assign_streams(ExecutionPlan& plan, const StreamRequest& request);

bool is_host(const LogicStream& stream);

}  // namespace ortmodule
