"""Which library multiplies matrices is the user's choice or a rule's; the numbers are eager's either way."""

import copy

import pytest
import torch
from torch import nn

import ortmodule
from ortmodule import Options, ORTModule

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN"
)


class Products(nn.Module):
    """A Linear with and without bias, a plain matmul with a weight, and a product of Gemm's form."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width, bias=False)
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        y = self.second(torch.relu(self.first(x))) @ self.weight
        return torch.addmm(self.bias, y.flatten(0, -2), self.weight).square().mean()


def gradients(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss = model(x)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("matmul", ["auto", "aten", pytest.param("onednn", marks=needs_onednn)])
@pytest.mark.parametrize("sizes", [(3, 5, 16), (7, 64), (4, 64, 192), (3, 131, 384), (0, 5, 16), (1, 1, 16)])
def test_every_provider_gives_eagers_numbers(matmul, sizes):
    torch.manual_seed(0)
    module = Products(sizes[-1])
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=Options(matmul=matmul))
    x = torch.randn(sizes)
    for _ in range(2):
        want, got = gradients(eager, x), gradients(model, x)
    torch.testing.assert_close(got[0], want[0], equal_nan=True)
    for g, w in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_two_runs_have_the_same_bits_on_any_number_of_threads(threads: int) -> None:
    torch.manual_seed(0)
    module, x = Products(384), torch.randn(393, 384)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, second = (gradients(ORTModule(copy.deepcopy(module)), x) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(first[0], second[0])
    for a, b in zip(first[1], second[1], strict=True):
        assert torch.equal(a, b)


def test_deterministic_algorithms_give_the_same_bits_as_eager():
    torch.manual_seed(0)
    module = Products(192)
    eager = copy.deepcopy(module)
    model, x = ORTModule(module), torch.randn(64, 192)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gradients(model, x)[0], gradients(eager, x)[0])
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_unknown_provider_is_refused_with_the_nearest_name():
    with pytest.raises(ortmodule.InvalidArgumentError, match="did you mean 'onednn'"):
        Options(matmul="oneDNN")


@pytest.mark.parametrize("rows", [1, 40, 257])
@pytest.mark.parametrize("bias", [True, False])
def test_few_rows_times_many_columns_are_eagers_numbers(rows: int, bias: bool) -> None:
    """Such products are computed in strips of columns, whose last one is narrower."""
    torch.manual_seed(0)
    module = nn.Linear(64, 2500, bias=bias)
    eager, model = copy.deepcopy(module), ORTModule(module)
    x = torch.randn(2, rows, 64)[1:]
    want, got = eager(x), model(x)
    torch.testing.assert_close(got, want)
    assert torch.equal(model(x), got)
    for y in (want, got):
        y.square().mean().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
