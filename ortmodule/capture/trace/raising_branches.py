"""Where a branch in running Python code leads: whether one way of it does nothing but raise.

`if (var < 0).any(): raise ValueError(...)` and `assert ok.all(), "..."` ask a question that has one answer in every
call that works. That is read off the frame's bytecode: the conditional jump that uses the answer, and what follows on
both sides of it. Knows no torch; what is done with the answer is in branches.py.
"""

from __future__ import annotations

import dis
import types

__all__ = ["truth_that_goes_on"]

# Between the question (`tensor.__bool__()` or a call such as `tensor.item()`) and the jump that uses its answer.
_PASSED_OVER = ("NOP", "TO_BOOL", "NOT_TAKEN", "EXTENDED_ARG")
_RAISES = ("RAISE_VARARGS",)
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE", "RERAISE")


def truth_that_goes_on(frame: types.FrameType) -> bool | None:
    """The truth value of the branch that `frame` stands at with which the code goes on; None where both may.

    Args:
        frame: a frame that runs the instruction which asks for a truth value, or a call that returns it.
    """
    code = list(dis.get_instructions(frame.f_code))
    # The place may be in the cache behind the instruction, which has no entry of its own.
    asked = max((i for i, one in enumerate(code) if one.offset <= frame.f_lasti), default=None)
    if asked is None:
        return None
    at = asked if "_JUMP_" in code[asked].opname else asked + 1
    if code[asked].opname == "PRECALL":  # Python 3.11 calls a class there, and steps over the CALL behind
        at += 1
    while at < len(code) and code[at].opname in _PASSED_OVER:
        at += 1
    if at + 1 >= len(code) or "POP_JUMP" not in code[at].opname or not code[at].opname.endswith(("_TRUE", "_FALSE")):
        return None
    jumps_if = code[at].opname.endswith("_TRUE")
    target = next((i for i, one in enumerate(code) if one.offset == code[at].argval), len(code))
    raises = {jumps_if: _only_raises(code, target), not jumps_if: _only_raises(code, at + 1)}
    if raises[True] == raises[False]:
        return None
    return raises[False]


def _only_raises(code: list[dis.Instruction], start: int) -> bool:
    """Whether every way from instruction `start` leads to a raise, without a loop."""
    places = {one.offset: i for i, one in enumerate(code)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    waiting, seen = [start], set[int]()
    while waiting:
        at = waiting.pop()
        while at not in seen and code[at : at + 1]:
            seen.add(at)
            one = code[at]
            if one.opname in _RAISES:
                break
            if one.opname in _LEAVES or "BACKWARD" in one.opname:
                return False
            if one.opcode in jumps:
                target = places.get(one.argval, len(code))
                if one.opname == "JUMP_FORWARD":
                    at = target
                    continue
                waiting.append(target)
            at += 1
        else:
            if not code[at : at + 1]:
                return False
    return True
