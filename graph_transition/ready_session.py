"""From a post-processed graph to a session that runs it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _C
from ..errors import ORTModuleError
from ..options import DebugOptions, Options
from ..passes import session_passes
from ..report import LateOutputs, SessionReport
from .built_sessions import BuiltSession, tell
from .derivatives import Derivatives
from .info import Bound, PostExportProcessedModelInfo

_LOGGER = logging.getLogger("ortmodule")
# Stages whose files have the names that ONNX Runtime training gives them.
_SAVED_AS = {"imported": "torch_exported", "planned": "execution_model"}


@dataclasses.dataclass
class ReadySession:
    """A session, ready to run, with the information that leads from a call to it and back."""

    info: PostExportProcessedModelInfo
    session: _C.Session
    mode: str
    early: _C.EarlyAccumulators | None = None  # until it runs for the first time
    slow_runs: int = 0
    fast_calls: list[_C.FastCall] = dataclasses.field(default_factory=list)
    quick: _C.Session | None = None  # of the same graph without its late outputs
    late: str = ""  # which these are, or why none is late
    derivatives: Derivatives | None = None  # None: PyTorch gives gradients with history

    @property
    def runs(self) -> int:
        """How often the session ran."""
        return self.slow_runs + sum(f.runs for f in self.fast_calls)

    def run(self, leaves: Sequence[Any], bound: Bound | None = None, given: Sequence[Any] = ()) -> Any:
        """The module's result for a call's flat leaves; `bound` and `given`: as `restore_outputs` has them."""
        self.slow_runs += 1
        early, self.early = self.early, None
        try:
            outputs = self.session.run(self.info.construct_inputs(leaves))
            return self.info.restore_outputs(outputs, leaves, bound, given=given)
        finally:
            del early  # the session keeps its own by now

    def report(self) -> SessionReport:
        counts = self.session.late_counts()
        s = (self.quick or self.session).statistics()
        types = []
        for value in self.info.post_export_processed_model.graph.input:
            if value.name in self.info.data_accessor:
                dims = (d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim)
                types.append(f"{value.name}[{', '.join(dims)}]")
        return SessionReport(
            mode=self.mode,
            inputs=tuple(types),
            forward_nodes=s["forward_nodes"],
            backward_nodes=s["backward_nodes"],
            aten_nodes=dict(s["aten_nodes"]),
            gradients=s["gradients"],
            seconds={**self.info.captured.seconds, **s["seconds"]},
            peak_bytes=max(s["peak_forward_bytes"], s["peak_backward_bytes"]),
            saved_bytes=s["saved_bytes"],
            arena_bytes=s["arena_bytes"],
            runs=self.runs,
            recomputed_nodes=s["recomputed_nodes"],
            fused_kernels=s["fused_kernels"],
            fused_nodes=s["fused_nodes"],
            late_outputs=LateOutputs(self.late, **counts) if counts else None,
            none_late=self.late if not counts else "",
        )


@dataclasses.dataclass(frozen=True)
class BoundSession:
    """A session whose forward returns or changes objects of the program or of the call, bound to a call."""

    transition: ReadySession
    leave: Callable[[], None]
    bound: Bound | None
    given: Sequence[Any]

    def run(self, leaves: Sequence[Any]) -> Any:
        """The module's result for a call's flat leaves; afterwards the values are set."""
        result = self.transition.run(leaves, self.bound, self.given)
        self.leave()
        return result


class SessionBuilder:
    """Compiles the sessions of one module, and logs and saves their stages as its debug options say."""

    def __init__(self, module: torch.nn.Module, options: Options, debug: DebugOptions) -> None:
        self._module = module
        self._options = options
        self._debug = debug

    def build(
        self,
        info: PostExportProcessedModelInfo,
        mode: str,
        wanted: Sequence[str],
        device: str,
        leaves: Sequence[Any],
        is_quick: bool = False,
    ) -> _C.Session:
        """A session of the graph; `is_quick`: it stands in for one with more outputs, whose files are saved."""
        index = {name: i for i, name in enumerate(info.onnx_graph_input_names)}
        outputs = {o.name: i for i, o in enumerate(info.post_export_processed_model.graph.output)}
        users = {leaf: name for name, leaf in info.data_accessor.items()}
        mutations = []
        for output, kind, target in info.captured.mutations:
            name = users[target] if kind == "input" else target  # type: ignore[index]
            mutations.append((outputs[output], index[name]))  # type: ignore[index]
        options = {
            **self._of_every_session(info, device, leaves),
            "whole_masks": is_quick or (self._options.outputs == "lazy" and len(outputs) > len(info.losses) > 0),
            "keep_stages": self._debug.save_onnx and not is_quick,
            "keep_history": bool(self._debug.inspect_path),
            "mutations": mutations,
            **session_passes(self._options.passes, self._options.disabled_passes),
        }
        session = _C.Session(info.post_export_processed_model.SerializeToString(), mode, list(wanted), options)
        self._log_stages(info, session, mode)
        if self._debug.save_onnx and not is_quick:
            self._save_stages(session, mode if self._module.training else "inference")
        if self._debug.inspect_path:
            self._follow(session, mode, options["sizes"])
        if self._debug.dump_nodes:
            from ..debug.node_dump import dump_as_asked  # which most programs do without

            dump_as_asked(session, self._debug, self._debug.onnx_prefix or type(self._module).__name__, mode)
        tell(BuiltSession(self._module, session, info, mode))
        return session

    def derivatives(
        self, info: PostExportProcessedModelInfo, wanted: Sequence[str], device: str, leaves: Sequence[Any]
    ) -> Derivatives:
        """Of the graph's gradients those with history; nothing is compiled before one is asked for."""
        options = self._of_every_session(info, device, leaves)
        model = info.post_export_processed_model.SerializeToString
        return Derivatives(model, wanted, options)

    def _of_every_session(
        self, info: PostExportProcessedModelInfo, device: str, leaves: Sequence[Any]
    ) -> dict[str, Any]:
        return {
            "device": device,
            "dropout": self._options.dropout,
            "matmul": self._options.matmul,
            "fusion": self._options.fusion,
            "memory_budget": -1.0 if self._options.memory_budget == "all" else self._options.memory_budget,
            "weights": list(info.captured.parameters),
            "sizes": info.symbol_values(leaves),
            "order": self._options.execution_order,
            "providers": list(self._options.providers),
        }

    def _log_stages(self, info: PostExportProcessedModelInfo, session: _C.Session, mode: str) -> None:
        if not _LOGGER.isEnabledFor(logging.INFO):
            return
        seconds = {**info.captured.seconds, **session.statistics()["seconds"]}
        stages = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in seconds.items())
        total = sum(seconds.values())
        _LOGGER.info("%s session of %s in %.2f s: %s", mode, type(self._module).__name__, total, stages)

    def _follow(self, session: _C.Session, mode: str, sizes: dict[str, int]) -> None:
        from ..inspect.folder import follow  # for those alone who ask for it

        follow(session, self._debug.inspect_path, type(self._module).__name__, mode, sizes)

    def _save_stages(self, session: _C.Session, mode: str) -> None:
        stages = session.stage_names()
        names = dict(_SAVED_AS)
        if "optimized" not in stages:  # without a gradient
            names["optimized_pre_grad"] = "optimized"
        for stage in stages:
            name = names.get(stage, stage)
            path = Path(self._debug.save_path) / f"{self._debug.onnx_prefix}_{name}_{mode}.onnx"
            with open(path, "wb") as file:
                file.write(session.stage_model(stage))
        path = Path(self._debug.save_path) / f"{self._debug.onnx_prefix}_portable_{mode}.onnx"
        try:
            model = session.stage_model("resolved", portable=True)
        except ORTModuleError as error:
            _LOGGER.warning("the %s graph has no portable form: %s", mode, error)
            return
        with open(path, "wb") as file:
            file.write(model)
