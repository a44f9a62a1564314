"""Autocast around the call computes in bfloat16 what eager computes in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import ortmodule
from tests import zoo
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


@pytest.mark.parametrize("name", ["mlp", "gpt2", "bert", "resnet18"])
def test_a_step_under_autocast_equals_eagers(name: str) -> None:
    sample = zoo.build(name)
    model, eager = pair(sample.module)
    losses = []
    for module in (model, eager):
        with autocast():
            losses.append(zoo.loss_of(module(**sample.inputs)))
        losses[-1].backward()
    torch.testing.assert_close(*losses, rtol=2e-2, atol=1e-3)
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        scale = q.grad.abs().max()
        assert (p.grad - q.grad).abs().max() <= 0.05 * scale + 1e-4, name


def test_the_result_is_computed_in_bfloat16() -> None:
    model, eager = pair(nn.Linear(64, 64, bias=False))
    x = torch.randn(8, 64)
    with autocast():
        got, expected = model(x), eager(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, expected)
    assert not torch.equal(got.float(), model(x)), "the graph without autocast is another one"


@pytest.mark.parametrize("shape", [(128, 256), (3, 77, 256)])
def test_a_layer_with_a_bias_gives_eagers_bits(shape: tuple[int, ...]) -> None:
    model, eager = pair(nn.Linear(256, 384), matmul="onednn")  # "auto" may sum up in another order
    x = torch.randn(*shape)
    with autocast():
        assert torch.equal(model(x), eager(x))


@pytest.mark.parametrize("shape", [(128, 256), (3, 77, 256)])
def test_a_layer_rounds_once(shape: tuple[int, ...]) -> None:
    model, _ = pair(nn.Linear(256, 384))
    x, w = torch.randn(*shape).bfloat16(), model.weight.detach().bfloat16()
    exact = x.double() @ w.double().T + model.bias.detach().bfloat16().double()
    with autocast():
        torch.testing.assert_close(model(x.float()).double(), exact, rtol=2**-8, atol=1e-5)


def test_backward_outside_the_block_is_the_usual_way() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        with autocast():
            loss = module(torch.ones(5, 4)).float().square().mean()
        loss.backward()
    assert_same_gradients(model, eager, rtol=2e-2, atol=1e-3)


def test_backward_multiplies_by_the_copies_that_forward_made() -> None:
    model, eager = pair(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.randn(8, 64)
    for module in (model, eager):
        with autocast():
            loss = module(x).float().square().mean()
        module[2].weight.data.mul_(3)
        loss.backward()
    assert_same_gradients(model, eager, rtol=2e-2, atol=1e-3)


def test_a_step_makes_one_copy_of_each_weight() -> None:
    model, _ = pair(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.randn(8, 64, requires_grad=True)
    with ortmodule.profile(model) as times, autocast():
        model(x).float().square().mean().backward()
    copies = [n for n in times.nodes if n.op == "Cast" and n.phase == "backward" and "again" in n.name]
    assert not copies


def test_a_disabled_block_inside_stays_in_float32() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(False):
            exact = m.linear(x)
        return exact, m.linear(x)

    model, eager = pair(Lambda(forward))
    with autocast():
        got, expected = model(torch.ones(2, 4)), eager(torch.ones(2, 4))
    assert [t.dtype for t in got] == [t.dtype for t in expected] == [torch.float32, torch.bfloat16]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_going_in_and_out_of_autocast_keeps_both_graphs() -> None:
    model, _ = pair(mlp())
    for enabled in (True, False, True, False):
        with autocast(enabled):
            assert model(torch.ones(5, 4)).dtype == (torch.bfloat16 if enabled else torch.float32)
    assert exports(model) == 2


def test_the_gradient_scaler_of_the_cpu_works_with_it() -> None:
    model, _ = pair(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = [p.clone() for p in model.parameters()]
    with autocast():
        loss = model(torch.ones(5, 4)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Operator(nn.Module):
    """An operator behind a linear layer, which leaves bfloat16, with weights in float32."""

    def __init__(self, run: Callable[[Operator, torch.Tensor], torch.Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.run, self.layer, self.first = run, layer or nn.Identity(), nn.Linear(8, 8)
        self.square, self.row = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def packed(m: Operator, x: torch.Tensor) -> torch.Tensor:
    sequences = nn.utils.rnn.pack_padded_sequence(m.first(x), torch.tensor([6, 4, 1]), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(m.layer(sequences)[0], batch_first=True)[0]


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 2 * x * dy


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return (dy.float() @ w.T).to(x.dtype), x.flatten(0, -2).T.float() @ dy.flatten(0, -2).float()


def ctc(m: Operator, x: torch.Tensor) -> torch.Tensor:
    scores = F.log_softmax(m.first(x), -1).transpose(0, 1)
    return F.ctc_loss(scores, torch.ones(3, 2, dtype=torch.long), torch.full((3,), 6), torch.full((3,), 2))


OPERATORS: dict[str, Callable[[], Operator]] = {
    "einsum": lambda: Operator(lambda m, x: torch.einsum("bth,hn->btn", m.first(x), m.square)),
    "einsum, the weight first": lambda: Operator(lambda m, x: torch.einsum("hn,bth->btn", m.square, m.first(x))),
    "einsum of three": lambda: Operator(lambda m, x: torch.einsum("bth,hn,n->bt", m.first(x), m.square, m.row)),
    "einsum of floats": lambda: Operator(lambda m, x: torch.einsum("bth,hn->btn", x, m.square)),
    "lstm": lambda: Operator(lambda m, x: m.layer(m.first(x))[0], nn.LSTM(8, 8, batch_first=True)),
    "lstm of floats": lambda: Operator(lambda m, x: m.layer(x)[0], nn.LSTM(8, 8, bidirectional=True)),
    "gru": lambda: Operator(lambda m, x: m.layer(m.first(x))[0], nn.GRU(8, 8, 2)),
    "gru of floats": lambda: Operator(lambda m, x: m.layer(x)[0], nn.GRU(8, 8)),
    "rnn": lambda: Operator(lambda m, x: m.layer(m.first(x))[0], nn.RNN(8, 8)),
    "packed gru": lambda: Operator(packed, nn.GRU(8, 8, batch_first=True)),
    "ctc": lambda: Operator(ctc),
    "fft": lambda: Operator(lambda m, x: torch.fft.fftn(m.first(x), dim=(1, 2)).real),
    "rfft": lambda: Operator(lambda m, x: torch.fft.rfft(m.first(x)).abs()),
    "function in float32": lambda: Operator(lambda m, x: Square.apply(m.first(x))),
    "function of two types": lambda: Operator(lambda m, x: Product.apply(m.first(x), m.square)),
    "layer_norm": lambda: Operator(lambda m, x: m.layer(m.first(x)), nn.LayerNorm(8)),
    "group_norm": lambda: Operator(lambda m, x: m.layer(m.first(x).transpose(1, 2)), nn.GroupNorm(2, 8)),
    "rms_norm": lambda: Operator(lambda m, x: m.layer(m.first(0.1 * x)), nn.RMSNorm(8)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operands_of_two_types(name: str) -> None:
    torch.manual_seed(0)
    model, eager = pair(OPERATORS[name]())
    x = torch.randn(3, 6, 8)
    results = []
    for module in (model, eager):
        inputs = x.clone().requires_grad_()
        with autocast():
            y = module(inputs)
        (y.float() * torch.linspace(0.5, 1, y.numel()).view(y.shape)).sum().backward()
        results.append((y, inputs.grad, *(p.grad for p in module.parameters())))
    assert model.report().fallback == "none"
    for got, want in zip(*results, strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            assert got.dtype == want.dtype
            assert (got - want).float().abs().max() <= 0.03 * want.float().abs().max() + 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_rms_normalization_without_an_epsilon_adds_what_eager_adds(dtype: torch.dtype) -> None:
    model, eager = pair(nn.RMSNorm(8).to(dtype))
    x = (1e-3 * torch.randn(4, 8)).to(dtype)
    torch.testing.assert_close(model(x), eager(x))


def before_a_loop(m: Operator, x: torch.Tensor) -> torch.Tensor:
    z = x + m.row
    with torch.no_grad():
        for _ in range(2):
            z = torch.tanh(m.first(z)) + x
    return m.first(z + x)


def modes_in_turns(m: Operator, x: torch.Tensor) -> torch.Tensor:
    for i in range(4):
        with torch.set_grad_enabled(i % 2 == 1):
            x = torch.tanh(m.first(x + m.row))
    return x


def two_results(m: Operator, x: torch.Tensor) -> torch.Tensor:
    z = m.first(x)
    with torch.no_grad():
        y, scale = m.first(z), m.row * 2
    return m.first(z + y) * scale


def nested(m: Operator, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = m.first(x)
        with torch.autocast("cpu", enabled=False):
            y = y.float() @ m.square
        with torch.enable_grad():
            z = m.first(y)
    return m.first(x) * y + z


def written(m: Operator, x: torch.Tensor) -> torch.Tensor:
    z = m.first(x)
    with torch.no_grad():
        z += m.row.to(z.dtype)
    return z


def inference(m: Operator, x: torch.Tensor) -> torch.Tensor:
    z = m.first(x)
    with torch.inference_mode():
        y = m.first(z)
    return m.first(z + y)


@torch.inference_mode()
def teacher(m: Operator, x: torch.Tensor) -> torch.Tensor:
    return m.first(x) * m.row


def taught(m: Operator, x: torch.Tensor) -> torch.Tensor:
    return m.first(x) - teacher(m, x)


MODES = [inference, taught, before_a_loop, modes_in_turns, two_results, nested, written]


@pytest.mark.parametrize("where", ["around", "inside", "off"])
@pytest.mark.parametrize("run", MODES, ids=lambda run: run.__name__)
def test_blocks_without_gradients_stop_them(run: Callable[..., torch.Tensor], where: str) -> None:
    def forward(m: Operator, x: torch.Tensor) -> torch.Tensor:
        with autocast():
            return run(m, x)

    torch.manual_seed(0)
    model, eager = pair(Operator(forward if where == "inside" else run))
    x = torch.randn(3, 6, 8)
    for module in (model, eager):
        with autocast(where == "around"):
            y = module(x)
        (y.float() ** 2).sum().backward()
    for (name, p), q in zip(model.named_parameters(), eager.named_parameters(), strict=True):
        got, want = p.grad, q[1].grad
        assert (got is None) == (want is None), name
        if got is not None and want is not None:
            assert (got - want).abs().max() <= 0.03 * want.abs().max() + 1e-3, name
