"""What belongs to the process, put back after a program: environment, settings, hooks, patched functions, modules."""

from __future__ import annotations

import builtins
import contextlib
import copy
import decimal
import logging
import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["world"]

_HOOKS = [n for n in vars(nn.modules.module) if n.startswith("_global_") and n.endswith("hooks")]
_FLAGS = (
    (torch.backends.mkldnn, "enabled"), (torch.backends.cudnn, "enabled"), (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"), (torch.backends.opt_einsum, "enabled"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)  # fmt: skip
_PATCHED = (nn, nn.Module, nn.Linear, nn.Tanh, nn.ReLU, nn.Identity, torch.Tensor, torch.nn.functional, torch)


@contextlib.contextmanager
def world() -> Iterator[None]:
    """Puts back afterwards what belongs to the process."""
    environment, names, random_state, numpy_state = (
        dict(os.environ),
        set(vars(builtins)),
        random.getstate(),
        np.random.get_state(),
    )
    patched = [dict(vars(owner)) for owner in _PATCHED]
    hooks = {n: copy.copy(getattr(nn.modules.module, n)) for n in _HOOKS}
    flags = [getattr(owner, name) for owner, name in _FLAGS]
    modules = set(sys.modules)
    dtype, threads, grad = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    level, handlers = logging.getLogger("trust").level, list(logging.getLogger("trust").handlers)
    folder, limit, argv, path, numpy_errors = (
        os.getcwd(),
        sys.getrecursionlimit(),
        list(sys.argv),
        list(sys.path),
        np.geterr(),
    )
    precision, anomaly = torch.get_float32_matmul_precision(), torch.is_anomaly_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for name in set(vars(builtins)) - names:
            delattr(builtins, name)
        for owner, before in zip(_PATCHED, patched):
            _put_back(owner, before)
        for name, table in hooks.items():
            getattr(nn.modules.module, name).clear()
            getattr(nn.modules.module, name).update(table)
        for (owner, name), value in zip(_FLAGS, flags):
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        for name in set(sys.modules) - modules:
            if name.startswith("trust_"):
                del sys.modules[name]
        random.setstate(random_state)
        np.random.set_state(numpy_state)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        torch.set_float32_matmul_precision(precision)
        torch.autograd.set_detect_anomaly(anomaly)
        logging.getLogger("trust").setLevel(level)
        logging.getLogger("trust").handlers[:] = handlers
        os.chdir(folder)
        sys.setrecursionlimit(limit)
        sys.argv[:], sys.path[:] = argv, path
        np.seterr(**numpy_errors)
        decimal.setcontext(decimal.Context())


def _put_back(owner: Any, before: dict[str, Any]) -> None:
    now = dict(vars(owner))
    for name in now.keys() - before.keys():
        if not (isinstance(owner, types.ModuleType) and isinstance(now[name], types.ModuleType)):
            delattr(owner, name)
    for name, value in before.items():
        if now.get(name) is not value and not name.startswith("__"):
            setattr(owner, name, value)
