"""The sessions that a model has and those that it will get: what recordings and dumps look at."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping

from .. import _C
from ..errors import InvalidArgumentError
from ..graph_transition.built_sessions import BuiltSession, listen
from ..ortmodule import ORTModule
from ..sessions import InferenceSession

__all__ = ["FollowedSession", "follow"]


@dataclasses.dataclass(frozen=True)
class FollowedSession:
    """A session of a model.

    Attributes:
        session: what runs.
        module: qualified name of the sub-module that it runs, "" for the whole.
        mode: "training" or "inference".
        kinds: of each graph input: "weight", "buffer", "constant" or "input".
    """

    session: _C.Session
    module: str
    mode: str
    kinds: Mapping[str, str]


def follow(
    asked: str, model: ORTModule | InferenceSession, begin: Callable[[FollowedSession], None]
) -> Callable[[], None]:
    """Calls `begin` for each session of a model, now or when it is built; returns what ends that.

    Args:
        asked: who wants that, for the error.
        model: what is followed; of an ORTModule, sub-modules that run in the engine on their own count.
        begin: what is called.

    Raises:
        InvalidArgumentError: `model` is neither an ORTModule nor an InferenceSession.
    """
    if isinstance(model, InferenceSession):
        for session in model._sessions():
            begin(FollowedSession(session, "", "inference", {}))
        return lambda: None
    if type(model) is not ORTModule:
        raise InvalidArgumentError(f"{asked} expects an ORTModule or InferenceSession, got {type(model).__name__}")
    whole = weakref.ref(model.module)

    def built(one: BuiltSession) -> None:
        modules = () if (there := whole()) is None else there.named_modules()
        name = next((name for name, module in modules if module is one.module), None)
        if name is not None:
            begin(FollowedSession(one.session, name, one.mode, _kinds(one)))

    end = listen(built)
    for one in model._engine_call.built_sessions():
        built(one)
    return end


def _kinds(built: BuiltSession) -> dict[str, str]:
    captured = built.info.captured
    kinds = dict.fromkeys(captured.parameters, "weight") | dict.fromkeys(captured.buffers, "buffer")
    users = built.info.data_accessor
    return {n: "input" if n in users else kinds.get(n, "constant") for n in built.info.onnx_graph_input_names}
