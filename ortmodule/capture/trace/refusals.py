"""Modules that no trace is made of: what runs in Python at each call, and tensors whose operations may be their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.modules.module as torch_module

from ...errors import CaptureError
from ...naming import full_name, module_of
from ..module_tensors import named_tensors

__all__ = ["refuse_python_at_each_call", "refuse_replaced_methods", "refuse_tensor_classes"]

# Methods of nn.Module that torch replaces itself while it traces.
_METHODS = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__setattr__", "__delattr__")


def refuse_replaced_methods() -> None:
    """A trace would pass by what somebody has put in the place of nn.Module's own methods."""
    for name in _METHODS:
        code = getattr(vars(torch.nn.Module)[name], "__code__", None)
        if code is None or code.co_filename != torch_module.__file__:
            raise CaptureError(f"nn.Module.{name} was replaced, by what no trace hears of")


def refuse_python_at_each_call(module: torch.nn.Module, audited: bool) -> None:
    """Backward hooks must run in Python at each call, and so must DDP; forward hooks (but torch's own, weight_norm's,
    which only compute) where no audit hears of what they do.
    """
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    for hook in (hook for table in everywhere for hook in table.values() if not audited):
        text = getattr(hook, "__qualname__", type(hook).__name__)
        raise CaptureError(f"the forward hook {text} is registered for every module and runs in Python at each call")
    if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
        raise CaptureError("a backward hook is registered for every module; a captured graph cannot honor it")
    for name, child in module.named_modules():
        where = f"module '{name}'" if name else "the module"
        if isinstance(child, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            kind = type(child).__name__
            raise CaptureError(f"{where} is a {kind}, which acts at each call; write {kind}(ORTModule(module)) there")
        if child._backward_hooks or child._backward_pre_hooks:
            raise CaptureError(f"{where} has a backward hook; a captured graph cannot honour it")
        hooks = () if audited else (*child._forward_hooks.values(), *child._forward_pre_hooks.values())
        for hook in hooks:
            owner = hook if hasattr(hook, "__module__") else type(hook)
            if not module_of(owner).startswith("torch."):
                text = getattr(hook, "__qualname__", type(hook).__name__)
                raise CaptureError(f"{where} has the forward hook {text}, which runs in Python at each call")


def refuse_tensor_classes(module: torch.nn.Module, leaves: Iterable[Any]) -> None:
    """Parameters and buffers of a class of their own may be anything: quantized, sharded, with units. So may arguments
    that stand for tensors: torch's functions ask them first, outside of a trace.
    """
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and hasattr(type(leaf), "__torch_function__"):
            raise CaptureError(f"an argument of class {full_name(type(leaf))} stands for a tensor (__torch_function__)")
    for name, tensor in named_tensors(module):
        kind: Any = type(tensor)
        plain = kind.__torch_function__ is torch._C._disabled_torch_function_impl or kind is torch.Tensor
        if not plain or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            text = full_name(kind)
            raise CaptureError(f"'{name}' is of the tensor class {text}, whose operations may be its own")
