"""Environment variables of ONNX Runtime's training stack, so that its scripts run as they are.

`ORTMODULE_FALLBACK_POLICY` keeps its meaning: it chooses between a fallback and an error. The other variables tune
parts that do not exist here or that need no tuning; they are accepted and change nothing, which is logged once each.

Not here: the variables of our own options (options.py).
"""

from __future__ import annotations

import logging
import os

from .errors import InvalidArgumentError

__all__ = ["WITHOUT_EFFECT", "fallback_policy", "note_variables_without_effect"]

_LOGGER = logging.getLogger("ortmodule")
_VARIABLE = "ORTMODULE_FALLBACK_POLICY"
_NO_FALLBACK = "FALLBACK_DISABLE"
_KINDS = (
    "FALLBACK_FORCE_TORCH_FORWARD", "FALLBACK_FORCE_TORCH_BACKWARD", "FALLBACK_UNSUPPORTED_DEVICE",
    "FALLBACK_UNSUPPORTED_DATA", "FALLBACK_UNSUPPORTED_TORCH_MODEL", "FALLBACK_UNSUPPORTED_ONNX_MODEL",
    "FALLBACK_BAD_INITIALIZATION",
)  # fmt: skip

# Variable -> why setting it changes nothing.
WITHOUT_EFFECT = {
    "ORTMODULE_SKIPCHECK_POLICY": "every call is checked, always",
    "ORTMODULE_FALLBACK_RETRY": "each kind of call is tried once",
    "ORTMODULE_ONNX_OPSET_VERSION": "the opset is chosen per operator",
    "ORTMODULE_CONV_ALGO_SEARCH": "torch chooses the algorithm of a convolution",
    "ORTMODULE_ENABLE_CUSTOM_AUTOGRAD": "custom autograd Functions are always captured",
    "ORTMODULE_DISABLE_CUSTOM_AUTOGRAD_SUPPORT": "custom autograd Functions are always captured",
    "ORTMODULE_SKIPPED_AUTOGRAD_FUNCTIONS": "custom autograd Functions are always captured",
    "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT": "checkpointed regions are always captured",
    "ORTMODULE_ENABLE_COMPUTE_OPTIMIZER": "the passes always run",
    "ORTMODULE_ENABLE_LABEL_SPARSE_OPTIMIZER": "the passes always run",
    "ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER": "the passes always run",
    "ORTMODULE_ENABLE_SPARSE_OPTIMIZER": "the passes always run",
    "ORTMODULE_PRINT_INPUT_DENSITY": "the report has what is known of the inputs",
    "ORTMODULE_PRINT_MEMORY_STATS": "the report has the bytes of each session",
    "ORTMODULE_MEMORY_OPT_LEVEL": "ORTMODULE_MEMORY_BUDGET says how much is recomputed",
    "ORTMODULE_MEMORY_OPT_CONFIG": "ORTMODULE_MEMORY_BUDGET says how much is recomputed",
    "ORTMODULE_MEMORY_OPT_PROBE_RECOMPUTE_LEVEL": "ORTMODULE_MEMORY_BUDGET says how much is recomputed",
    "ORTMODULE_ENABLE_ZERO_STAGE3": "parameters are used as the module holds them",
    "ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "gradients are handed over as they are ready",
    "ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "a capture copies no weight",
    "ORTMODULE_USE_EFFICIENT_ATTENTION": "the attention kernel is chosen by device and sizes",
    "ORTMODULE_USE_FLASH_ATTENTION": "the attention kernel is chosen by device and sizes",
    "ORTMODULE_ATEN_SDPA_FALLBACK": "the attention kernel is chosen by device and sizes",
    "ORTMODULE_USE_TRITON": "no kernel is written in Triton",
    "ORTMODULE_TRITON_CONFIG_FILE": "no kernel is written in Triton",
    "ORTMODULE_TRITON_DEBUG": "no kernel is written in Triton",
    "ORTMODULE_ENABLE_TUNING": "matrix products are always measured (ORTMODULE_MATMUL)",
    "ORTMODULE_MAX_TUNING_DURATION_MS": "matrix products are measured for as long as a product takes",
    "ORTMODULE_TUNING_RESULTS_PATH": "measurements are not kept",
    "ORTMODULE_JSON_CONFIG_PATH": "options are given in code or by variables",
}
_noted: set[str] = set()


def fallback_policy() -> str | None:
    """What `ORTMODULE_FALLBACK_POLICY` says, as a value of `Options.fallback`; None where it is unset.

    Its value is one or more of the reference system's names, joined by `|`; `FALLBACK_DISABLE` among them is "error",
    and the others are "eager".

    Raises:
        InvalidArgumentError: an unknown name.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        return None
    names = [name.strip() for name in text.split("|")]
    for name in names:
        if name not in (_NO_FALLBACK, *_KINDS):
            known = ", ".join((_NO_FALLBACK, *_KINDS))
            raise InvalidArgumentError(f"{_VARIABLE} should be of {known}, joined by '|'; got {name!r}")
    return "error" if _NO_FALLBACK in names else "eager"


def note_variables_without_effect() -> None:
    """Logs each variable that is set and that means nothing here, once per process."""
    for variable in [v for v in WITHOUT_EFFECT if v in os.environ and v not in _noted]:
        _noted.add(variable)
        _LOGGER.info("%s has no effect: %s", variable, WITHOUT_EFFECT[variable])
