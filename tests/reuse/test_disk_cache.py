"""Captured graphs kept on disk: a restart finds them, and damage, foreign files and many processes do no harm."""

from __future__ import annotations

import collections
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import transformers
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from ortmodule import Options, ORTModule
from ortmodule.capture import Captured
from ortmodule.graph_transition.disk import stored
from tests import zoo
from tests.support import Lambda, assert_same_gradients, mlp, pair


def step(model: nn.Module, *args: Any) -> Any:
    result = model(*args)
    first = result[0] if isinstance(result, (tuple, list)) else result
    first.square().sum().backward()
    return result


def cached(model: ORTModule) -> list[bool]:
    return [export.cached for export in model.report().exports]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.static")) + sorted(folder.glob("*.dynamic"))


def twice(make: Callable[[], nn.Module], folder: Path, *args: Any) -> tuple[ORTModule, Any, nn.Module, Any]:
    """Runs a module and then a new one of the same kind; the latter beside eager."""
    first, _ = pair(make(), cache_dir=str(folder))
    step(first, *args)
    assert cached(first) == [False]
    second, eager = pair(make(), cache_dir=str(folder))
    return second, step(second, *args), eager, step(eager, *args)


def assert_hit(make: Callable[[], nn.Module], folder: Path, *args: Any) -> None:
    model, ours, eager, theirs = twice(make, folder, *args)
    assert cached(model) == [True]
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(model, eager)


def test_a_second_module_of_the_kind_is_not_captured(tmp_path: Path) -> None:
    assert_hit(mlp, tmp_path, torch.randn(5, 4))


def test_the_report_says_where_the_graph_came_from(tmp_path: Path) -> None:
    model, *_ = twice(mlp, tmp_path, torch.randn(5, 4))
    assert "first call, from the disk cache" in str(model.report())
    assert "load" in model.report().sessions[0].seconds


def test_nothing_is_kept_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step(ORTModule(mlp()), torch.randn(5, 4))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_turns_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "made" / "here"))
    step(ORTModule(mlp()), torch.randn(5, 4))
    assert len(entries(tmp_path / "made" / "here")) == 1


def test_a_graph_with_varying_sizes_serves_a_size_that_was_never_seen(tmp_path: Path) -> None:
    first, _ = pair(mlp(), cache_dir=str(tmp_path))
    for rows in (5, 7):
        step(first, torch.randn(rows, 4))
    second, eager = pair(mlp(), cache_dir=str(tmp_path))
    for rows in (9, 3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(step(second, x), step(eager, x))
    assert cached(second) == [True]
    assert_same_gradients(second, eager)


def test_batch_norm_statistics_are_written_back(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    model, _, eager, _ = twice(make, tmp_path, torch.randn(6, 4))
    assert cached(model) == [True]
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Result:
    hidden: torch.Tensor
    scale: float
    none: Any = None


OUTPUTS: dict[str, Callable[..., Any]] = {
    "a tuple": lambda m, x: (m.linear(x), x, None, 3, m.linear.weight),
    "a dict": lambda m, x: [m.linear(x), {"b": x + 1, "a": [x, None, 0.1]}],
    "a named tuple": lambda m, x: (m.linear(x), Point(x * 2, m.table)),
    "a dataclass": lambda m, x: (m.linear(x), Result(x.exp(), 0.5)),
    "an ordered dict": lambda m, x: (m.linear(x), collections.OrderedDict(z=x.sin())),
    "a size": lambda m, x: (m.linear(x), x.shape[0]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_structure_of_a_result_is_kept(name: str, tmp_path: Path) -> None:
    model, ours, _, theirs = twice(lambda: Lambda(OUTPUTS[name]), tmp_path, torch.randn(2, 4))
    assert cached(model) == [True]
    assert type(ours) is type(theirs)
    if name == "a dataclass":
        ours, theirs = [(o[0], *dataclasses.astuple(o[1])) for o in (ours, theirs)]
    torch.testing.assert_close(ours, theirs)


def test_a_result_that_is_the_caller_s_tensor_stays_that_tensor(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    model, ours, _, _ = twice(lambda: Lambda(OUTPUTS["a tuple"]), tmp_path, x)
    assert ours[1] is x and ours[4] is model.linear.weight


def test_a_tensor_attribute_is_the_module_s_own(tmp_path: Path) -> None:
    def make() -> nn.Module:
        module = Lambda(lambda m, x: m.linear(x) * m.mask + torch.tensor([1.0, 2.0, 3.0, 4.0]))
        module.mask = torch.tensor([1.0, 0.0, 1.0, 2.0])
        return module

    x = torch.randn(2, 4)
    model, ours, eager, theirs = twice(make, tmp_path, x)
    torch.testing.assert_close(ours, theirs)
    for m in (model, eager):
        m.mask.fill_(3.0)
    torch.testing.assert_close(model(x), eager(x))


def test_transformers_models(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    ids = torch.randint(0, 40, (2, 6))
    for cls, labels in ((BertForMaskedLM, ids), (BertForSequenceClassification, torch.tensor([0, 1]))):
        losses = []
        for _ in range(2):
            torch.manual_seed(0)
            model, eager = pair(cls(BertConfig(**config.to_dict())).eval(), cache_dir=str(tmp_path))
            output = model(input_ids=ids, labels=labels)
            assert type(output) is type(eager(input_ids=ids, labels=labels))
            output.loss.backward()
            eager(input_ids=ids, labels=labels).loss.backward()
            assert_same_gradients(model, eager)
            losses.append((output.loss.item(), cached(model)))
        assert losses == [(losses[0][0], [False]), (losses[0][0], [True])]


def test_models_whose_results_hold_their_caches(tmp_path: Path) -> None:
    config = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    ids = torch.randint(1, 40, (2, 6))
    for name in ("GPT2", "Llama"):
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{name}Config")(**config))
            model, eager = pair(made.eval(), cache_dir=str(tmp_path))
            ours, theirs = model(input_ids=ids, labels=ids), eager(input_ids=ids, labels=ids)
            torch.testing.assert_close(ours.logits, theirs.logits)
            assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length() == 6
            theirs.loss.backward()
            ours.loss.backward()
            assert_same_gradients(model, eager)
            found += cached(model)
        assert found == [False, True], name


@pytest.mark.parametrize(
    "name", [name for name in zoo.ALL if name not in ("mixtral", "mamba")]
)  # those cache functions
def test_every_family_is_read_by_the_next_start(name: str, tmp_path: Path) -> None:
    found, losses = [], []
    for _ in range(2):
        torch.manual_seed(0)
        sample = zoo.build(name)
        model = ORTModule(sample.module, options=Options(fallback="error", cache_dir=tmp_path))
        losses.append(zoo.loss_of(model(**sample.inputs)).item())
        found += cached(model)
    assert found == [False, True]
    assert losses[0] == losses[1]


class Plain:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden, self.seen = hidden, 3


class Told(Plain):
    def __del__(self) -> None:
        """Objects of such a class are not made of their attributes alone."""


@pytest.mark.parametrize("kind, kept", [(Plain, True), (Told, False)])
def test_a_plain_object_as_a_result(kind: type[Plain], kept: bool, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        eager = Lambda(lambda m, x: kind(m.linear(x)))
        model = ORTModule(eager, options=Options(cache_dir=tmp_path))
        x = torch.randn(2, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = model(x), eager(x)
        assert type(ours) is kind and ours.seen == 3
        torch.testing.assert_close(ours.hidden, theirs.hidden)
        found.append(cached(model))
    assert found == ([[False], [True]] if kept else [[], []])


# -- damage ------------------------------------------------------------------------------------------------------------


def flipped(data: bytes) -> bytes:
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "truncated in the first line": lambda data: data[:7],
    "empty": lambda data: b"",
    "one bit": flipped,
    "garbage": lambda data: os.urandom(1000),
    "a pickle": lambda data: b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.",
    "longer": lambda data: data + b"more",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_told_passed_over_and_replaced(name: str, tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    step(pair(mlp(), cache_dir=str(tmp_path))[0], x)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGES[name](whole))
    model, eager = pair(mlp(), cache_dir=str(tmp_path))
    with pytest.warns(RuntimeWarning, match="ignores the cache entry"):
        ours = step(model, x)
    torch.testing.assert_close(ours, step(eager, x))
    assert cached(model) == [False]
    last, _ = pair(mlp(), cache_dir=str(tmp_path))
    step(last, x)
    assert cached(last) == [True]


def test_an_entry_under_the_name_of_another_is_passed_over(tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    step(pair(mlp(), cache_dir=str(tmp_path))[0], x)
    (entry,) = entries(tmp_path)
    step(pair(nn.Linear(4, 3), cache_dir=str(tmp_path))[0], x)
    (other,) = set(entries(tmp_path)) - {entry}
    other.write_bytes(entry.read_bytes())
    model, eager = pair(nn.Linear(4, 3), cache_dir=str(tmp_path))
    with pytest.warns(RuntimeWarning, match="made for another call"):
        torch.testing.assert_close(step(model, x), step(eager, x))


def test_conditions_that_are_no_comparison_are_never_run(tmp_path: Path) -> None:
    for text in (
        "__import__('os').system('x')", "L['tensors'][0].size()[0] > exit()", "torch.load('x')", "[].append(1)",
        "L.__class__", "(lambda: 1)()",
    ):  # fmt: skip
        with pytest.raises(stored.NotStorable):
            stored._checked_condition(text)
    assert stored._checked_condition("2 <= L['tensors'][0].size()[1] and (L['tensors'][1].size()[0] % 8) == 0")


def test_every_part_of_a_capture_is_kept_or_made_anew() -> None:
    """A field that is added to Captured must be thought of in stored.py."""
    assert {f.name for f in dataclasses.fields(Captured)} == {
        "model", "user_inputs", "parameters", "buffers", "constants", "outputs", "mutations", "in_spec", "out_spec",
        "baked", "changed_attributes", "settings", "guards", "check", "specialized", "fixed",
        "needs_python", "seconds", "trace", "flags", "branches",
        "left", "messages", "hook_order", "histories", "recorded", "saved_writes", "saved_left", "repeats",
        "result_order", "given_changes",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["a file in its place", "no space"])
def test_a_folder_that_cannot_be_written_to_is_told_and_does_no_harm(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    if kind == "a file in its place":
        folder.write_text("")
    else:

        def full(source: Any, target: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    model, eager = pair(mlp(), cache_dir=str(folder))
    x = torch.randn(5, 4)
    with pytest.warns(RuntimeWarning, match="cannot write to its cache"):
        ours = step(model, x)
    torch.testing.assert_close(ours, step(eager, x))
    if folder.is_dir():
        assert list(folder.iterdir()) == []


def test_the_folder_stays_within_its_size(tmp_path: Path) -> None:
    x = torch.randn(5, 4)

    def make() -> Lambda:
        module = Lambda(lambda m, x: m.linear(x))
        module.note = "a" * 400_000  # part of the graph's description
        module.function = lambda m, x: m.linear(x) * len(m.note)
        return module

    for i in range(4):
        module = make()
        module.number = i
        step(pair(module, cache_dir=str(tmp_path), cache_dir_mib=1)[0], x)
        time.sleep(0.02)
    kept = entries(tmp_path)
    assert len(kept) == 2 and sum(p.stat().st_size for p in kept) < 1 << 20
    module = make()
    module.number = 3
    last, _ = pair(module, cache_dir=str(tmp_path), cache_dir_mib=1)
    step(last, x)
    assert cached(last) == [True]


def test_custom_functions_and_operators_are_not_kept(tmp_path: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * 2

    module = Lambda(lambda m, x: Twice.apply(m.linear(x)))
    step(ORTModule(module, options=Options(cache_dir=str(tmp_path))), torch.randn(2, 4))
    assert entries(tmp_path) == []


# -- processes ---------------------------------------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys, warnings
    import torch, torch.nn as nn
    import ortmodule
    from ortmodule import ORTModule, Options
    from ortmodule.graph_transition.disk import cache

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

        def forward(self, x):
            return self.layers(x)

    mode, folder = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ORTModule(Net(), options=Options(cache_dir=folder, fallback="error"))
    if mode == "killed":
        replace = os.replace
        cache.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
    warnings.simplefilter("error")
    y = model(torch.ones(5, 4))
    y.sum().backward()
    print(y.sum().item(), model.layers[0].weight.grad.sum().item(), [e.cached for e in model.report().exports])
"""


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    if not script.exists():
        script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, str(script), mode, str(folder / "cache")], stdout=subprocess.PIPE, text=True, cwd=folder
    )


def test_processes_share_a_folder_and_one_that_is_killed_while_it_writes_does_no_harm(tmp_path: Path) -> None:
    killed = start(tmp_path, "killed")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    cache = tmp_path / "cache"
    assert entries(cache) == [] and len(list(cache.iterdir())) == 1  # the temporary file
    together = [start(tmp_path, "run") for _ in range(2)]
    outputs = [p.communicate()[0].split(" [")[0] for p in together]
    assert [p.returncode for p in together] == [0, 0] and outputs[0] == outputs[1]
    assert len(entries(cache)) == 1
    (left,) = cache.glob("*.writing")
    os.utime(left, (0, 0))
    third = start(tmp_path, "run")
    assert third.communicate()[0].strip() == f"{outputs[0]} [True]"


def test_what_a_killed_process_left_is_removed_later(tmp_path: Path) -> None:
    left = tmp_path / "x.writing"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    young = tmp_path / "y.writing"
    young.write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(pair(mlp(), cache_dir=str(tmp_path))[0], torch.randn(5, 4))
    assert not left.exists() and young.exists()
