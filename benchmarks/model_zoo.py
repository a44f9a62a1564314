"""Every architecture of the installed transformers package, tiny and random, through ORTModule beside eager.

    python benchmarks/model_zoo.py [--tasks causal,masked,seq2seq,image] [--match TEXT | --only KEYS] [--jobs 2]
                                   [--autocast bfloat16] [--json OUT [--resume]] [--page OUT.md]

Per architecture a process of its own with a limit on its CPU time: a training step at two input sizes, whose loss and
gradients are compared with eager's. Architectures whose tiny model does not train in eager are left out, with the
reason. Ends in `N passed, N failed, N whole-fallback`. Not here: speed (step_time.py), how a tiny configuration is
made (zoo_configs.py), what is equal (zoo_compare.py), and the page about the results (zoo_page.py).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import zoo_configs
import zoo_page
from zoo_compare import compare, compare_under_autocast, in_double, step

from common import facts, write_json

Result = dict[str, Any]
TEXT_SIZES = ((3, 24), (5, 33))
IMAGE_BATCHES = (3, 5)
WAIT = 10  # times the time limit: how long a process may take where others share its processor
MEMORY_LIMIT = 5 << 30  # bytes; what a default configuration may not exceed when its sizes have unusual names


def try_architecture(task: str, name: str, sizes: int = 2, autocast: torch.dtype | None = None) -> Result:
    """The result of one architecture: {"state": passed | failed | skipped, ...}."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        module, batches = zoo_configs.build(task, name, TEXT_SIZES[:sizes], IMAGE_BATCHES[:sizes])
        eager, exact = copy.deepcopy(module), copy.deepcopy(module)
        for batch in batches:
            loss = step(eager, batch, autocast).loss
            if not loss.requires_grad and not any(p.grad is not None for p in eager.parameters()):
                raise ValueError("no gradient flows")
            if not torch.isfinite(loss):
                raise ValueError("the loss is not finite")
    except Exception as error:
        return {"state": "skipped", "why": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    from ortmodule import ORTModule

    # Seconds of the step at each size; the first from the wrapping on.
    result: Result = {"state": "passed", "fallback": "none", "sizes": sizes, "steps_s": []}
    try:
        start = time.perf_counter()
        model = ORTModule(module)
        wrapped = time.perf_counter() - start
        for size, batch in enumerate(batches):
            # Buffers that a step changes (statistics, counters) must be the same before each comparison.
            state = copy.deepcopy(eager.state_dict())
            module.load_state_dict(state)
            want = step(eager, batch, autocast)
            start = time.perf_counter()
            got = step(model, batch, autocast)
            taken = time.perf_counter() - start
            result["steps_s"].append(round(taken if size else wrapped + taken, 2))
            if autocast:
                exact.load_state_dict(state)
                why = compare_under_autocast(exact, eager, module, want, got, batch)
            else:
                why = compare(eager, module, want, got)
                why = why and f"{why}; {in_double(module, state, batch)}"
            if why:
                return {**result, "state": "failed", "why": f"size {size}: {why}"}
    except Exception as error:
        lines = traceback.format_exception_only(error)
        return {**result, "state": "failed", "why": " ".join("".join(lines).split())[:300]}
    report = model.report()
    result.update(
        fallback=report.fallback,
        exports=len(report.exports),
        aten={k: v for k, v in sorted(report.aten_nodes.items())},
    )
    if report.fallback_reason:
        reason, _, line = report.fallback_reason.partition("\n  at ")
        result["why"] = " ".join(reason.split())[:300]
        result["line"] = line.rpartition("site-packages/")[2].removeprefix(sysconfig.get_path("stdlib") + "/")
    return result


def child(seconds: int, answer: multiprocessing.connection.Connection, *request: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    with contextlib.redirect_stdout(io.StringIO()):
        result = try_architecture(*request)
    answer.send(result)
    answer.close()
    os._exit(0)


def run_all(
    work: list[tuple[str, str]], jobs: int, seconds: int, sizes: int, autocast: torch.dtype | None
) -> Iterator[tuple[str, str, Result]]:
    """Results as they come; a child that crashes or takes too long is a failure with that reason."""
    fork = multiprocessing.get_context("fork")  # the libraries are loaded once, in the parent
    waiting = collections.deque(work)
    running: dict[Any, tuple[str, str, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task, name = waiting.popleft()
            mine, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=child, args=(seconds, theirs, task, name, sizes, autocast))
            process.start()
            theirs.close()
            running[mine] = (task, name, process, time.monotonic())
        ready = multiprocessing.connection.wait(list(running), timeout=1.0)
        for pipe in list(running):
            task, name, process, start = running[pipe]
            late = time.monotonic() - start > seconds * WAIT
            if pipe not in ready and not late:
                continue
            result: Result = {"state": "failed", "why": f"took more than {seconds * WAIT} s"}
            if pipe in ready:
                try:
                    result = pipe.recv()
                except EOFError:
                    process.join()
                    ended = f"the process ended with {process.exitcode}"
                    why = f"took more than {seconds} CPU seconds" if process.exitcode == -signal.SIGKILL else ended
                    result = {"state": "failed", "why": why}
            process.kill()
            process.join()
            del running[pipe]
            result["seconds"] = round(time.monotonic() - start, 1)
            yield task, name, result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default=",".join(zoo_configs.TASKS), help=", ".join(zoo_configs.TASKS))
    parser.add_argument("--only", metavar="KEYS", help="these alone, such as causal/gpt2,image/vit")
    parser.add_argument("--match", default="", help="only architectures whose name holds this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=int, default=300, help="CPU time limit of one architecture")
    parser.add_argument("--sizes", type=int, default=2, choices=(1, 2), help="1: without the second input size")
    parser.add_argument("--autocast", choices=("bfloat16", "float16"), help="compare steps under autocast")
    parser.add_argument("--json", metavar="OUT", help="results, written after each architecture")
    parser.add_argument("--resume", action="store_true", help="keep what OUT holds and run only what it lacks")
    parser.add_argument("--page", metavar="OUT.md", help="a page about the results, such as docs/architectures.md")
    args = parser.parse_args(argv)
    import ortmodule  # noqa: F401  before the forks

    work = [(task, name) for task in args.tasks.split(",") for name in zoo_configs.names(task) if args.match in name]
    if args.only:
        wanted = args.only.split(",")
        work = sorted((w for w in work if "/".join(w) in wanted), key=lambda w: wanted.index("/".join(w)))
    results: dict[str, Result] = {}
    if args.resume and args.json and os.path.exists(args.json):
        with open(args.json) as file:
            results = json.load(file)["results"]
        work = [w for w in work if "/".join(w) not in results]
    autocast = getattr(torch, args.autocast) if args.autocast else None
    for task, name, result in run_all(work, args.jobs, args.seconds, args.sizes, autocast):
        results[f"{task}/{name}"] = result
        print(f"{result['state']:8}{result['seconds']:6.1f} s  {task}/{name}  {result.get('why', '')}", flush=True)
        if args.json:
            write_json(args.json, {"environment": facts(), "results": dict(sorted(results.items()))})
    if args.page:
        candidates = sum(len(zoo_configs.names(task)) for task in zoo_configs.TASKS)
        with open(args.page, "w") as file:
            file.write(zoo_page.page(results, candidates, os.path.basename(args.json or "")))
    found = zoo_page.summary(results)
    print(f"\n{len(found['left out'])} left out (no tiny model that trains in eager), "
          f"{len(found['partial'])} partly in PyTorch")  # fmt: skip
    for title in ("failed", "whole", "partial"):
        for key in found[title]:
            print(f"{title}  {key}: {results[key].get('why', '')}")
    print(f"{len(found['passed'])} passed, {len(found['failed'])} failed, {len(found['whole'])} whole-fallback")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
