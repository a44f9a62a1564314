"""A dropped module gives its memory back at once, without Python's cyclic collector.

Whatever was done with it: everything that it made is followed by weak references, with the collector switched off. Not
here: how many pages the engine keeps between steps (test_step_memory.py, test_pages_kept.py).
"""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ortmodule import Options, ORTModule
from ortmodule.capture import capture
from ortmodule.errors import CaptureError, ORTModuleError

_N = 16


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(_N, _N), nn.LayerNorm(_N), nn.Dropout(0.1)
        self.register_buffer("shift", torch.zeros(_N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(nn.functional.gelu(self.norm(self.linear(x)) + self.shift)).sum()

    def loss_of(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * dy


class _WithFunction(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Square.apply(self.linear(x)).sum()


class _WithCheckpoint(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.linear, x, use_reentrant=False).sum()


class _Uncapturable(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.as_tensor(y.detach().numpy()).sum() + y.sum()


class _PartlyCapturable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Linear(_N, _N), nn.ReLU()), _Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y.detach().numpy()
        return self.second(y)


class _Branching(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return (y * 2 if x.sum() > 0 else y).sum()


def _train(model: Any, *, rows: tuple[int, ...] = (4, 4, 4)) -> None:
    for n in rows:
        model(torch.rand(n, _N)).backward()


def _trained(module: nn.Module, **options: Any) -> Any:
    model = ORTModule(module, options=Options(**options))
    _train(model)
    return model


def _forward_only() -> Any:
    model = ORTModule(_Net())
    for _ in range(3):
        model(torch.rand(4, _N))
    return model


def _evaluated_between() -> Any:
    model = _trained(_Net())
    with torch.no_grad():
        model.eval()(torch.rand(4, _N))
    _train(model.train())
    return model


def _changing_sizes() -> Any:
    model = ORTModule(_Net())
    _train(model, rows=(4, 5, 6, 7))
    return model


def _through_a_method() -> Any:
    model = ORTModule(_Net())
    for _ in range(3):
        model.loss_of(torch.rand(4, _N)).backward()
    return model


def _other_branch() -> Any:
    model = _trained(_Branching())
    model(-torch.rand(4, _N)).backward()
    return model


def _users_error() -> Any:
    model = _trained(_Net())
    with pytest.raises(RuntimeError):
        model(torch.rand(4, _N + 1))
    return model


def _refused() -> Any:
    model = ORTModule(_Uncapturable(), options=Options(fallback="error"))
    with pytest.raises(CaptureError):
        model(torch.rand(4, _N))
    return model


def _with_hooks() -> Any:
    module = _Net()
    module.linear.register_forward_hook(lambda *_: None)
    model = _trained(module)
    model.register_forward_hook(lambda *_: None)
    model.linear.weight.register_hook(lambda gradient: gradient * 2)
    _train(model)
    return model


def _differentiated_twice() -> Any:
    model = ORTModule(_Net().eval())
    for _ in range(2):
        x = torch.rand(4, _N, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x), x, create_graph=True)
        gradient.sum().backward()
    return model


def _optimized() -> Any:
    model = ORTModule(_Net())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        _train(model, rows=(4,))
        optimizer.step()
        optimizer.zero_grad()
    return model


def _reported() -> Any:
    model = _trained(_Net())
    str(model.report())
    str(model.memory_report())
    return model


def _outstanding() -> Any:
    model = ORTModule(_Net())
    losses = [model(torch.rand(4, _N)) for _ in range(2)]
    for loss in losses:
        loss.backward()
    return model


def _in_threads() -> Any:
    model = ORTModule(_Net())
    threads = [threading.Thread(target=_train, args=(model,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return model


_WAYS: dict[str, Callable[[], Any]] = {
    "never called": lambda: ORTModule(_Net()),
    "forward only": _forward_only,
    "trained": lambda: _trained(_Net()),
    "evaluated between": _evaluated_between,
    "changing sizes": _changing_sizes,
    "autograd.Function": lambda: _trained(_WithFunction()),
    "checkpoint": lambda: _trained(_WithCheckpoint()),
    "in PyTorch": lambda: _trained(_Uncapturable()),
    "partly in PyTorch": lambda: _trained(_PartlyCapturable()),
    "another branch": _other_branch,
    "through a method": _through_a_method,
    "an error of the user's": _users_error,
    "refused": _refused,
    "hooks": _with_hooks,
    "differentiated twice": _differentiated_twice,
    "copied": lambda: _after(copy.deepcopy(_trained(_Net()))),
    "pickled": lambda: _after(pickle.loads(pickle.dumps(_trained(_Net())))),
    "optimizer": _optimized,
    "reported": _reported,
    "the loss alone": lambda: _trained(_Net(), outputs="loss"),
    "outstanding forwards": _outstanding,
    "in threads": _in_threads,
}


def _after(model: Any) -> Any:
    _train(model)
    return model


def _everything_of(model: Any) -> dict[str, weakref.ref[Any]]:
    """What is to die with the wrapper."""
    found: dict[str, Any] = {"the wrapper": model}
    found.update({f"the module {name}": module for name, module in model.named_modules()})
    found.update({f"the tensor {name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())})
    managers = [model._manager, *(part._call.manager for part in model._engine_call.fallback.parts())]
    for i, manager in enumerate(managers):
        found[f"manager {i}"] = manager
        graphs = [graph for graphs in manager._graphs.values() for graph in graphs]
        for kind, objects in (
            ("session", [t.session for t in manager.transitions()]),
            ("graph", graphs),
            ("capture", [graph.captured for graph in graphs]),
            ("fast call", manager.fast_calls),
        ):
            found.update({f"{kind} {j} of manager {i}": value for j, value in enumerate(objects)})
    return {name: weakref.ref(value) for name, value in found.items()}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", _WAYS)
def test_a_dropped_module_is_gone_at_once(way: str) -> None:
    model = _WAYS[way]()
    everything = _everything_of(model)
    del model
    assert [name for name, reference in everything.items() if reference() is not None] == []


def test_a_module_restored_from_the_disk_cache_is_gone_at_once(tmp_path: Path) -> None:
    _trained(_Net(), cache_dir=tmp_path)
    model = _trained(_Net(), cache_dir=tmp_path)
    everything = _everything_of(model)
    del model
    assert [name for name, reference in everything.items() if reference() is not None] == []


def test_a_capture_leaves_nothing_of_its_trace() -> None:
    module = _Net()
    before = {id(x) for x in gc.get_objects()}
    captured = capture(module, (torch.rand(4, _N),))
    del captured
    made = [x for x in gc.get_objects() if id(x) not in before]
    assert [x for x in made if isinstance(x, torch.fx.Node | torch.fx.Graph | torch.export.ExportedProgram)] == []


def test_the_error_of_a_capture_keeps_nothing_of_its_trace_and_says_where_it_was() -> None:
    module = _Uncapturable()
    with pytest.raises(CaptureError) as raised:
        capture(module, (torch.rand(4, _N),))
    error, weight = raised.value, weakref.ref(module.linear.weight)
    del raised, module
    assert weight() is None
    assert error.__cause__ is not None
    assert any("test_memory_returns.py" in note for note in error.__cause__.__notes__)


def test_the_error_that_a_caller_was_handling_keeps_its_traceback() -> None:
    try:
        raise KeyError("mine")
    except KeyError as mine:
        with pytest.raises(CaptureError):
            capture(_Uncapturable(), (torch.rand(4, _N),))
        assert mine.__traceback__ is not None
        assert not hasattr(mine, "__notes__")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_capture_leaves_the_collector_as_it_was(enabled: bool) -> None:
    if enabled:
        gc.enable()
    capture(_Net(), (torch.rand(4, _N),))
    with pytest.raises(ORTModuleError):
        capture(_Uncapturable(), (torch.rand(4, _N),))
    assert gc.isenabled() is enabled
    assert sys.exception() is None


def test_a_failed_capture_leaves_no_hook_for_all_modules() -> None:
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = list(hooks)
    module = _Uncapturable()
    module.register_buffer("seen", torch.zeros(2))
    with pytest.raises(CaptureError):
        capture(module, (torch.rand(4, _N),))
    assert list(hooks) == before
