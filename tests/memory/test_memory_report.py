"""`model.memory_report()` names what each half of a step holds when it holds most."""

from __future__ import annotations

import torch
from torch import nn

from ortmodule import ORTModule
from tests.support import mlp, pair


def test_before_the_first_step_there_is_nothing() -> None:
    report = ORTModule(mlp()).memory_report()
    assert report.sessions == () and report.gradient_bytes == 0
    assert "parameters and buffers" in str(report)


def test_the_tensors_of_a_peak_add_up_to_it() -> None:
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    model = ORTModule(module)
    model(torch.randn(16, 8)).square().mean().backward()
    report = model.memory_report()
    (session,) = report.sessions
    assert session.mode == "training"
    peaks = [sum(t.bytes for t in half) for half in (session.forward, session.backward)]
    assert max(peaks) == model.report().peak_bytes
    # Tanh's result is what backward needs; weights and the input are the caller's.
    assert [t.bytes for t in session.forward if t.kind == "saved"] == [16 * 32 * 4]
    assert session.saved_bytes == 16 * 32 * 4
    assert report.parameter_bytes == report.gradient_bytes == sum(p.nbytes for p in module.parameters())
    assert "Tanh" in str(report) and "saved" in str(report)


def test_backward_holds_gradients_and_what_autograd_gave() -> None:
    model, _ = pair(mlp())
    model(torch.ones(64, 4)).sum().backward()
    (session,) = model.memory_report().sessions
    kinds = {t.kind for t in session.backward}
    assert "gradient" in kinds and kinds <= {"saved", "gradient", "temporary", "given", "output"}
    sizes = [t.bytes for t in session.backward]
    assert sizes == sorted(sizes, reverse=True)


def test_tied_weights_count_once_and_evaluation_has_no_backward() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[1].weight = module[0].weight
    model = ORTModule(module).eval()
    with torch.no_grad():
        model(torch.ones(2, 6))
    report = model.memory_report()
    assert report.parameter_bytes == 4 * (36 + 6 + 6)
    assert report.sessions[0].mode == "inference" and report.sessions[0].backward == ()


class Tied(nn.Module):
    """A table that is read by position twice and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4000, 8)

    def forward(self, ids: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + torch.nn.functional.embedding(more, self.table.weight, padding_idx=1)
        return (x @ self.table.weight.t()).square().mean()


def test_a_tied_table_gets_its_gradient_in_one_buffer() -> None:
    model, eager = pair(Tied())
    ids, more = torch.tensor([1, 7, 7]), torch.tensor([1, 3999, 0])
    for module in (model, eager):
        module(ids, more).backward()
    torch.testing.assert_close(model.get_parameter("table.weight").grad, eager.get_parameter("table.weight").grad)
    table = 4000 * 8 * 4
    (session,) = model.memory_report().sessions
    assert [t.bytes for t in session.backward].count(table) == 1
