"""How far each runner's training step is from the time that its matrix products alone would take.

    python benchmarks/roofline.py --models bert,gpt2,llama,vit --runners eager,ortmodule --json out.json

One eager step of each model is recorded: the floating-point operations of every matrix product, attention and
convolution, forward and backward. The products' distinct shapes are then measured with each library that this build of
torch has (its BLAS and oneDNN). Two bounds follow, and each runner's step (step_time.py) is divided by the first:

    bound     all operations of the step at the highest rate that any product of the model reached
    products  every product at the rate of its own fastest library; attention and convolutions at the highest rate

Not here: the timing of a step (worker.py), the models (models.py).
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import models
import step_time
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from common import facts, table, write_json

# Size (rows, inner, columns), whether each factor is stored transposed, and how many there are in a batch.
Product = tuple[int, int, int, bool, bool, int]


def is_transposed(matrix: torch.Tensor) -> bool:
    return matrix.stride(-1) != 1 and matrix.stride(-2) == 1


def cpu_attention_flops(name: str, args: Any, kwargs: Any) -> int:
    """Operations of the CPU's fused attention, which PyTorch's counter leaves out; 0 for another operator."""
    backward = "_scaled_dot_product_flash_attention_for_cpu_backward"
    if name == backward:
        tensors, causal = args[:4], args[7]
        count = sdpa_backward_flop_count(*(t.shape for t in tensors))
    elif name == backward.removesuffix("_backward"):
        tensors, causal = args[:3], args[4] if len(args) > 4 else kwargs.get("is_causal", False)
        count = sdpa_flop_count(*(t.shape for t in tensors))
    else:
        return 0
    queries, keys = tensors[-3].shape[-2], tensors[-2].shape[-2]
    visible = sum(min(i + 1, keys) for i in range(queries)) if causal else queries * keys
    return count * visible // (queries * keys)


class Recorder(TorchDispatchMode):
    """Counts the operations of a step: by product, and of what is no plain product."""

    def __init__(self) -> None:
        super().__init__()
        self.products: collections.Counter[Product] = collections.Counter()
        self.other_flops = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        packet = op.overloadpacket
        factors = {"mm": args[:2], "bmm": args[:2], "addmm": args[1:3], "baddbmm": args[1:3]}.get(packet.__name__)
        if factors is not None:
            a, b = factors
            batch = a.shape[0] if a.dim() == 3 else 1
            key = (a.shape[-2], a.shape[-1], b.shape[-1], is_transposed(a), is_transposed(b), batch)
            self.products[key] += 1
        elif packet in flop_registry:
            self.other_flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        else:
            self.other_flops += cpu_attention_flops(packet.__name__, args, kwargs or {})
        return out


def flops(product: Product) -> int:
    m, k, n, _, _, batch = product
    return 2 * m * k * n * batch


def factor(batch: int, rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    shape = (batch, columns, rows) if transposed else (batch, rows, columns)
    tensor = torch.randn(shape).to(dtype)
    tensor = tensor.mT if transposed else tensor
    return tensor[0] if batch == 1 else tensor


def libraries(product: Product, dtype: torch.dtype) -> dict[str, Callable[[], torch.Tensor]]:
    """The product as each library computes it."""
    m, k, n, ta, tb, batch = product
    a, b = factor(batch, m, k, ta, dtype), factor(batch, k, n, tb, dtype)
    calls: dict[str, Callable[[], torch.Tensor]] = {"aten": lambda: a @ b}
    if batch == 1 and torch.backends.mkldnn.is_available():
        weight = b.t().contiguous()  # oneDNN's linear takes the second factor as a linear layer stores it
        rows = a.contiguous()
        calls["onednn"] = lambda: torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return calls


def seconds(call: Callable[[], torch.Tensor], budget: float = 0.15) -> float:
    """The fastest of the calls that fit into the budget (at least three)."""
    call()
    best, end = float("inf"), time.perf_counter() + budget
    count = 0
    while count < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def bounds(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """Operations of one step, the best rate, and the two bounds in milliseconds."""
    module, batch = models.build(model, small=args.small, realistic=False, logits=args.logits)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    with Recorder() as recorder, torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
        result = module(*batch)
        (result["loss"] if isinstance(result, dict) else result).backward()
    times: dict[Product, dict[str, float]] = {}
    for product in recorder.products:
        times[product] = {name: seconds(call) for name, call in libraries(product, dtype).items()}
    product_flops = sum(count * flops(p) for p, count in recorder.products.items())
    if not times:
        return {"model": model, "gflop": recorder.other_flops / 1e9, "note": "no matrix products"}
    rates = {name: max(flops(p) / t[name] for p, t in times.items() if name in t) for name in ("aten", "onednn")
             if any(name in t for t in times.values())}  # fmt: skip
    best = max(rates.values())
    own = sum(count * min(times[p].values()) for p, count in recorder.products.items())
    return {
        "model": model,
        "gflop": (product_flops + recorder.other_flops) / 1e9,
        "gflops": {name: rate / 1e9 for name, rate in rates.items()},
        "bound_ms": 1e3 * (product_flops + recorder.other_flops) / best,
        "products_ms": 1e3 * (own + recorder.other_flops / best),
    }


HEADER = ("model", "runner", "ms", "x bound", "x products", "GFLOP", "bound ms", "products ms", "best GFLOP/s")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = tuple(models.MODELS)
    parser.add_argument("--models", type=step_time.names(known), default=["bert", "gpt2", "llama", "vit"])
    parser.add_argument("--runners", type=step_time.names(step_time.RUNNERS), default=["eager", "ortmodule"])
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast over fp32 weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every runner")
    parser.add_argument("--samples", type=int, default=3, help="samples per turn")
    parser.add_argument("--worker-seconds", type=float, default=1800.0, help="time limit of one runner on one model")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the harness")
    parser.add_argument("--json", metavar="OUT", help="written after every model")
    args = parser.parse_args(argv)
    args.device, args.logits, args.pages_kept = "cpu", False, False
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"environment": facts("cpu", args.threads), "dtype": args.dtype, "rows": []}
    rows: list[list[str]] = []
    for model in args.models:
        bound = bounds(model, args)
        steps = step_time.measure(model, "dense", args)
        for row in steps:
            if "failed" in row or "bound_ms" not in bound:
                print(f"{model}: {row['runner']}: {row.get('failed', bound.get('note'))}", flush=True)
                continue
            ms = row["fb_ms"]["median"]
            entry = {**bound, "runner": row["runner"], "fb_ms": ms, "x_bound": ms / bound["bound_ms"]}
            entry["x_products"] = ms / bound["products_ms"]
            result["rows"].append(entry)
            rates = ", ".join(f"{name} {rate:.0f}" for name, rate in bound["gflops"].items())
            numbers = (f"{ms:.1f}", f"{entry['x_bound']:.2f}", f"{entry['x_products']:.2f}", f"{bound['gflop']:.1f}")
            limits = (f"{bound['bound_ms']:.1f}", f"{bound['products_ms']:.1f}")
            rows.append([model, row["runner"], *numbers, *limits, rates])
        if args.json:
            write_json(args.json, result)
    print(table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
