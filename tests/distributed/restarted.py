"""A training that torchrun starts again: a rank kills itself at a step of the first run, and the next run goes on
from the newest checkpoint. `python -m tests.distributed deaths` runs it; this is no test by itself.

    torchrun --nproc-per-node 2 --max-restarts 3 tests/distributed/restarted.py FOLDER KILLED_RANK AT_STEP STAGE
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[2]))

from ortmodule.distributed import latest_checkpoint, load_checkpoint, save_checkpoint, zero
from tests.distributed.models import batch, groups
from tests.distributed.training import EPSILON, Case

STEPS = 8


def main() -> None:
    folder, killed, at, stage = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    case = Case(stage=stage)
    model = case.wrapped(case.model())
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, eps=EPSILON)
    model, sharded = zero(model, optimizer, stage=stage, policy=case.zero_policy())
    newest = latest_checkpoint(folder / "checkpoints")
    first = load_checkpoint(newest, model, sharded).step if newest is not None else 0
    for step in range(first, STEPS):
        sharded.zero_grad()
        loss = model(batch(step, 0, dist.get_rank()))
        if step == at and dist.get_rank() == killed and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        sharded.step()
        save_checkpoint(folder / "checkpoints" / f"step-{step + 1}", model, sharded, step=step + 1)
        total = loss.detach().clone()
        dist.all_reduce(total)
    if dist.get_rank() == 0:
        said = {"loss": total.item(), "first": first, "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
        (folder / "end.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
