"""A forward that changes the mode of its parts leaves each of them as eager does, whatever of them it looks at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ortmodule import ORTModule

LOOKS: dict[str, Callable[[nn.ModuleList], object]] = {
    "nothing": lambda parts: None,
    "their number": len,
    "one": lambda parts: parts[0].setting,
    "all": lambda parts: [part.setting for part in parts],
}


class Net(nn.Module):
    def __init__(self, look: Callable[[nn.ModuleList], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.look = nn.Linear(4, 4), look
        self.parts = nn.ModuleList(nn.Identity() for _ in range(3))
        for part in self.parts:
            part.setting = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.look(self.parts)
        self.train(not self.training)
        return y


@pytest.mark.parametrize("look", LOOKS)
def test_every_part_gets_the_mode(look: str) -> None:
    modes = []
    for engine in (False, True):
        net = Net(LOOKS[look])
        model = ORTModule(net) if engine else net
        found = []
        for call in range(8):
            if call < 5:
                model.train()
            model(torch.ones(2, 4)).sum().backward()
            found.append([part.training for part in net.modules()])
        modes.append(found)
    assert modes[0] == modes[1]
