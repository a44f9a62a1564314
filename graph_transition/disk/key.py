"""The name of a call's entry in the cache on disk: a digest of everything that the captured graph depends on.

Two digests: the family (code, state of the module, types of the call, settings, versions) and the sizes. A graph whose
sizes vary is found by its family and holds for the sizes that its own conditions admit. Whatever cannot be told by
value raises `Unkeyable`. Not here: what is reached from a module (fingerprint.py), files (cache.py).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree

from ... import _build_info, capture
from ...capture.attempts import Sizes
from ...capture.module_tensors import named_parameters, named_tensors
from ...options import Options
from ..signature import autocast_state, global_hook_tables
from .code_facts import VERSIONED, Unkeyable
from .fingerprint import Fingerprint, tensor_facts

__all__ = ["DiskKey", "Unkeyable", "key_of"]

# Options that have no part in what is captured.
_CACHE_OPTIONS = (
    "cache_dir",
    "cache_dir_mib",
    "cache_size",
    "passes",
    "disabled_passes",
    "execution_order",
    "providers",
)


@dataclasses.dataclass(frozen=True)
class DiskKey:
    """Which entry a call wants.

    Attributes:
        family: digest of everything but sizes.
        sizes: digest of sizes and strides, those of dynamic axes apart.
        dynamic: (leaf index, axis) of the sizes that should stay symbolic.
        shapes: sizes of each tensor leaf, in order.
    """

    family: str
    sizes: str
    dynamic: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """The entry's file name."""
        return f"{self.family}-{self.sizes}.{'dynamic' if self.dynamic else 'static'}"


def key_of(
    module: torch.nn.Module,
    leaves: Sequence[Any],
    shape: capture.CallShape,
    dynamic: Sizes,
    options: Options,
) -> DiskKey:
    """The key of a call with these flat leaves.

    Raises:
        Unkeyable: the graph may depend on something that has no name; the text says on what.
    """
    _refuse_unknown_modes()
    fingerprint = Fingerprint(module)
    fingerprint.add([part for node in _nodes(shape.spec) for part in (node.type, node.context)])
    fingerprint.add([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
    digest = fingerprint.digest()
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    same = capture.alias_names(leaves, module)
    calls = [(i, same.get(i), tensor_facts(t), t.dim(), _layout(t)) for i, t in tensors]
    devices = {t.device for _, t in tensors} | {t.device for _, t in named_parameters(module)}
    names = fingerprint.names
    variables = sorted(
        (k, v) for k, v in os.environ.items() if k in names or k.startswith(("TORCH_", "PYTORCH_", "TORCHDYNAMO"))
    )
    facts = (
        digest, str(shape.spec), shape.same, calls, _module_tensors(module), _settings(),
        [(f.name, getattr(options, f.name)) for f in dataclasses.fields(options) if f.name not in _CACHE_OPTIONS],
        sorted(str(d) + _device_name(d) for d in devices), variables, _own_version(),
        [(package, _version(package)) for package in (*VERSIONED, *fingerprint.packages)],
    )  # fmt: skip
    fixed = [
        [(None, None) if (i, axis) in dynamic else (size, None if dynamic else t.stride(axis))
         for axis, size in enumerate(t.shape)]
        for i, t in tensors
    ]  # fmt: skip
    axes = tuple(sorted(dynamic))
    return DiskKey(_digest(facts)[:40], _digest((axes, fixed))[:24], axes, tuple(tuple(t.shape) for _, t in tensors))


def _digest(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _nodes(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    if spec.is_leaf():
        return []
    return [spec, *(node for i in range(spec.num_children) for node in _nodes(spec.child(i)))]


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What of a tensor's strides does not change with its sizes."""
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    return (
        tensor.is_contiguous(), tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last),
        [axis for axis, stride in enumerate(strides) if stride == 0], tensor._is_view(),
    )  # fmt: skip


def _module_tensors(module: torch.nn.Module) -> list[tuple[Any, ...]]:
    named = named_tensors(module, again=True)
    first: dict[int, str] = {}
    return [
        (name, first.setdefault(id(t), name), tensor_facts(t), tuple(t.shape),
         t.stride() if t.layout == torch.strided else None)
        for name, t in named
    ]  # fmt: skip


def _settings() -> tuple[Any, ...]:
    """Settings of torch that a forward may ask for, or that decide how it is traced."""
    distributed = torch.distributed
    ranks = None
    if distributed.is_available() and distributed.is_initialized():
        ranks = (distributed.get_rank(), distributed.get_world_size())
    return (
        autocast_state(), torch.is_autocast_cache_enabled(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.backends.mha.get_fastpath_enabled(),
        torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(), ranks,
    )  # fmt: skip


def _refuse_unknown_modes() -> None:
    if torch.overrides._get_current_function_mode_stack() or _python_dispatch._get_current_dispatch_mode() is not None:
        raise Unkeyable("a torch function mode or dispatch mode is active")
    if any(global_hook_tables()):
        raise Unkeyable("a global module hook is registered")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


@functools.cache
def _own_version() -> tuple[Any, ...]:
    """What of this package makes a graph: its version, commit and the sources of capture, which may be edited."""
    folders = (Path(capture.__file__).parent, Path(__file__).parents[1])
    sources = hashlib.sha256()
    for path in sorted(p for folder in folders for p in folder.rglob("*.py")):
        sources.update(path.read_bytes())
    return (_build_info.VERSION, _build_info.GIT_COMMIT, sources.hexdigest(), sys.version, torch.version.git_version)


@functools.cache
def _version(package: str) -> str | None:
    """Version of a package; None for the user's own modules, whose code is in the fingerprint."""
    found = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    if "-packages" in (getattr(sys.modules.get(package), "__file__", None) or ""):
        for distribution in importlib.metadata.packages_distributions().get(package, ()):
            return importlib.metadata.version(distribution)
        raise Unkeyable(f"the package '{package}' has no version")
    return None
