"""Under autocast: operands of two types, the types of results, and blocks without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from tests.support import pair


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


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


# Eager hands an LSTM under autocast to oneDNN, which has none of bfloat16 for processors with AVX2 alone: it raises, or
# its results have another type. Ours is its own.
EAGER_HAS_NO_LSTM = not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def skip_without_lstm(name: str) -> None:
    if EAGER_HAS_NO_LSTM and name in ("lstm of floats", "lstm alone"):
        pytest.skip("eager's LSTM of bfloat16 does not run on this processor")


@pytest.mark.parametrize("name", OPERATORS)
def test_operands_of_two_types(name: str) -> None:
    skip_without_lstm(name)
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


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.layer(x, state)


@pytest.mark.parametrize("given", [False, True], ids=["no state", "a state"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["lstm", "lstm with a projection", "gru", "rnn"])
def test_results_of_recurrent_layers_have_eagers_types(kind: str, dtype: torch.dtype, given: bool) -> None:
    skip_without_lstm(f"{kind} alone")
    hidden = 3 if "projection" in kind else 5
    make = {"gru": nn.GRU, "rnn": nn.RNN}.get(kind, nn.LSTM)
    model, eager = pair(Recurrent(make(8, 5, **({"proj_size": 3} if hidden == 3 else {}))))
    x, h, c = torch.randn(3, 6, 8).to(dtype), torch.randn(1, 6, hidden), torch.randn(1, 6, 5)
    state = None if not given else (h, c) if make is nn.LSTM else h
    with autocast():
        results = [tree_leaves(module(x, state)) for module in (model, eager)]
    for got, want in zip(*results, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


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
