"""What this installation is made of; printed by `python -m ortmodule`."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

__all__ = ["check_build", "environment"]


def check_build() -> None:
    """Stops the import, in one sentence, when Python or torch is not the one that the engine was built with.

    Raises:
        ImportError: the engine was not built, or was built for another Python or torch.
    """
    import torch

    try:
        from . import _build_info as build
    except ImportError as error:
        raise ImportError(
            "ortmodule's C++ engine is not built; run `pip install --no-build-isolation .` in its source folder"
        ) from error
    advice = "reinstall it with `pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
    built, here = build.PYTHON_VERSION.split(".")[:2], platform.python_version_tuple()[:2]
    if built != list(here):
        raise ImportError(f"ortmodule was built for Python {'.'.join(built)} but runs in {'.'.join(here)}; {advice}")
    if torch.__version__ != build.TORCH_VERSION:
        raise ImportError(
            f"ortmodule was built for torch {build.TORCH_VERSION} but torch {torch.__version__} is installed; {advice}"
        )


def environment() -> dict[str, str]:
    """Names and values of what matters for a bug report."""
    import torch

    from . import _C
    from . import _build_info as build

    facts = {
        "ortmodule": _version("ortmodule"),
        "built with torch": build.TORCH_VERSION,
        **{name.lower().replace("_", " "): str(getattr(build, name)) for name in sorted(vars(build)) if name.isupper()},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch threads": str(torch.get_num_threads()),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or "none",
        "devices": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "cpu only",
        "operators": str(len(_C.operators())),
    }
    for package in ("onnx", "numpy", "transformers", "onnxruntime"):
        facts[package] = _version(package)
    return facts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
