"""A model whose scores are large, and what programs do with such a result: the rows of test_late_behaviours.py.

A look is a function of the result that gives what it sees of the scores; a step is what a program does with a result in
place of `result["loss"].backward()`. Each is run on eager and on ORTModule.
"""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.dlpack import to_dlpack

ROWS, WIDTH, WORDS = 256, 32, 1024  # 1 MiB of scores

Result = dict[str, Any]
LOOKS: dict[str, Callable[[Result], Any]] = {}
STEPS: dict[str, Callable[[Any, Result], Any]] = {}
FRESH: set[str] = set()  # steps after which calls of the kind run in PyTorch


class Net(nn.Module):
    """Scores of words, from labels of which most are ignored, and small hidden states."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> Result:
        hidden = self.words(ids) * scale
        hidden = self.norm(hidden + self.dropout(torch.tanh(self.inner(hidden))))
        scores = self.head(hidden)
        loss = F.cross_entropy(scores.view(-1, WORDS), labels.view(-1))
        return {"loss": loss, "logits": scores, "hidden": hidden}


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and labels of 4 texts, and a factor of the embeddings."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(WORDS, (4, ROWS // 4), generator=generator)
    ignored = torch.rand(ids.shape, generator=generator) > 0.3
    return ids, ids.masked_fill(ignored, -100), torch.rand(WIDTH, generator=generator) + 0.5


def look(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    LOOKS[function.__name__] = lambda result: function(result["logits"])
    return function


def step(function: Callable[[Any, Result], Any]) -> Callable[[Any, Result], Any]:
    STEPS[function.__name__] = function
    return function


def fresh(function: Callable[[Any, Result], Any]) -> Callable[[Any, Result], Any]:
    FRESH.add(function.__name__)
    return step(function)


for name, plain in {
    "summed": lambda x: x.sum(),
    "largest": lambda x: x.argmax(-1),
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "cloned": lambda x: x.clone(),
    "one_element": lambda x: x[1, 2, 3].item(),
    "one_text": lambda x: x[2],
    "listed": lambda x: x[0, 0, :5].tolist(),
    "labelled_rows": lambda x: x[batch()[1] != -100],
    "array": lambda x: x.detach().numpy().copy(),
    "array_of_numpy": lambda x: np.asarray(x.detach()).sum(),
    "printed": lambda x: len(repr(x)) > 100,
    "formatted": lambda x: f"{x[0, 0, 0]:.4f}",
    "halved_precision": lambda x: x.bfloat16(),
    "doubled_precision": lambda x: x.double(),
    "moved": lambda x: x.to("cpu", copy=True),
    "reshaped": lambda x: x.view(-1, WORDS)[7],
    "turned": lambda x: x.transpose(1, 2) @ torch.ones(ROWS // 4),
    "split": lambda x: [part.sum() for part in x.split(16, dim=1)],
    "unbound": lambda x: [part.mean() for part in x],
    "best_words": lambda x: x.topk(3).indices,
    "compared": lambda x: torch.equal(x, x.clone()),
    "finite": lambda x: bool(torch.isfinite(x).all()),
    "joined": lambda x: torch.cat([x, x], dim=-1).sum(-1),
    "expanded": lambda x: x.expand(2, *x.shape).sum(0),
    "strided": lambda x: x.as_strided((4, 4), (1, 2)),
    "softmax": lambda x: F.softmax(x, -1),
    "loss_again": lambda x: F.cross_entropy(x.view(-1, WORDS), batch()[1].view(-1)),
    "foreach": lambda x: torch._foreach_mul([x.detach(), x.detach()], 2.0),
    "mapped": lambda x: torch.func.vmap(lambda row: row.sum())(x.detach()),
    "out": lambda x: torch.mul(x.detach(), 2, out=torch.empty_like(x, requires_grad=False)),
    "copied_into": lambda x: torch.empty(x.shape).copy_(x.detach()),
    "gathered": lambda x: x.gather(-1, batch()[0].unsqueeze(-1)),
    "storage": lambda x: x.untyped_storage().nbytes(),
    "dlpack": lambda x: torch.from_dlpack(to_dlpack(x.detach())),
    "shared": lambda x: x.detach().share_memory_().sum(),
    "mean_of_tree": lambda x: pytree.tree_map(lambda leaf: leaf.mean(), {"x": [x]}),
    "out_of_place": lambda x: (x + 0) is x,
    "kinds": lambda x: (type(x) is torch.Tensor, isinstance(x, torch.Tensor), x.layout, x.device, x.is_leaf),
    "sizes": lambda x: (x.shape, x.dtype, x.dim(), x.numel(), x.stride(), x.is_contiguous(), x.element_size(), len(x)),
    "history": lambda x: (x.requires_grad, x.grad_fn is not None, x.retains_grad, x._version, x.storage_offset()),
    "like": lambda x: (torch.zeros_like(x), torch.empty_like(x).shape, x.new_zeros(2)),
}.items():
    LOOKS[name] = lambda result, plain=plain: plain(result["logits"])


@look
def address(x: torch.Tensor) -> Any:
    return ctypes.c_float.from_address(x.data_ptr()).value


@look
def pickled(x: torch.Tensor) -> Any:
    return pickle.loads(pickle.dumps(x.detach()))


@look
def deeply_copied(x: torch.Tensor) -> Any:
    return copy.deepcopy(x.detach())


@look
def saved(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save({"x": x.detach()}, file)
    file.seek(0)
    return torch.load(file)["x"]


@look
def without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x * 2


@look
def in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return (x * 2).sum(-1).tolist()


@look
def under_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x + 1


@look
def on_another_thread(x: torch.Tensor) -> Any:
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(x.sum(-1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@look
def by_a_function_mode(x: torch.Tensor) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Names() as mode:
        y = x.detach() + 1
    return mode.names, y


@look
def weakly_held(x: torch.Tensor) -> Any:
    return weakref.ref(x)().sum()  # type: ignore[union-attr]


@look
def written(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x[0].mul_(3)
    return x.detach().clone(), x._version


@look
def in_another_place(x: torch.Tensor) -> Any:
    other = torch.empty(0)
    other.set_(x.detach())
    return other


# -- steps: what flows back ---------------------------------------------------------------------------------------


@step
def loss_alone(model: Any, result: Result) -> Any:
    result["loss"].backward()


@step
def scores_as_well(model: Any, result: Result) -> Any:
    (result["loss"] + result["logits"].square().mean()).backward()


@step
def scores_alone(model: Any, result: Result) -> Any:
    result["logits"].square().mean().backward()


@step
def hidden_states_as_well(model: Any, result: Result) -> Any:
    (result["loss"] + result["hidden"].square().mean()).backward()


@step
def one_after_the_other(model: Any, result: Result) -> Any:
    result["loss"].backward(retain_graph=True)
    result["logits"].square().mean().backward()


@step
def twice(model: Any, result: Result) -> Any:
    result["loss"].backward(retain_graph=True)
    result["loss"].backward()


@step
def twice_without_keeping(model: Any, result: Result) -> Any:
    result["loss"].backward()
    try:
        result["loss"].backward()
    except RuntimeError as error:
        return "second time" in str(error)


@step
def scores_after_the_graph_is_freed(model: Any, result: Result) -> Any:
    scores = result["logits"] * 1
    result["loss"].backward()
    try:
        scores.sum().backward()
    except RuntimeError as error:
        return "second time" in str(error)


@step
def gradients_of_parameters(model: Any, result: Result) -> Any:
    return torch.autograd.grad(result["loss"], list(model.parameters()))


@step
def gradients_of_parameters_by_scores(model: Any, result: Result) -> Any:
    total = result["logits"].sin().mean()
    return torch.autograd.grad([result["loss"], total], list(model.parameters()))


@step
def a_hook_on_derived_scores(model: Any, result: Result) -> Any:
    seen: list[Any] = []
    half = result["logits"] / 2
    half.register_hook(lambda g: seen.append(g.clone()))
    (result["loss"] + half.square().mean()).backward()
    return seen


@step
def a_function_of_its_own(model: Any, result: Result) -> Any:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return 2 * x.square()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 4 * ctx.saved_tensors[0] * grad

    (result["loss"] + Twice.apply(result["logits"]).mean()).backward()


@step
def a_layer_behind(model: Any, result: Result) -> Any:
    torch.manual_seed(1)
    layer = nn.Linear(WORDS, 2)
    (result["loss"] + layer(result["logits"]).square().mean()).backward()
    return layer.weight.grad


@step
def hooks_on_parameters(model: Any, result: Result) -> Any:
    seen: list[Any] = []
    handles = [p.register_hook(lambda g: seen.append(g.clone())) for p in model.head.parameters()]
    (result["loss"] + result["logits"].square().mean()).backward()
    for handle in handles:
        handle.remove()
    return sorted(g.norm().item() for g in seen)


@step
def scores_written_before(model: Any, result: Result) -> Any:
    scores = result["logits"] * 1
    scores.mul_(2)
    (result["loss"] + scores.square().mean()).backward()


@fresh
def a_hook_on_scores(model: Any, result: Result) -> Any:
    seen: list[Any] = []
    result["logits"].register_hook(lambda g: seen.append(g.clone()))
    result["loss"].backward()
    return seen


@fresh
def retained_gradient(model: Any, result: Result) -> Any:
    result["logits"].retain_grad()
    result["loss"].backward()
    return result["logits"].grad


@fresh
def gradient_of_scores(model: Any, result: Result) -> Any:
    return torch.autograd.grad(result["loss"], result["logits"])


@fresh
def differentiated_again(model: Any, result: Result) -> Any:
    grads = torch.autograd.grad(result["loss"], list(model.parameters()), create_graph=True)
    (result["loss"] + sum(g.square().sum() for g in grads)).backward()


@fresh
def scores_differentiated_again(model: Any, result: Result) -> Any:
    total = result["logits"].square().mean()
    grads = torch.autograd.grad(total, list(model.parameters()), create_graph=True)
    sum(g.square().sum() for g in grads).backward()  # type: ignore[union-attr]
