"""torch.distributions within a forward: what they give, and the gradients of their parameters, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributions as D
import torch.nn as nn
from torch.distributions import Distribution

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients

MAKERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Distribution]] = {
    "normal": D.Normal, "log normal": D.LogNormal, "beta": D.Beta, "gamma": D.Gamma, "laplace": D.Laplace,
    "cauchy": D.Cauchy, "gumbel": D.Gumbel, "student": D.StudentT, "fisher": D.FisherSnedecor, "pareto": D.Pareto,
    "weibull": D.Weibull, "kumaraswamy": D.Kumaraswamy, "inverse gamma": D.InverseGamma,
    "logistic normal": D.LogisticNormal,
    "uniform": lambda a, b: D.Uniform(a, a + b), "exponential": lambda a, b: D.Exponential(a * b),
    "dirichlet": lambda a, b: D.Dirichlet(a * b), "chi squared": lambda a, b: D.Chi2(a * b),
    "bernoulli": lambda a, b: D.Bernoulli(a * b), "categorical": lambda a, b: D.Categorical(a * b),
    "geometric": lambda a, b: D.Geometric(a * b), "poisson": lambda a, b: D.Poisson(a * b),
    "binomial": lambda a, b: D.Binomial(5, a * b), "negative binomial": lambda a, b: D.NegativeBinomial(5.0, a * b),
    "one hot": lambda a, b: D.OneHotCategorical(a * b),
    "straight through": lambda a, b: D.OneHotCategoricalStraightThrough(a * b),
    "relaxed": lambda a, b: D.RelaxedOneHotCategorical(torch.tensor(0.7), a * b),
    "of a covariance": lambda a, b: D.MultivariateNormal(a, torch.eye(3) + b[:, None] * b),
    "of low rank": lambda a, b: D.LowRankMultivariateNormal(a, b[:, None], a),
    "mixture": lambda a, b: D.MixtureSameFamily(D.Categorical(a), D.Normal(a, b)),
    "transformed": lambda a, b: D.TransformedDistribution(
        D.Normal(a, b), [D.AffineTransform(a, b), D.SigmoidTransform(), D.PowerTransform(torch.tensor(2.0))]
    ),
    "stick breaking": lambda a, b: D.TransformedDistribution(
        D.Independent(D.Normal(a, b), 1), [D.StickBreakingTransform()]
    ),
    "correlations": lambda a, b: D.LKJCholesky(3, (a * b).sum()),
}  # fmt: skip


class Drawn(nn.Module):
    """A sample, its probability, and that of a value that is given."""

    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor], Distribution], given: torch.Tensor) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([0.4, 0.6, 0.5])), nn.Parameter(torch.tensor([0.7, 0.5, 0.6]))
        self.make, self.given = make, given

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        distribution = self.make(self.a * x, self.b)
        sample = distribution.rsample() if distribution.has_rsample else distribution.sample()
        return sample, distribution.log_prob(sample.detach()), distribution.log_prob(self.given)


@pytest.mark.parametrize("name", MAKERS)
def test_samples_and_probabilities(name: str) -> None:
    torch.manual_seed(1)
    make = MAKERS[name]
    given = make(torch.tensor([0.4, 0.6, 0.5]), torch.tensor([0.7, 0.5, 0.6])).sample()
    eager = Drawn(make, given)
    ours = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for seed in range(2):
        got, want = [], []
        for module, results in ((ours, got), (eager, want)):
            torch.manual_seed(seed)
            results.extend(module(torch.ones(3)))
            sum(y.square().sum() for y in results if y.requires_grad).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert_same_gradients(ours, eager, rtol=1e-3, atol=1e-4)
