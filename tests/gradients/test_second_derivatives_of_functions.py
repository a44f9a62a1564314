"""Second derivatives of modules that call torch's functions, against eager's: a function may be captured in a form
of which the first derivative alone is right, and such a call has to run in PyTorch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import ORTModule

Function = Callable[[torch.Tensor], torch.Tensor]
LABELS = torch.tensor([0, 3, 1, 2, 3])
SIGNS = torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)
OTHER = torch.linspace(-1.1, 1.3, 20, dtype=torch.float64).view(5, 4)

FUNCTIONS: dict[str, Function] = {
    **{
        name: getattr(F, name)
        for name in (
            "relu", "gelu", "silu", "elu", "selu", "celu", "softplus", "hardswish", "mish", "softsign",
            "tanhshrink", "hardtanh", "leaky_relu", "logsigmoid", "relu6", "softmin", "normalize",
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            "tanh", "sigmoid", "exp", "sin", "cos", "atan", "erf", "expm1", "sinh", "cosh", "square", "abs", "var",
            "std", "norm", "prod", "amax", "median",
        )
    },
    "cumsum": lambda x: x.cumsum(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "variance of rows": lambda x: x.var(1),
    "deviation of rows": lambda x: x.std(0, unbiased=False),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "cross_entropy, smooth": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "nll_loss": lambda x: F.nll_loss(x.log_softmax(1), LABELS),
    "mse_loss": lambda x: F.mse_loss(x, OTHER),
    "l1_loss": lambda x: F.l1_loss(x, OTHER),
    "huber_loss": lambda x: F.huber_loss(x, OTHER, delta=0.5),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, OTHER, beta=0.5),
    "kl_div": lambda x: F.kl_div(x.log_softmax(1), OTHER.softmax(1)),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), OTHER.sigmoid()),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, OTHER.sigmoid()),
    "binary_cross_entropy_with_logits, weights": lambda x: F.binary_cross_entropy_with_logits(
        x, OTHER.sigmoid(), OTHER.abs(), reduction="sum", pos_weight=OTHER[0].exp()
    ),
    "binary_cross_entropy_with_logits of zeros": lambda x: F.binary_cross_entropy_with_logits(
        x - x.detach(), (x * 2).sigmoid(), reduction="none"
    ),
    "huber_loss of what is met": lambda x: F.huber_loss(x, x.detach(), reduction="none") * x,
    "huber_loss of both": lambda x: F.huber_loss(x, x.square(), delta=0.5, reduction="sum"),
    "exponential of a huber_loss": lambda x: F.huber_loss(x, OTHER, delta=0.5, reduction="none").exp(),
    "cosine_similarity": lambda x: F.cosine_similarity(x, OTHER),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, OTHER, SIGNS),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, OTHER.sign()),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, OTHER, x.square() + 1),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, OTHER.abs()),
    "pairwise_distance": lambda x: F.pairwise_distance(x, OTHER),
    "triplet": lambda x: F.triplet_margin_loss(x, OTHER, OTHER.flip(0)),
    "glu": lambda x: F.glu(x),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 2),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "interpolate, two axes": lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear") ** 2,
    "interpolate, nearest": lambda x: F.interpolate(x[None, None], scale_factor=2.0) ** 2,
    "attention": lambda x: (x @ x.T).softmax(1) @ x,
    "power": lambda x: x.abs() ** 2.5,
    "where": lambda x: torch.where(x > 0, x * x, x.sin()),
    "clamp": lambda x: x.clamp(-0.5, 0.5) * x,
    "gather": lambda x: x.gather(1, LABELS[:, None]) ** 3,
    "index": lambda x: x[LABELS] ** 2,
    "sort": lambda x: x.sort(1).values ** 2,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "matrix": lambda x: torch.linalg.inv(x.T @ x + torch.eye(4, dtype=x.dtype)),
    "lerp": lambda x: torch.lerp(x, OTHER, x.sigmoid()),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.square() + 1),
    "atan2": lambda x: torch.atan2(x, x.square() + 1),
    "detached": lambda x: x * x.detach(),
    "rounded straight through": lambda x: (x + (x.round() - x).detach()) ** 2,
}  # fmt: skip


def normalized(x: torch.Tensor, axis: int) -> torch.Tensor:
    centered = x - x.mean(axis, keepdim=True)
    return centered / (centered.square().mean(axis, keepdim=True) + 1e-5).sqrt()


# Of these torch's own third derivatives are not what they are of the same function in other words.
IN_OTHER_WORDS: dict[str, Function] = {
    "layer_norm": lambda x: normalized(x, 1),
    "batch_norm": lambda x: normalized(x, 0),
}

# Of these second derivatives run in the engine though first ones are written down in a form of their own.
IN_ENGINE = {
    name
    for name in FUNCTIONS
    if name.startswith(("huber", "smooth_l1", "binary_cross_entropy_with_logits", "interpolate, ", "exponential of"))
} | {"var", "std", "variance of rows", "deviation of rows"}


class Between(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.function = nn.Linear(3, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.first(x))


def derivatives(module: nn.Module) -> list[torch.Tensor | None]:
    """First, second and, where there are any, third ones, of a second step."""
    torch.manual_seed(1)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, dtype=torch.float64)
    wanted = [x, *module.parameters()]
    for _ in range(2):
        y = module(x)
        of = (y * torch.arange(1, y.numel() + 1).view(y.shape)).sum()
        first = torch.autograd.grad(of, wanted, create_graph=True)
        of = (first[0] ** 3).sum() + (first[1] * weights).sum()
        second = torch.autograd.grad(of, wanted, create_graph=True, allow_unused=True, materialize_grads=True)
    found: list[torch.Tensor | None] = [*first, *second]
    of = sum(((one * weights.sum()) ** 2).sum() for one in second if one.requires_grad)
    try:
        return found + [*torch.autograd.grad(of, wanted, allow_unused=True)] if torch.is_tensor(of) else found
    except RuntimeError:  # eager has no third one of this function
        return [*found, None]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_eagers(name: str) -> None:
    eager = Between(FUNCTIONS[name]).double()
    ours = ORTModule(copy.deepcopy(eager))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [derivatives(module) for module in (eager, ours)]
    if name in IN_ENGINE:
        assert ours.report().fallback == "none", ours.report().fallback_reason
    wanted, found = results
    if name in IN_OTHER_WORDS:
        third = len(list(eager.parameters())) + 1
        wanted[-third:] = derivatives(Between(IN_OTHER_WORDS[name]).double())[-third:]
    rounding = 1e-14 * max(float(one.detach().abs().max()) for one in wanted if one is not None)
    for want, got in zip(wanted, found, strict=True):
        want, got = (torch.zeros(()) if one is None or one.abs().max() <= rounding else one for one in (want, got))
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8 * float(want.detach().abs().max() + 1))
