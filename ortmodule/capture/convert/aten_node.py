"""The fallback node: any torch operator, written with its schema so that it can be called back exactly.

`org.pytorch.aten::ATen` carries `operator`, `overload` and `arguments`, one string per schema argument, in order:

    t  the next input                       n  None                          -  the schema's default
    T3 the next 3 inputs, a Tensor[]        Ttnt  the same where elements may be None
    i:EXPR int      f:REPR float            b:0 bool        s:TEXT string
    I:e1,e2 int[]   F:r1,r2 float[]         B:0,1 bool[]    c:i:3 c:f:0.5 c:b:1 a Scalar
    d:1 dtype as ONNX data type             v:cpu device    l:... layout     m:... memory format

EXPR may be a size text; its data-dependent symbols are named in `symbols` and their values are the last inputs.
`no_grad_inputs` lists the inputs that its derivative does not reach.
`decode` is the reader that tests use; the runtime has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from ..sizes import Dim
from ..trace.patches import sequences
from .emitter import Emitter
from .gradient_reach import unreached_inputs
from .onnx_graph import ATEN, ONNX_TYPES, Value, onnx_type

__all__ = ["decode", "emit", "onnx_type"]

_TORCH_TYPES = {number: dtype for dtype, number in ONNX_TYPES.items()}
# Operators that only a trace knows, and the aten operator that each stands for.
_STANDS_FOR = {
    "ortmodule::lstm": ("aten::lstm", "input"), "ortmodule::gru": ("aten::gru", "input"),
    "ortmodule::rnn_tanh": ("aten::rnn_tanh", "input"), "ortmodule::rnn_relu": ("aten::rnn_relu", "input"),
    **sequences.STANDS_FOR,
}  # fmt: skip

# Arguments that ask for a sparse gradient: of embedding and embedding_bag, and of gather.
_SPARSE_GRADIENT = ("sparse", "sparse_grad")


def emit(c: Emitter, target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Emits `target` with resolved arguments as an ATen node; returns its Value or tuple of Values."""
    schema = target._schema
    inputs: list[Value] = []
    texts: list[str] = []
    sizes: list[Dim] = []
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            given = args[i]
        elif argument.name in kwargs:
            given = kwargs[argument.name]
        else:
            texts.append("-")
            continue
        if argument.name in _SPARSE_GRADIENT and given is True:
            raise CaptureError(f"the operator '{schema.name}' is to give a sparse gradient, which no graph can hold")
        if argument.has_default_value() and _is_default(given, argument.default_value):
            texts.append("-")
        else:
            texts.append(_encode(c, str(argument.type), given, inputs, sizes))
    symbols, bound = c.builder.bindings(sizes)
    name, overload = _STANDS_FOR.get(schema.name, (schema.name, schema.overload_name))
    attributes: dict[str, Any] = dict(operator=name, overload=overload, arguments=texts, symbols=symbols or None)
    attributes["no_grad_inputs"] = unreached_inputs(target, *c.arguments, len(inputs)) or None
    if isinstance(c.out, torch.Tensor):
        return c.emit("ATen", *inputs, *bound, domain=ATEN, **attributes)
    if isinstance(c.out, (list, tuple)) and all(isinstance(o, torch.Tensor) for o in c.out):
        return c.emit_many("ATen", [*inputs, *bound], domain=ATEN, **attributes)
    raise CaptureError(f"the operator '{schema.name}' returns {type(c.out).__name__}, which has no ONNX form")


def _is_default(given: Any, default: Any) -> bool:
    return type(given) is type(default) and not isinstance(given, torch.SymInt) and given == default


def _encode(c: Emitter, kind: str, given: Any, inputs: list[Value], sizes: list[Dim]) -> str:
    def size(x: Any) -> str:
        text = c.dim(x)
        sizes.append(text)
        return str(text)

    if given is None:
        return "n"
    if isinstance(given, Value):
        inputs.append(given)
        return "t"
    if isinstance(given, (list, tuple)):
        return _encode_list(kind, given, inputs, size)
    if isinstance(given, torch.dtype):
        return f"d:{onnx_type(given)}"
    for python_type, letter in ((torch.device, "v"), (torch.layout, "l"), (torch.memory_format, "m"), (str, "s")):
        if isinstance(given, python_type):
            return f"{letter}:{given}"
    if "Tensor" in kind:  # a Python number where the schema has a tensor: it does not promote, as a 0-d one
        inputs.append(c.tensor(given, torch.tensor(given).dtype))
        return "t"
    scalar = "c:" if "number" in kind.lower() else ""
    if isinstance(given, bool):
        return f"{scalar}b:{int(given)}"
    if isinstance(given, (int, torch.SymInt)):
        return f"f:{float(given)!r}" if "float" in kind and not scalar else f"{scalar}i:{size(given)}"
    if isinstance(given, float):
        return f"{scalar}f:{given!r}"
    raise CaptureError(f"an operator argument of type {type(given).__name__} ({given!r}) has no ONNX form")


def _encode_list(kind: str, given: Sequence[Any], inputs: list[Value], size: Callable[[Any], str]) -> str:
    if "Tensor" in kind:
        inputs.extend(v for v in given if v is not None)
        if any(v is None for v in given):
            return "T" + "".join("n" if v is None else "t" for v in given)
        return f"T{len(given)}"
    if "bool" in kind:
        return "B:" + ",".join(str(int(v)) for v in given)
    if "float" in kind:
        return "F:" + ",".join(repr(float(v)) for v in given)
    return "I:" + ",".join(size(v) for v in given)


def decode(
    operator: str, overload: str, arguments: Sequence[str], inputs: Sequence[Any], evaluate: Callable[[str], int]
) -> Any:
    """Calls the operator that an ATen node stands for.

    Args:
        operator, overload, arguments: the node's attributes.
        inputs: its inputs as torch tensors.
        evaluate: turns a size text into an int.
    """
    namespace, name = operator.split("::")
    target = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    pending = iter(inputs)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument, text in zip(target._schema.arguments, arguments, strict=True):
        if text == "-" and (argument.kwarg_only or argument.has_default_value()):
            if not argument.kwarg_only:
                positional.append(argument.default_value)
            continue
        value = _decode_one(text, pending, evaluate)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return target(*positional, **keywords)


def _decode_one(text: str, inputs: Any, evaluate: Callable[[str], int]) -> Any:
    if text in ("t", "n"):
        return next(inputs) if text == "t" else None
    if text[0] == "T":
        marks = "t" * int(text[1:] or 0) if text[1:].isdigit() else text[1:]
        return [next(inputs) if mark == "t" else None for mark in marks]
    kind, _, rest = text.partition(":")
    parts = rest.split(",") if rest else []
    readers: dict[str, Callable[[], Any]] = {
        "i": lambda: evaluate(rest), "f": lambda: float(rest), "b": lambda: rest == "1", "s": lambda: rest,
        "I": lambda: [evaluate(p) for p in parts], "F": lambda: [float(p) for p in parts],
        "B": lambda: [p == "1" for p in parts], "d": lambda: _TORCH_TYPES[int(rest)], "v": lambda: torch.device(rest),
        "l": lambda: getattr(torch, rest.removeprefix("torch.")),
        "m": lambda: getattr(torch, rest.removeprefix("torch.")),
        "c": lambda: _decode_one(rest, inputs, evaluate),
    }  # fmt: skip
    return readers[kind]()
