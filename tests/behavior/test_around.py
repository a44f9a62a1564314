"""What a program does around a module: transforms, traces, modes, threads, checkpointing, other dtypes midway.

Not here: settings of ORTModule itself (test_settings.py), what the module's own code does (test_modules.py).
"""

from __future__ import annotations

import copy
import datetime
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ortmodule import Options, ORTModule
from tests.support import Lambda, exports, mlp, pair

from .table import compare, rand


def ready() -> tuple[ORTModule, nn.Module]:
    """A wrapper that has a graph for inputs [5, 4] already, and its eager twin."""
    model, eager = pair(mlp())
    compare(model, eager, (rand(5, 4),), {})
    return model, eager


def assert_still_in_the_engine(model: ORTModule, eager: nn.Module) -> None:
    compare(model, eager, (rand(5, 4),), {})
    assert model.report().fallback == "none" and exports(model) == 1, model.report()


TRANSFORMS = {
    "vmap": lambda m, x: torch.vmap(m)(x.expand(3, 5, 4)),
    "jacrev": lambda m, x: torch.func.jacrev(m)(x),
    "jacfwd": lambda m, x: torch.func.jacfwd(m)(x),
    "grad of the parameters": lambda m, x: torch.func.grad(lambda p: torch.func.functional_call(m, p, (x,)).sum())(
        {name: p.detach() for name, p in m.named_parameters()}
    ),
    "functional_call": lambda m, x: torch.func.functional_call(
        m, {name: p.detach() + 1 for name, p in m.named_parameters()}, (x,)
    ),
    "export": lambda m, x: torch.export.export(m, (x,)).module()(x),
    "jit.trace": lambda m, x: torch.jit.trace(m, x)(x),
    "jit.script": lambda m, x: torch.jit.script(m)(x),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_it_gives_of_the_module(name: str) -> None:
    model, eager = ready()
    x = rand(5, 4)
    torch.testing.assert_close(TRANSFORMS[name](model, x), TRANSFORMS[name](eager, x))
    assert_still_in_the_engine(model, eager)


def test_a_dual_tensor_keeps_its_tangent() -> None:
    model, eager = ready()
    x = rand(5, 4)
    tangents = []
    with forward_ad.dual_level():
        for module in (model, eager):
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            tangents.append(forward_ad.unpack_dual(module(dual)).tangent)
    torch.testing.assert_close(*tangents)
    assert_still_in_the_engine(model, eager)


def test_errors_of_torch_keep_their_types() -> None:
    store = torch.distributed.HashStore()
    store.set_timeout(datetime.timedelta(milliseconds=10))
    with pytest.raises(torch.distributed.DistStoreError):
        store.get("nothing")


def test_a_mode_that_counts_operators_sees_them_all() -> None:
    model, eager = ready()
    counts = []
    for module in (model, eager):
        with FlopCounterMode(display=False) as mode:
            module(rand(5, 4)).sum().backward()
        counts.append(mode.get_total_flops())
    assert counts[0] == counts[1] > 0
    assert_still_in_the_engine(model, eager)


def test_a_hook_for_every_module_is_called_and_said() -> None:
    model = ORTModule(mlp())
    model(rand(5, 4))
    called: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: called.append(module))
    try:
        with pytest.warns(UserWarning, match="the variable called around"):
            model(rand(5, 4))
    finally:
        handle.remove()
    assert set(model.module) <= set(called)


def test_a_tensor_class_of_the_users_comes_back() -> None:
    class Image(torch.Tensor):
        pass

    model = ORTModule(mlp())
    model(rand(5, 4))
    with pytest.warns(UserWarning, match="tensor class"):
        result = model(rand(5, 4).as_subclass(Image))
    assert type(result) is Image
    assert type(model(rand(5, 4))) is torch.Tensor


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", ["fast", "torch"])
def test_a_checkpoint_around_it_drops_the_same_elements_again(dropout: str, reentrant: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
    model = ORTModule(module, options=Options(fallback="error", dropout=dropout))
    found = []
    for around in (False, True):
        x = torch.ones(5, 4, requires_grad=True)
        torch.manual_seed(3)
        result = checkpoint(model, x, use_reentrant=reentrant) if around else model(x)
        result.sum().backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_may_share_one_wrapper_from_the_first_call_on(threads: int) -> None:
    model, eager = pair(mlp())
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(8):
                x = torch.randn(2 + (step + number) % 3, 4)
                result = model(x)
                hidden = nn.functional.linear(x, *weights[:2]).tanh()
                torch.testing.assert_close(result, hidden @ weights[2].T + weights[3])
                result.sum().backward()
        except BaseException as error:
            errors.append(error)

    weights = [p.detach() for p in eager.parameters()]
    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors


def test_the_dtype_may_change_under_integer_inputs() -> None:
    eager = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    ids = torch.randint(0, 7, (5,))
    for dtype in (torch.float32, torch.float64, torch.float32):
        for module in (model, eager):
            module.to(dtype)
        compare(model, eager, (ids,), {})
    reasons = [e.reason for e in model.report().exports]
    assert reasons == ["first call", "the dtype of 'weight' changed from torch.float32 to torch.float64"]


def test_a_parameter_may_get_another_shape() -> None:
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    model = ORTModule(module, options=Options(fallback="error"))
    model(torch.tensor([1, 2]))
    module[0].weight = nn.Parameter(torch.randn(9, 4))
    torch.testing.assert_close(model(torch.tensor([8, 2])), module(torch.tensor([8, 2])))
    assert "the shape of 'weight' changed from [7, 4] to [9, 4]" in model.report().exports[-1].reason


def test_the_default_dtype_is_noticed() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) + torch.arange(4) / 3))
    results = []
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            results.append((model(torch.ones(5, 4, dtype=torch.float32)), eager(torch.ones(5, 4, dtype=torch.float32))))
        finally:
            torch.set_default_dtype(torch.float32)
    for mine, wanted in results:
        torch.testing.assert_close(mine, wanted)
    assert "the default dtype changed" in model.report().exports[1].reason and exports(model) == 2


def asks_mode(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * (2 if torch.is_grad_enabled() else 3)


def asks_inference(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * (2 if torch.is_inference_mode_enabled() else 3)


def asks_gradient(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * (2 if x.requires_grad or m.linear.bias.requires_grad else 3)


def asks_strides(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * (2 if x.is_contiguous() else 3)


@pytest.mark.parametrize("forward", [asks_mode, asks_inference, asks_gradient, asks_strides])
def test_what_a_forward_asks_about_is_a_condition_of_its_graph(forward: Any) -> None:
    model, eager = pair(Lambda(forward))
    for step in range(4):
        odd = bool(step % 2)
        for module in (model, eager):
            module.linear.bias.requires_grad_(odd)
        x = rand(4, 4).T if odd else rand(4, 4)
        with torch.inference_mode(odd) if forward is asks_inference else torch.set_grad_enabled(odd):
            torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2, model.report()


def reads_stride(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * (1 + x.stride(0) % 7)


def test_a_stride_that_varies_where_sizes_do_is_never_taken_for_another() -> None:
    model, eager = pair(Lambda(reads_stride))
    for batch, apart in [(3, 1), (3, 1), (3, 2), (3, 2), (2, 2), (3, 2), (3, 1), (2, 2)]:
        x = rand(batch * apart, 4)[::apart]
        torch.testing.assert_close(model(x), eager(x))


def test_modes_that_nobody_asks_about_share_a_graph() -> None:
    model, eager = pair(mlp())
    for step in range(4):
        with torch.inference_mode() if step == 0 else torch.set_grad_enabled(bool(step % 2)):
            x = rand(4, 4).T if step % 2 else rand(4, 4)
            torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 1


def test_a_branch_on_a_flag_given_as_a_tensor_takes_a_graph_per_value() -> None:
    model, eager = pair(Lambda(lambda m, x, flag: m.linear(x).relu() if flag else m.linear(x).tanh()))
    for step in range(6):
        compare(model, eager, (rand(3 + step // 2, 4), torch.tensor(step % 2 == 0)), {})
    report = model.report()
    assert report.fallback == "none" and len(report.exports) == 4, report
    assert "the value of input 'arg1', on which the forward branches, changed" in report.exports[1].reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_sub_module_may_be_inside() -> None:
    eager = mlp()
    eager[1] = torch.jit.script(nn.Tanh())
    model = ORTModule(copy.deepcopy(eager))
    for _ in range(3):
        compare(model, eager, (rand(5, 4),), {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_sub_module_is_part_of_the_graph() -> None:
    eager = mlp()
    module = copy.deepcopy(eager)
    for holder in (eager, module):  # copied when traced, it would have no parameters
        holder[0] = torch.jit.trace(holder[0], rand(5, 4))
    model = ORTModule(module, options=Options(fallback="error"))
    for rows in (5, 3):
        compare(model, eager, (rand(rows, 4),), {})


def test_parameters_may_get_their_shapes_from_the_first_call() -> None:
    model = ORTModule(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), options=Options(fallback="error"))
    first = model(rand(5, 3))
    assert first.shape == (5, 4) and model.report().fallback == "none"
    model(rand(5, 3)).sum().backward()
    assert exports(model) == 1
