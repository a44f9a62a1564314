"""Runs any ONNX model on the engine: `InferenceSession(model).run(None, {"x": array})`.

The surface is the one that users of ONNX runtimes know. Not here: training (ORTModule), how values are converted
(element_types.py), and how they are stored (csrc).
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch

from .. import _C
from ..errors import InvalidArgumentError, nearest
from ..options import DebugOptions, Provider, checked_providers
from .element_types import NodeArg, array_from, torch_type, value_from
from .io_binding import IOBinding
from .log import log_build, log_run
from .ort_value import OrtValue
from .session_options import RunOptions, SessionOptions, compile_options, inspect_path_of
from .timeline import write_timeline

__all__ = ["InferenceSession", "ModelMetadata"]


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """An ONNX model, compiled for inference on the CPU or a GPU. Its runs may be called from several threads.

    Args:
        path_or_bytes: a path, the bytes of a ModelProto, or the ModelProto. A file is mapped, and so are large tensors
            in files beside it, which are looked for in its folder alone: files must stay as they are while a session
            that was made from them lives.
        sess_options: how it is compiled.
        device: where inputs and outputs lie, "cpu" or "cuda"; the first provider's where it is not given.
        providers: names of execution providers, or pairs of a name and its options, in the order of priority; empty:
            the device's own. ("CPUExecutionProvider" and "CUDAExecutionProvider" are other names of "cpu" and "cuda".)
        provider_options: one mapping of options per provider, where `providers` holds names alone.

    Raises:
        InvalidGraphError: no valid ONNX model, or one that contradicts itself; the message names the node.
        UnsupportedError: an operator, version or type that the engine does not have.
        InvalidArgumentError: no such file, or an option that does not fit the model.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        device: str | None = None,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise InvalidArgumentError(f"sess_options should be SessionOptions, got {type(sess_options).__name__}")
        self._options = sess_options or SessionOptions()
        self._providers = _with_options(checked_providers("providers", providers or ()), provider_options)
        self.device = _device(device or _device_of_first(self._providers))
        if isinstance(path_or_bytes, str | os.PathLike):
            self._source: str | bytes | None = os.fspath(path_or_bytes)
        else:
            self._source = _bytes_of(path_or_bytes)
        self._trace = _C.RunTrace() if self._options.enable_profiling else None
        self._variants: dict[tuple[frozenset[str], bool], InferenceSession] = {}
        self._lock = threading.Lock()  # of the variants
        self._compile(frozenset(), False)
        if not self._has_kinds:
            self._source = None  # nothing will be compiled again
        elif isinstance(self._source, str):
            self._source = os.path.abspath(self._source)
        if self._options.optimized_model_filepath:
            with open(self._options.optimized_model_filepath, "wb") as file:
                file.write(self._session.stage_model("planned"))

    def _compile(self, fed: frozenset[str], training: bool) -> None:
        """Sets what belongs to one kind of runs: `fed` are the initializers that these runs are given, and with
        `training` nodes that leave it open do what they do in training."""
        options = {
            "device": str(self.device),
            "providers": list(self._providers),
            **compile_options(self._options, fed, training),
        }
        if isinstance(self._source, str):
            self._session = _C.load_session(self._source, options)
        else:
            self._session = _C.Session(self._source or b"", "inference", [], options)
        info = _C.model_info(self._session)
        self._inputs = [_node_arg(value) for value in info["inputs"]]
        self._outputs = [_node_arg(value) for value in info["outputs"]]
        self._overridable = [_node_arg(value) for value in info["overridable"]]
        self._meta = ModelMetadata(*(info[f.name.removesuffix("_map")] for f in dataclasses.fields(ModelMetadata)))
        self._follows_training_mode = bool(info["follows_training_mode"])
        self._has_kinds = bool(self._overridable) or self._follows_training_mode
        self._places = {value.name: i for i, value in enumerate(self._outputs)}
        # Nothing of this object: the core is no part of Python's search for cycles.
        self._run = _C.Inference(
            self._session, partial(_read, self._inputs, self.device), partial(_write, self._outputs)
        )
        _C.trace_runs(self._session, self._trace)
        log_build(self._session, self._options, fed)
        if os.environ.get("ORTMODULE_DUMP_NODES"):
            from ..debug.node_dump import dump_as_asked  # which most programs do without

            dump_as_asked(self._session, DebugOptions(), "session", "inference")
        if inspected := inspect_path_of(self._options):
            self._follow(inspected, self._source)

    def _for(self, given: Iterable[str], run_options: RunOptions | None = None) -> InferenceSession:
        """The session for runs that are given these inputs: this one, or one that was compiled for the initializers
        among them, or for training mode."""
        if not self._has_kinds:
            return self
        fed = frozenset(given).intersection(value.name for value in self._overridable)
        training = self._follows_training_mode and isinstance(run_options, RunOptions) and run_options.training_mode
        if not fed and not training:
            return self
        with self._lock:
            if (fed, training) not in self._variants:
                variant = copy.copy(self)
                variant._variants = {}
                variant._compile(fed, training)
                variant._has_kinds = False
                self._variants[fed, training] = variant
            return self._variants[fed, training]

    def get_inputs(self) -> list[NodeArg]:
        """What a run has to be given."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """What a run gives."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a value in the model. A run may be given another (the first one for a set of names compiles
        the model for it); `SessionOptions.add_initializer` gives every run another."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return self._meta

    def get_session_options(self) -> SessionOptions:
        """Those that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The execution providers' names, in the order of priority."""
        return [name for name, _ in self._providers] or [str(self.device)]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Each provider's options."""
        return {name: dict(options) for name, options in self._providers} or {str(self.device): {}}

    def end_profiling(self) -> str:
        """Ends what `SessionOptions.enable_profiling` began and writes a timeline of the runs since then, as
        chrome://tracing and Perfetto read it: a bar per run, and in it one per node, with its operator.

        Returns:
            The file's path: `profile_file_prefix`, the date and the time, ".json".

        Raises:
            InvalidArgumentError: nothing was noted, or it was written before.
        """
        if self._trace is None:
            raise InvalidArgumentError("nothing was profiled: SessionOptions.enable_profiling, or it has ended before")
        trace, self._trace = self._trace, None
        for session in self._sessions():
            _C.trace_runs(session, None)
        return write_timeline(trace, self._options.profile_file_prefix)

    def io_binding(self) -> IOBinding:
        """A new binding of inputs and outputs (`run_with_iobinding`)."""
        return IOBinding(self)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The named outputs (None or empty: all) as arrays.

        Args:
            output_names: what is wanted; nothing else is computed than it needs.
            feeds: one value per input: an array, a torch tensor, an OrtValue, a number; a list for a sequence, None for
                an optional that is absent. Arrays and tensors of the input's type are read where they are. Those that
                have a value in the model (`get_overridable_initializers`) may be given as well.
            run_options: how this run is run.

        Raises:
            InvalidArgumentError: an input or output is missing or unknown, or a type or shape does not fit.
            UnsupportedError: an input holds strings.
            TerminatedError: `run_options.terminate` was set.
        """
        if self._has_kinds and (session := self._for(feeds, run_options)) is not self:
            return session.run(output_names, feeds, run_options)
        if output_names is None and run_options is None and type(feeds) is dict:
            return self._run.run(feeds, None, None)
        if not isinstance(feeds, Mapping):
            raise InvalidArgumentError(
                f"feeds should be a mapping of inputs' names to values, got {type(feeds).__name__}"
            )
        wanted = self._places_of(output_names) if output_names else None
        stop, only_path = _run_settings(run_options)
        with log_run(run_options, self._options):
            if wanted is None or only_path:
                return self._run.run(dict(feeds), wanted, stop)
            everything = self._run.run(dict(feeds), None, stop)
            return [everything[place] for place in wanted]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, OrtValue], run_options: RunOptions | None = None
    ) -> list[OrtValue]:
        """The same with OrtValues in and out, on the session's device."""
        if (session := self._for(feeds, run_options)) is not self:
            return session.run_with_ort_values(output_names, feeds, run_options)
        names = list(output_names or self._places)
        unknown = [name for name in feeds if name not in {value.name for value in self._inputs}]
        missing = [value.name for value in self._inputs if value.name not in feeds]
        if unknown or missing:
            known = [value.name for value in self._inputs]
            raise InvalidArgumentError(f"the inputs are {known}; missing: {missing}, unknown: {unknown}")
        values = [value_from(feeds[value.name].engine_value, value, self.device) for value in self._inputs]
        results = self._values(values, names, run_options)
        return [
            OrtValue(result, self._outputs[self._places[name]].element_type)
            for name, result in zip(names, results, strict=True)
        ]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Reads the bound inputs and writes the bound outputs; nothing else is computed than these need.

        Raises:
            InvalidArgumentError: an input is not bound, no output is, or a buffer does not fit its result.
            TerminatedError: `run_options.terminate` was set.
        """
        session = self._for(iobinding._inputs, run_options)
        stop, only_path = _run_settings(run_options)

        def infer(values: list[Any], names: list[str], buffers: list[Any]) -> tuple[list[Any], list[bool]]:
            with log_run(run_options, self._options):
                return session._run.run_bound(values, session._places_of(names), buffers, stop, not only_path)

        iobinding._run(session._inputs, infer)

    def _sessions(self) -> Iterator[_C.Session]:
        yield self._session
        for variant in list(self._variants.values()):
            yield variant._session

    def _follow(self, folder: str, model: Any) -> None:
        from ..inspect.folder import follow  # for those alone who ask for it

        title = os.path.basename(model) if isinstance(model, str | os.PathLike) else self._meta.graph_name
        follow(self._session, folder, title or "model", "inference", {})

    def _sizes_of(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """What the graph's symbols are in a run that is fed so; nothing of the feeds is read but their sizes.

        Raises:
            InvalidArgumentError: an input is missing or unknown, or sizes do not fit.
        """
        if not isinstance(feeds, Mapping):
            raise InvalidArgumentError(f"the inputs should be a mapping by name, got {type(feeds).__name__}")
        known = [value.name for value in self._inputs]
        for name in feeds:
            if name not in known:
                raise InvalidArgumentError(
                    f"the model has no input {name!r}; it has {known}{nearest(str(name), known)}"
                )
        values: list[Any] = []
        for declared in self._inputs:
            if declared.name not in feeds:
                raise InvalidArgumentError(f"the input {declared.name!r} is missing")
            value = feeds[declared.name]
            if declared.is_sequence or declared.is_optional:
                values.append(value_from(value, declared, self.device))
            else:
                shape = value.shape() if isinstance(value, OrtValue) else np.shape(value)
                values.append(torch.empty(shape, dtype=torch_type(declared.element_type), device="meta"))
        return self._session.sizes_of(values)

    def _values(self, values: list[Any], names: Sequence[str], run_options: RunOptions | None) -> list[Any]:
        wanted = self._places_of(names)
        stop, only_path = _run_settings(run_options)
        with log_run(run_options, self._options):
            if only_path:
                return self._run.run_values(values, wanted, stop)
            everything = self._run.run_values(values, None, stop)
            return [everything[place] for place in wanted]

    def _places_of(self, names: Sequence[str]) -> list[int]:
        for name in names:
            if name not in self._places:
                known = list(self._places)
                raise InvalidArgumentError(
                    f"the model has no output {name!r}; it has {known}{nearest(str(name), known)}"
                )
        return [self._places[name] for name in names]


def _read(inputs: list[NodeArg], device: torch.device, place: int, value: Any) -> Any:
    return value_from(value, inputs[place], device)


def _write(outputs: list[NodeArg], place: int, value: Any) -> Any:
    return array_from(value, outputs[place].element_type)


def _run_settings(run_options: RunOptions | None) -> tuple[Any, bool]:
    if run_options is None:
        return None, True
    if not isinstance(run_options, RunOptions):
        raise InvalidArgumentError(f"run_options should be RunOptions, got {type(run_options).__name__}")
    return run_options._stop, run_options.only_execute_path_to_fetches


def _node_arg(value: dict[str, Any]) -> NodeArg:
    return NodeArg(
        value["name"], value["type"], value["shape"], value["element"], value["is_sequence"], value["is_optional"]
    )


def _bytes_of(model: Any) -> bytes:
    if isinstance(model, onnx.ModelProto):
        return model.SerializeToString()
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    hint = "; a module runs in ORTModule" if isinstance(model, torch.nn.Module) else ""
    raise InvalidArgumentError(
        f"path_or_bytes should be a path, an onnx.ModelProto or the bytes of one, got {type(model).__name__}{hint}"
    )


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(
            f"device should be one that torch knows, such as 'cpu' or 'cuda:0', got {name!r}"
        ) from error


def _device_of_first(providers: Sequence[tuple[str, dict[str, str]]]) -> str:
    name, options = providers[0] if providers else ("cpu", {})
    if name.partition(":")[0] != "cuda":
        return "cpu"
    return name if ":" in name else f"cuda:{options.get('device_id', 0)}"


def _with_options(
    providers: tuple[tuple[str, dict[str, str]], ...], given: Sequence[Mapping[str, Any]] | None
) -> tuple[tuple[str, dict[str, str]], ...]:
    if given is None:
        return providers
    if len(given) != len(providers) or any(options for _, options in providers):
        raise InvalidArgumentError(
            f"provider_options should be one mapping for each of {len(providers)} providers that have none of their "
            f"own, got {given!r}"
        )
    return tuple(
        (name, {str(k): str(v) for k, v in own.items()}) for (name, _), own in zip(providers, given, strict=True)
    )
