"""What an ORTModule did so far, as data that prints."""

from __future__ import annotations

import dataclasses

__all__ = ["Export", "LateOutputs", "Report", "SessionReport"]


@dataclasses.dataclass(frozen=True)
class Export:
    """One run of capture: why it was needed, and wall seconds; `cached`: the graph came from the cache on disk."""

    reason: str
    seconds: float
    dynamic: tuple[str, ...] = ()
    specialized: tuple[str, ...] = ()
    cached: bool = False


@dataclasses.dataclass(frozen=True)
class LateOutputs:
    """What became of the calls whose large outputs were not computed in the forward (Options(outputs="lazy")).

    Attributes:
        names: these outputs.
        calls: how many calls left them out.
        read: in how many of these somebody looked at one.
        at_backward, at_write: in how many one was alive at a backward, or before a write of what it is computed from
            (an optimizer's step, say), and was computed there.
        never_read: outputs that were computed there and that nobody has read: keep the loss alone to save that.
        lost: in how many one could not be computed any more.
        on: whether later calls leave them out; not after three calls in a row that had to compute them.
    """

    names: str
    calls: int
    read: int
    at_backward: int
    at_write: int
    never_read: int
    lost: int
    on: bool

    def __str__(self) -> str:
        unread = f" ({self.never_read} outputs were kept alive and never read)" if self.never_read else ""
        return (
            f"late outputs {self.names}: left out in {self.calls} calls, read in {self.read}, computed while alive at "
            f"backward in {self.at_backward} and before a write in {self.at_write}{unread}, lost in {self.lost}"
            + ("" if self.on else "; computed in the forward from now on")
        )


@dataclasses.dataclass(frozen=True)
class SessionReport:
    """One compiled graph.

    Attributes:
        mode: "training" (forward and backward) or "inference" (forward only).
        inputs: name and type of each user input.
        forward_nodes, backward_nodes: steps of the plans.
        aten_nodes: ATen fallback nodes of forward, by operator.
        gradients: parameters and inputs that get a gradient.
        seconds: wall seconds per stage.
        peak_bytes: the larger of forward's and backward's peak of intermediate tensors, measured on the first run.
        saved_bytes: what forward left for backward.
        arena_bytes: memory that the engine keeps for the session's steps (CPU; planned from the second step on): what
            the large tensors of a step need, gradients and the kernels' own temporaries included.
        runs: how often it ran.
        recomputed_nodes: nodes that backward runs a second time, so that forward need not keep their results.
        fused_kernels: kernels that run a cluster of nodes each.
        fused_nodes: the nodes in those clusters.
        late_outputs: with Options(outputs="lazy"), what became of outputs that are computed late; None: none is.
        none_late: why none is, where the option asked for it.
    """

    mode: str
    inputs: tuple[str, ...]
    forward_nodes: int
    backward_nodes: int
    aten_nodes: dict[str, int]
    gradients: int
    seconds: dict[str, float]
    peak_bytes: int
    saved_bytes: int
    arena_bytes: int
    runs: int
    recomputed_nodes: int
    fused_kernels: int
    fused_nodes: int
    late_outputs: LateOutputs | None = None
    none_late: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The product of `ORTModule.report()`.

    Attributes:
        module: class of the wrapped module.
        sessions: one per compiled graph.
        exports: one per capture, with its reason.
        aten_nodes: ATen fallback nodes over all sessions, by operator (the largest count of one session).
        fallback: "none", "partial" or "whole" (some call ran in PyTorch).
        fallback_reason: why, or None.
        matmul_choices: what multiplies matrices on this processor, and why, a line per type. Nothing is measured
            while a program runs: the choice hangs on sizes, types, threads and the processor.
    """

    module: str
    sessions: tuple[SessionReport, ...]
    exports: tuple[Export, ...]
    fallback: str
    fallback_reason: str | None
    matmul_choices: tuple[str, ...] = ()

    @property
    def aten_nodes(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for session in self.sessions:
            for name, count in session.aten_nodes.items():
                total[name] = max(total.get(name, 0), count)
        return total

    @property
    def peak_bytes(self) -> int:
        """The largest peak of any session."""
        return max((s.peak_bytes for s in self.sessions), default=0)

    def __str__(self) -> str:
        lines = [f"ORTModule({self.module})"]
        fallback = self.fallback + (f": {self.fallback_reason}" if self.fallback_reason else "")
        lines.append(f"  fallback   {fallback}")
        for i, export in enumerate(self.exports):
            dynamic = f", dynamic {', '.join(export.dynamic)}" if export.dynamic else ""
            lines.append(f"  export {i}   {export.seconds:.2f} s, {export.reason}{dynamic}")
            lines.extend(f"             {sentence}" for sentence in export.specialized)
        for i, s in enumerate(self.sessions):
            lines.append(f"  session {i}  {s.mode}, {s.runs} runs, inputs {', '.join(s.inputs)}")
            lines.append(
                f"             {s.forward_nodes} forward and {s.backward_nodes} backward nodes, "
                f"{s.gradients} gradients, peak {s.peak_bytes / 2**20:.1f} MiB, saved {s.saved_bytes / 2**20:.1f} MiB, "
                f"arena {s.arena_bytes / 2**20:.1f} MiB, {s.recomputed_nodes} nodes recomputed, "
                f"{s.fused_nodes} nodes fused to {s.fused_kernels} kernels"
            )
            aten = ", ".join(f"{name} x{count}" for name, count in sorted(s.aten_nodes.items())) or "none"
            lines.append(f"             ATen fallback nodes: {aten}")
            if s.late_outputs is not None:
                lines.append(f"             {s.late_outputs}")
            elif s.none_late:
                lines.append(f"             no late outputs: {s.none_late}")
            stages = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in s.seconds.items())
            lines.append(f"             stages: {stages}")
        lines.extend(f"  product    {choice}" for choice in self.matmul_choices)
        return "\n".join(lines)
