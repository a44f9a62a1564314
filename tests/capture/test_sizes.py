"""Static and dynamic sizes: what holds for other inputs, what the guards say, what depends on data."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

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


def test_batch_of_one_stays_static() -> None:
    module = Module(lambda m, x: m.linear(x).sum())
    captured = capture(module, (torch.randn(1, 8),), dynamic_dims={(0, 0)})
    assert len(captured.specialized) == 1 and "axis 0 of input 'x'" in captured.specialized[0]
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
