"""The full matrices of sharded training on gloo ranks: `python -m tests.distributed zero|checkpoints|...` (see --help).

The suite runs a selection (test_zero.py, test_checkpoints.py); this prints a line a case.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from ortmodule.distributed import memory_estimate
from tests.distributed import cut_models, parallel, pipelines
from tests.distributed import test_agreement as agreement
from tests.distributed import test_checkpoints as checkpoints
from tests.distributed.overlap import all_cases
from tests.distributed.spawn import on_ranks
from tests.distributed.training import Case, all_on_rank, determined, distance, one_process


def zero_matrix(args: argparse.Namespace) -> bool:
    """Stages x types x accumulation x worlds: losses and parameters against one process, memory and volume."""
    good = True
    cases = [
        Case(
            stage=stage,
            bf16=bf16,
            accumulation=accumulation,
            no_sync=accumulation > 1 and stage == 1,
            steps=args.steps or 100,
        )
        for stage, bf16, accumulation in itertools.product(args.stage, (False, True), (1, 2))
    ]
    print("stage dtype accumulation world   loss rel.   params rel.   bytes/formula   reduced/P   gathered/P")
    for world in args.world:
        results = on_ranks(world, all_on_rank, cases)
        for i, case in enumerate(cases):
            losses, parameters = one_process(case, world)
            mine = [one[i] for one in results]
            by_loss = max(abs(a - b) / b for a, b in zip(mine[0]["losses"], losses, strict=True))
            trained = mine[0]["parameters"]
            names = [name for name in parameters if name in trained]
            flat = [torch.cat([values[n].flatten() for n in names]) for values in (trained, parameters)]
            by_parameter = distance(*flat)
            model = case.model()
            # Without gradients there is no state: the formula is of what is trained.
            for p in (*model.unused.parameters(), model.wpe.weight):
                p.requires_grad_(False)
            frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
            formula = memory_estimate(model, stage=case.stage, world=world, policy=case.zero_policy()).total - frozen
            unused = sum(p.numel() for p in model.unused.parameters())
            held = sum(one["held"].total for one in mine) / world
            own, size = 2 if case.bf16 else 4, mine[0]["trained"]
            reduced, gathered = mine[0]["observed"] if case.stage == 3 else mine[0]["moved"]
            rounds = 1 if case.no_sync else case.accumulation
            ratio = (reduced / (4 * size * rounds), gathered / (own * size * (rounds if case.stage == 3 else 1)))
            ok = by_loss <= 1e-6 and by_parameter <= 1e-6
            ok &= abs(held - formula) <= 0.05 * formula + 8 * unused
            ok &= abs(ratio[0] - 1) < 0.011 and abs(ratio[1] - (2 if case.stage == 3 else 1)) < 0.021
            good &= ok
            print(
                f"{case.stage:>5} {'bf16' if case.bf16 else 'fp32':>5} {case.accumulation:>12} {world:>5}   "
                f"{by_loss:9.1e}   {by_parameter:11.1e}   {held / formula:13.3f}   {ratio[0]:9.3f}   {ratio[1]:10.3f}"
                f"   {'ok' if ok else 'FAILED'}",
                flush=True,
            )
    return good


def checkpoint_matrix(args: argparse.Namespace) -> bool:
    """4 -> 2 -> 1 -> 4 ranks, each from every stage to every stage, in both types: the next steps as without."""
    del args
    good, count = True, 0
    stages = [(stage, bf16) for bf16 in (False, True) for stage in (1, 2, 3)]
    with tempfile.TemporaryDirectory() as folder:
        expected = on_ranks(4, checkpoints.save_and_go_on, folder, stages)[0]
        cases = [(stage, bf16, to) for stage, bf16 in stages for to in (1, 2, 3)]
        for world in (2, 1, 4):
            results = on_ranks(world, checkpoints.load_and_go_on, folder, cases)[0]
            for case, found in zip(cases, results, strict=True):
                want = expected[stages.index(case[:2])]
                exact = world == 4 and case[0] == case[2]
                try:
                    checkpoints.close(found, want, exact, case[1])
                    ok = True
                except AssertionError as error:
                    print(error)
                    ok = False
                good, count = good and ok, count + 1
                kind = "bf16" if case[1] else "fp32"
                said = ("bit by bit" if exact else "close") if ok else "FAILED"
                print(f"stage {case[0]} on 4 ranks -> stage {case[2]} on {world}, {kind}: {said}", flush=True)
    print(f"{count} cases")
    return good


def flip_count(args: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(2, checkpoints.save_one, f"{folder}/step-1")
        found = checkpoints.flips(Path(folder, "step-1"), Path(folder), args.count or 1000)
    print(f"{found} of {args.count or 1000} flipped bits found and named")
    return found == (args.count or 1000)


def kill_count(args: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        kept, died = checkpoints.kills(Path(folder), args.count or 100)
    print(f"after {kept} of {died} SIGKILLs the newest checkpoint is whole")
    return kept == died


def overlap_table(args: argparse.Namespace) -> bool:
    """Stages x how much there is to communicate, with a control in which nothing overlaps."""
    shares, good = (0.25, 0.5, 0.75), True
    cases = [(stage, share, True) for stage in args.stage for share in shares]
    cases += [(stage, 0.5, False) for stage in args.stage if stage < 3]  # at stage 3 one bucket is always ahead
    print("stage communication/compute   step free (ms)   slow (ms)   link busy (ms)   exposed")
    for (stage, share, overlaps), found in zip(cases, zip(*on_ranks(2, all_cases, cases, 6), strict=True), strict=True):
        worst = max(found, key=lambda one: one.share)
        ok = worst.share <= 0.3 or not overlaps
        good &= ok
        said = ("ok" if ok else "FAILED") if overlaps else "without overlap"
        print(
            f"{stage:>5} {share:>21.2f}   {1e3 * worst.free:>14.0f}   {1e3 * worst.slow:>9.0f}   "
            f"{1e3 * worst.busy:>14.0f}   {worst.share:>6.0%}   {said}",
            flush=True,
        )
    return good


def death_count(args: argparse.Namespace) -> bool:
    """A random rank is killed at a random step of jobs that torchrun may start again: they end as one does that was
    left alone.
    """
    rng, same, count = random.Random(0), 0, args.count or 10
    for i in range(count):
        stage, killed, at = 1 + i % 3, rng.randrange(2), rng.randrange(8)
        try:
            alone, restarted = (_restarted(stage, rank, at) for rank in (-1, killed))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            print(f"stage {stage}, rank {killed} killed at step {at}: {error}: {last}", flush=True)
            continue
        ok = restarted["loss"] == alone["loss"] and restarted["restarts"] == 1
        same += ok
        print(
            f"stage {stage}, rank {killed} killed at step {at}: went on from step {restarted['first']}, {ok}",
            flush=True,
        )
    print(f"{same} of {count} jobs end with the loss of one that was left alone")
    return same == count


def determinism(args: argparse.Namespace) -> bool:
    """The same training again, in new processes, at every stage with one and two threads: losses and parameters bit by
    bit.
    """
    kinds = list(itertools.product(args.stage, (1, 2)))
    cases = {kind: Case(stage=kind[0], steps=args.steps or 200) for kind in kinds}
    first = {kind: on_ranks(2, determined, cases[kind], kind[1], seconds=600.0) for kind in kinds}
    same, count = 0, args.count or 10
    for i in range(count):
        stage, threads = kind = kinds[i % len(kinds)]
        again = on_ranks(2, determined, cases[kind], threads, seconds=600.0)
        ok = again == first[kind]
        same += ok
        print(
            f"stage {stage}, threads {threads}, {cases[kind].steps} steps: {'same bits' if ok else 'OTHERS'}",
            flush=True,
        )
    print(f"{same} of {count} repeats have the losses and parameters of the first run, bit by bit")
    return same == count


def disagreement(args: argparse.Namespace) -> bool:
    """Ranks that differ, or of which one is missing: what every rank raises, and after how long."""
    del args
    cases = [(agreement.set_up, case) for case in agreement.DISAGREEMENTS]
    found = on_ranks(2, agreement.said_by, [*cases, (agreement.graphs, "graphs")], end=False)
    good = 0
    for i, (name, words) in enumerate([*agreement.DISAGREEMENTS.items(), ("graphs", "the collectives of a graph")]):
        texts, slowest = {one[i][0] for one in found}, max(one[i][1] for one in found)
        ok = len(texts) == 1 and words in min(texts) and slowest < 10
        good += ok
        print(f"{name:<10} {slowest:5.2f} s  {'ok' if ok else 'FAILED'}  {min(texts)[:150]}", flush=True)
    count = len(agreement.DISAGREEMENTS) + 1
    print(f"{good} of {count} cases are one error on every rank within 10 s")
    return good == count


def parallel_matrix(args: argparse.Namespace) -> bool:
    """Tensor, sequence, expert and pipeline parallel training, alone and with `zero`, against one process."""
    rows: list[dict[str, Any]] = []
    print("case                       ranks   loss rel.   params rel.")
    kinds: list[Any] = [parallel, pipelines, cut_models]
    for kind in kinds:
        for name, case in kind.matrix(args.steps or 50).items():
            if not any(word in f"{kind.__name__.rpartition('.')[2]}: {name}" for word in args.match or [""]):
                continue
            found = on_ranks(case.world, kind.on_rank, case, seconds=600.0)[0]
            if kind is cut_models:
                by_loss, by_parameter = cut_models.distances(found, case)
            else:
                by_loss, by_parameter = parallel.distances(found, kind.one_process(case))
            ok = by_loss <= 1e-6 and by_parameter <= 1e-6
            said = "ok" if ok else "FAILED"
            print(f"{name:<25} {case.world:>6}   {by_loss:9.1e}   {by_parameter:11.1e}   {said}", flush=True)
            row = {"case": name, "ranks": case.world, "loss_rel": by_loss, "params_rel": by_parameter}
            rows.append({**row, "within_limit": ok})
            if args.json:  # at once, so that a run that is stopped leaves what it had
                environment = {"python": platform.python_version(), "torch": torch.__version__, "backend": "gloo"}
                environment["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
                command = f"parallel --steps {args.steps or 50} --match {' '.join(args.match or ['(all)'])}"
                data = {**environment, "command": command, "limit": 1e-6, "rows": rows}
                args.json.write_text(json.dumps(data, indent=1) + "\n")
    return all(row["within_limit"] for row in rows)


def _restarted(stage: int, killed: int, at: int) -> dict[str, Any]:
    script = Path(__file__).with_name("restarted.py")
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
        command = [*launch, "--standalone", str(script), folder, str(killed), str(at), str(stage)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return json.loads(Path(folder, "end.json").read_text())


def main() -> None:
    what = {
        "zero": zero_matrix,
        "checkpoints": checkpoint_matrix,
        "flips": flip_count,
        "kills": kill_count,
        "overlap": overlap_table,
        "deaths": death_count,
        "determinism": determinism,
        "disagreement": disagreement,
        "parallel": parallel_matrix,
    }
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("what", choices=what)
    top.add_argument("--steps", type=int, help="of each case of zero (100), determinism (200), parallel (50)")
    top.add_argument("--world", type=int, nargs="*", default=[2, 4], help="numbers of ranks of zero")
    top.add_argument("--stage", type=int, nargs="*", default=[1, 2, 3], help="stages of zero, overlap and determinism")
    top.add_argument("--count", type=int, help="of flips, kills, deaths or repeats")
    top.add_argument("--match", nargs="*", help="parts of the names of cases of parallel")
    top.add_argument("--json", type=Path, help="where the rows of parallel are written")
    args = top.parse_args()
    torch.set_num_threads(1)
    sys.exit(not what[args.what](args))


if __name__ == "__main__":
    main()
