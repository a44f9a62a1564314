"""Static and dynamic sizes: what holds for other inputs, what the guards say, what depends on data."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from ortmodule.capture import capture
from ortmodule.errors import CaptureError

from .parity import assert_same_training, assert_valid, aten_nodes, operators
from .test_autograd_semantics import Module


def test_static_capture_has_no_symbolic_size() -> None:
    captured = capture(Module(lambda m, x: m.linear(x).view(-1).sum()), (torch.randn(4, 8),))
    assert "Sizes" not in operators(captured)
    assert not any(d.dim_param for i in captured.model.graph.input for d in i.type.tensor_type.shape.dim)


def test_sizes_are_expressions_not_chains_of_nodes() -> None:
    module = Module(
        lambda m, x: (
            m.linear(x).view(x.shape[0] * x.shape[1], 2, 4).transpose(0, 1).reshape(x.shape[0] * x.shape[1], 8).sum()
        )
    )
    captured = capture(module, (torch.randn(4, 6, 8),), dynamic_dims={(0, 0), (0, 1)})
    assert_valid(captured)
    assert set(operators(captured)) == {"Linear", "Sizes", "Reshape", "Transpose", "ReduceSum"}
    for shape in ((4, 6, 8), (3, 5, 8)):
        assert_same_training(captured, module, (torch.randn(shape),))


def test_length_of_a_tensor_stays_symbolic() -> None:
    module = Module(lambda m, x: (m.linear(x) * torch.arange(len(x))[:, None]).sum() / len(x))
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert not captured.specialized
    for rows in (4, 7):
        assert_same_training(captured, module, (torch.randn(rows, 8),))


def test_length_of_a_tensor_that_python_counts_with_is_fixed() -> None:
    module = Module(lambda m, x: sum(m.linear(x[i]).sum() for i in range(len(x))))
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert len(captured.specialized) == 1
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_batch_of_one_may_vary() -> None:
    module = Module(lambda m, x: m.linear(x).sum())
    captured = capture(module, (torch.randn(1, 8),), dynamic_dims={(0, 0)})
    for rows in (1, 3):
        assert_same_training(captured, module, (torch.randn(rows, 8),))


def test_batch_of_one_stays_static_where_the_forward_asks() -> None:
    module = Module(lambda m, x: m.linear(x).squeeze(0).sum())
    captured = capture(module, (torch.randn(1, 8),), dynamic_dims={(0, 0)})
    assert captured.check([torch.randn(1, 8)]) is None
    assert captured.check([torch.randn(2, 8)]) is not None


def test_guards_name_the_condition_that_fails() -> None:
    module = Module(lambda m, x: (m.linear(x[: x.shape[0] // 2]) + m.linear(x[x.shape[0] // 2 :])).sum())
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert captured.check([torch.randn(8, 8)]) is None
    assert_same_training(captured, module, (torch.randn(10, 8),))
    failed = captured.check([torch.randn(5, 8)])
    assert failed in captured.guards
    assert captured.check([torch.randn(1, 8)]) is not None


def written_copy(m: Module, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)[:, 1:]
    copy = y.contiguous()  # y itself where there is one row
    copy.mul_(2.0)
    return (y * copy).sum()


def attention(m: Module, x: torch.Tensor) -> torch.Tensor:
    y, eye = m.linear(x)[:, None], torch.eye(8)
    multi_head = torch.nn.functional.multi_head_attention_forward
    return multi_head(y, y, y, 8, 2, torch.cat([eye] * 3), None, None, None, False, 0.0, eye, None)[0].square().sum()


HOLDS_FOR_ONE = {
    "rows": lambda m, x: m.linear(x).sum(),
    "broadcast": lambda m, x: (m.linear(x)[:, None] * m.linear(x)[None]).sum(),
    "contiguous part": lambda m, x: m.linear(x)[:, 1:].contiguous().view(-1).sum(),
    "transposed": lambda m, x: m.linear(x).t().contiguous().view(4, 2, -1).softmax(-1).square().sum(),
    "inner product": lambda m, x: torch.einsum("bi,ci->bc", m.linear(x), x).square().mean(),
    "in place": lambda m, x: torch.zeros_like(x).add_(m.linear(x)).index_fill_(0, torch.tensor([0]), 2.0).sum(),
    "expanded": lambda m, x: (m.linear.weight.unsqueeze(0).expand(len(x), -1, -1) @ x.unsqueeze(2)).sum(),
    "reshaped": lambda m, x: (m.linear(x).t().reshape(-1) * x.t().reshape(-1)).sum(),
    "outer product": lambda m, x: torch.outer(m.linear(x)[:, 0], x[:, 1]).square().sum(),
    "taken along": lambda m, x: torch.take_along_dim(m.linear(x), x.argsort(1)[:, :3], 1).cumsum(1).sum(),
    "cosine": lambda m, x: torch.cosine_similarity(m.linear(x)[:, None], x[None], dim=-1).sum(),
    "attention": lambda m, x: attention(m, x),
    "concatenated": lambda m, x: torch.cat([m.linear(x), x[:1]]).std(0).sum(),
    "normalized": lambda m, x: torch.nn.functional.layer_norm(m.linear(x), (len(x), 8)).pow(3).sum(),
}
ASKS_FOR_ONE = {
    "branch": lambda m, x: m.linear(x).sum() if len(x) == 1 else m.linear(x).mean(),
    "squeeze of an axis": lambda m, x: (m.linear(x).squeeze(0) * torch.arange(8.0)).sum(-1).square().sum(),
    "copying squeeze": lambda m, x: (torch.squeeze_copy(m.linear(x), 0) * torch.arange(8.0)).sum(-1).square().sum(),
    "squeeze of all": lambda m, x: m.linear(x[:, None]).squeeze().sum(0).square().sum(),
    "empty rest": lambda m, x: m.linear(x[1:]).mean(),
    "written copy": written_copy,
    "written reshape": lambda m, x: m.linear(x).t().reshape(-1).mul_(2.0).square().sum(),
}


@pytest.mark.parametrize("function", [*HOLDS_FOR_ONE.values(), *ASKS_FOR_ONE.values()])
def test_symbolic_size_holds_for_one_or_says_that_it_does_not(function: Callable[..., torch.Tensor]) -> None:
    module = Module(function)
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert not captured.specialized
    assert (captured.check([torch.randn(1, 8)]) is None) == (function in HOLDS_FOR_ONE.values()), captured.guards
    for rows in (1, 2, 7):
        if captured.check([torch.randn(rows, 8)]) is None:
            assert_same_training(captured, module, (torch.randn(rows, 8),))
    assert captured.check([torch.randn(2, 8)]) is None
    assert captured.check([torch.randn(0, 8)]) is not None


def test_chunks_of_a_filled_up_sequence_hold_for_every_length() -> None:
    def chunks(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        pad = (4 - x.shape[1] % 4) % 4
        padded = nn.functional.pad(m.linear(x), (0, 0, 0, pad))
        cut = padded.reshape(x.shape[0], -1, 4, 8)
        summed = cut.cumsum(2) + cut.sum(2, keepdim=True)
        return summed.reshape(x.shape[0], -1, 8)[:, : x.shape[1]].square().sum()

    module = Module(chunks)
    captured = capture(module, (torch.randn(3, 6, 8),), dynamic_dims={(0, 0), (0, 1)})
    assert not captured.specialized
    for shape in ((3, 6, 8), (2, 8, 8), (1, 1, 8), (2, 13, 8)):
        assert captured.check([torch.randn(shape)]) is None
        assert_same_training(captured, module, (torch.randn(shape),))


@pytest.mark.parametrize("size", [(7, 3), (5, 2), (4, 4)])
def test_quotients_and_remainders_of_a_size(size: tuple[int, int]) -> None:
    module = Module(lambda m, x: m.linear(x).sum() * (x.shape[0] % 3) + x.shape[0] // 3 - (5 - x.shape[0]) % 4)
    captured = capture(module, (torch.randn(size[0], 8),), dynamic_dims={(0, 0)})
    for rows in range(2, 9):
        if captured.check([torch.randn(rows, 8)]) is None:
            assert_same_training(captured, module, (torch.randn(rows, 8),))


def test_a_tensor_may_be_written_before_a_copy_of_it_but_not_after() -> None:
    def before(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = m.linear(x)
        y[:, 0] = 1.0
        return (y.t().contiguous() * 2).sum()

    def after(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = m.linear(x)
        z = y.t().contiguous()
        y[:, 0] = 1.0
        return (z * 2).sum() + y.sum()

    captured = capture(Module(before), (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    for rows in (1, 4, 5):
        assert captured.check([torch.randn(rows, 8)]) is None
        assert_same_training(captured, Module(before), (torch.randn(rows, 8),))
    assert capture(Module(after), (torch.randn(4, 8),), dynamic_dims={(0, 0)}).check([torch.randn(1, 8)])


def test_shape_of_a_view_unifies_sizes() -> None:
    module = TwoInputs(lambda m, x, n: (m.linear(x) * n.view(len(x), -1)).sum())
    captured = capture(module, (torch.randn(4, 8), torch.randn(4, 8)), dynamic_dims={(0, 0), (1, 0)})
    assert not any("//" in condition for condition in captured.guards), captured.guards
    assert_same_training(captured, module, (torch.randn(1, 8), torch.randn(1, 8)))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_recurrent_layer_has_a_free_sequence(layer: type[nn.Module], options: dict) -> None:
    module = Module(lambda m, x: m.rnn(x)[0].sum())
    module.rnn = layer(8, 6, batch_first=True, **options)
    captured = capture(module, (torch.randn(2, 5, 8),), dynamic_dims={(0, 0), (0, 1)})
    assert not captured.specialized and not aten_nodes(captured)
    for shape in ((2, 5, 8), (3, 9, 8)):
        assert_same_training(captured, module, (torch.randn(shape),))


def test_projected_lstm_with_given_state() -> None:
    module = Module(lambda m, x, h=None: m.rnn(x, (torch.zeros(1, 5, 3), torch.ones(1, 5, 6)))[1][1].sum())
    module.rnn = nn.LSTM(8, 6, proj_size=3)
    assert_same_training(capture(module, (torch.randn(4, 5, 8),)), module, (torch.randn(4, 5, 8),))


def data_dependent(m: Module, x: torch.Tensor) -> torch.Tensor:
    if m.linear(x).sum() > 0:
        return x.sum()
    return -x.sum()


def test_a_size_that_is_one_though_it_is_written_with_others_broadcasts() -> None:
    """`bias[max(0, 1 - n):]` has one row for every n; no rule sees that, but the exporter says what the sum has."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.bias = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, width = x.shape
            y = self.linear(x) + self.bias[max(0, self.bias.size(0) - length) :]
            return (y.reshape(batch, length * width).tanh() ** 2).sum()

    eager = Biased()
    module = ORTModule(copy.deepcopy(eager))
    for batch, length in ((2, 4), (5, 7), (3, 9)):
        x = torch.randn(batch, length, 8)
        losses = [m(x) for m in (module, eager)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses)
        for a, b in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert module.report().fallback == "none"


def test_data_dependent_branch_is_refused_with_the_users_line() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Module(data_dependent), (torch.randn(4, 8),))
    assert "test_sizes.py" in caught.value.source_line
    assert "if m.linear(x).sum() > 0" in caught.value.source_line


def selected(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    return h[h > 0].sum() + (h > 1).nonzero().sum()


def test_result_whose_size_depends_on_data() -> None:
    module = Module(selected)
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert_valid(captured)
    assert_same_training(captured, module, (torch.randn(6, 8),))


def sliced(m: Module, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 2)
    torch._check(k <= 4)
    return m.linear(x[:k]).view(-1).sum()


class TwoInputs(Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.function(self, x, n)


def test_size_read_from_a_tensor() -> None:
    module = TwoInputs(sliced)
    captured = capture(module, (torch.randn(4, 8), torch.tensor(3)))
    assert_valid(captured)
    for n in (2, 3, 4):
        assert_same_training(captured, module, (torch.randn(4, 8), torch.tensor(n)))


def test_number_read_from_a_tensor_carries_no_gradient() -> None:
    module = Module(lambda m, x: (m.linear(x) * m.linear(x).sum().item()).sum())
    captured = capture(module, (torch.randn(4, 8),))
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_float_computed_from_a_size() -> None:
    module = Module(lambda m, x: (m.linear(x) * (1 / x.shape[0]) + x.shape[0] / 3).sum())
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    for n in (4, 9):
        assert_same_training(captured, module, (torch.randn(n, 8),))


def test_the_sizes_of_an_inputs_own_gradient_do_not_count() -> None:
    """An input that has a gradient while a graph for all sizes is made, and later ones that have none."""
    eager = Weighted()
    model = ORTModule(eager)
    with_gradient = torch.randn(3, 4, requires_grad=True)
    weight = torch.ones(4, requires_grad=True)
    given = [(with_gradient, weight)] * 2 + [(torch.randn(n, 4, requires_grad=True), weight) for n in (5, 6)]
    for x, scale in (*given, (torch.randn(7, 4), torch.ones(4))):
        got = model(x, scale)
        got.sum().backward()
        torch.testing.assert_close(got, eager(x, scale))
    assert len(model.report().exports) == 2


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.linear(x), x, weight)
