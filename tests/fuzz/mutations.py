"""Broken models from sound ones: bytes changed at random, and fields changed through protobuf's description of them.

A mutant is a function of the random state alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

NUMBERS = (-(2**63), -(2**62), -(2**31), -1000, -5, -2, -1, 0, 1, 2, 3, 4, 7, 16, 1000, 10**6, 2**31, 2**40, 2**63 - 1)
FLOATS = (0.0, -1.0, 1.0, 1e-38, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "n", "2*n", "n//0", "-1", "../x", "/etc/passwd", "ai.onnx", "com.microsoft", "ai.ortmodule",
         "Max(n, 0)", "a" * 5000, "nearest", "SAME_UPPER", "location", "offset", "length", "é", "a\0b")  # fmt: skip
# How often a group of seeds is taken; of the small ones many are refused as they are.
WEIGHTS = {"node": 8, "operators": 6, "networks": 4, "handmade": 1, "simple": 1}
_INTEGERS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


def mutant(rng: random.Random, groups: dict[str, list[bytes]], structured: bool) -> bytes:
    """One of the seeds with one or several changes."""
    seed, donor = _pick(rng, groups), _pick(rng, groups)
    if structured:
        model = onnx.ModelProto.FromString(seed)
        other = onnx.ModelProto.FromString(donor)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            change_field(rng, model, other)
        try:
            return model.SerializeToString()
        except (EncodeError, ValueError):
            return seed
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        change_bytes(rng, data, donor)
    return bytes(data)


def _pick(rng: random.Random, groups: dict[str, list[bytes]]) -> bytes:
    names = sorted(groups)
    return rng.choice(groups[rng.choices(names, [WEIGHTS[name] for name in names])[0]])


def change_bytes(rng: random.Random, data: bytearray, donor: bytes) -> None:
    """One change in place."""
    at = rng.randrange(len(data) + 1)
    span = 1 + int(rng.expovariate(0.1))
    how = rng.randrange(8)
    if how < 3 and at < len(data):
        data[at] = rng.randrange(256) if how else data[at] ^ (1 << rng.randrange(8))
    elif how == 3:
        del data[at : at + span]
    elif how == 4:
        data[at:at] = rng.randbytes(span)
    elif how == 5:
        data[at:at] = data[at : at + span] * rng.randint(1, 3)
    elif how == 6:
        start = rng.randrange(len(donor))
        data[at : at + span] = donor[start : start + span]
    elif rng.random() < 0.2:
        del data[at:]
    else:  # a long varint
        data[at : at + 1] = b"\xff" * rng.randint(1, 9) + b"\x01"


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for child in value if _repeated(field) else [value]:
            yield from _messages(child)


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _texts(model: Message) -> list[str]:
    found = [v for m in _messages(model) for f, v in m.ListFields() if f.type == f.TYPE_STRING and not _repeated(f)]
    return found + [t for m in _messages(model) if isinstance(m, onnx.NodeProto) for t in (*m.input, *m.output)]


def change_field(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """One change in place, most often in a field that is set."""
    everything = list(_messages(model))
    message = rng.choice(everything)
    if rng.random() < 0.5:  # nodes, attributes and tensors are few among many dimensions
        kind = rng.choice((onnx.NodeProto, onnx.AttributeProto, onnx.TensorProto, onnx.GraphProto, onnx.ValueInfoProto))
        of_kind = [m for m in everything if isinstance(m, kind)]
        message = rng.choice(of_kind) if of_kind else message
    present = [field for field, _ in message.ListFields()]
    known = list(message.DESCRIPTOR.fields)
    field = rng.choice(present if present and rng.random() < 0.85 else known)
    try:
        if _repeated(field):
            _change_list(rng, message, field, model, donor)
        elif rng.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None:
            _change_message(rng, getattr(message, field.name), model, donor)
        else:
            setattr(message, field.name, _value(rng, field, model))
    except (ValueError, TypeError, DecodeError, EncodeError, UnicodeError):
        pass  # protobuf takes no such value


def _change_message(rng: random.Random, target: Message, model: Message, donor: Message) -> None:
    source = model if rng.random() < 0.5 else donor
    same = [m for m in _messages(source) if type(m) is type(target) and m is not target]
    if same:
        target.CopyFrom(type(target).FromString(rng.choice(same).SerializeToString()))
    else:
        target.Clear()


def _change_list(rng: random.Random, message: Message, field: FieldDescriptor, model: Message, donor: Message) -> None:
    values = getattr(message, field.name)
    how = rng.randrange(6)
    if how == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif how == 1 and len(values):
        kept = [v if field.message_type is None else type(v).FromString(v.SerializeToString()) for v in values]
        rng.shuffle(kept)
        message.ClearField(field.name)
        getattr(message, field.name).extend(kept)
    elif how == 2 and len(values):
        values.extend(list(values)[: 1 + rng.randrange(len(values))] * rng.choice((1, 1, 2, 8)))
    elif field.message_type is not None:
        _change_message(rng, values.add() if how == 3 or not len(values) else rng.choice(values), model, donor)
    elif how == 3 or not len(values):
        values.append(_value(rng, field, model))
    else:
        values[rng.randrange(len(values))] = _value(rng, field, model)


def _value(rng: random.Random, field: FieldDescriptor, model: Message) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in _INTEGERS or field.cpp_type in _UNSIGNED:
        if field.name in ("data_type", "elem_type"):
            return rng.randrange(28)
        if field.name == "version":
            return rng.randrange(30)
        number = rng.choice(NUMBERS)
        if field.cpp_type in _UNSIGNED:
            return number % 2 ** _UNSIGNED[field.cpp_type]
        limit = 2 ** _INTEGERS[field.cpp_type]
        return max(-limit, min(limit - 1, number))
    if field.type == FieldDescriptor.TYPE_STRING:
        if field.name == "op_type":
            return rng.choice(_operators(model) if rng.random() < 0.3 else ALL_OPERATORS)
        return rng.choice(_texts(model) + list(TEXTS)) if rng.random() < 0.8 else rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice(TEXTS).encode() if rng.random() < 0.5 else rng.randbytes(rng.randrange(40))
    return rng.choice(FLOATS)


def _operators(model: Message) -> list[str]:
    return [m.op_type for m in _messages(model) if isinstance(m, onnx.NodeProto)] or ["Identity"]


ALL_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
