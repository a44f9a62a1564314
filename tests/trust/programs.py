"""Programs: source text and a schedule, made from (seed, number) alone.

A program's file has a class `Net`, functions `change_0`, `change_1` ... of the module, and names that the runner fills
or reads: GIVEN and LATER (further arguments), GIVES (what becomes of the input), ON_X (its attributes), AROUND (context
managers around a call), MODEL (the module). The schedule is a list of calls and changes.

With a depth the module is one of so many `Net` in a `Stack`, which is what is called.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

from .pieces import Change, Piece, composed, from_row
from .rows import ROWS
from .support import IMPORTS, needed
from .templates import fill, indent
from .values import PLAIN_VALUES
from .values_of_torch import TORCH_VALUES

__all__ = ["Program", "program"]

# After these changes the call is PyTorch's to run, or may be.
_NOT_THE_ENGINE = re.compile(
    "function mode|dispatch mode|two modes|saved tensors|save on cpu|detect_anomaly|default device|only looks|"
    "always called|^hook$|inference_mode|backward|after accumulation|Tensor.sigmoid|__call__|"
    "share memory|prune|parametri|weight norm"
)
# Changes that a user may as well make on the wrapper, which hands them on.
_ON_THE_WRAPPER = re.compile(r"^def change_\d+\(model\):\n(    global \w+\n)*    (del )?model\.(s\d|linear)[^\n]*\n*$")
WHEN = ("between calls", "in another thread", "between forward and backward", "in the forward", "in a hook")


@dataclasses.dataclass
class Program:
    seed: int
    number: int
    source: str
    library: str
    schedule: list[dict[str, Any]]
    places: list[str]
    readings: list[str]
    changes: list[str]
    whens: list[str]
    watchable: bool
    depth: int = 0
    part: int = 0  # of the stack, the one that the program is about

    def text(self) -> str:
        """The program as one text, for a person."""
        steps = "\n".join(f"#   {step}" for step in self.schedule)
        library = f"# --- the library, `lib`:\n{self.library}\n" if self.library else ""
        title = f"# program {self.number} of seed {self.seed}, depth {self.depth}: {', '.join(self.places)}\n"
        return f"{title}{library}{self.source}\n# schedule:\n{steps}\n"


class _Composer:
    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"{seed}/{number}")
        self.pieces: list[Piece] = []
        self.functions: list[str] = []  # sources of the changes
        self.labels: list[str] = []
        self.whens: list[str] = []
        self.in_forward: list[tuple[bool, str]] = []
        self.in_hook: list[str] = []
        self.watchable = True

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self, piece: Piece, change: Change, value: str) -> int:
        """Adds a function that makes the change; gives its number."""
        number = len(self.functions)
        lines = "".join(f"global {name}\n" for name in piece.globals) + change.code(value)
        self.functions.append(f"def change_{number}(model):\n{indent(lines)}\n")
        self.labels.append(change.label)
        return number

    def sequence(self) -> list[list[int]]:
        """Changes in the order in which they happen; some go back to the first value."""
        rng, steps = self.rng, []
        for _ in range(rng.choices((1, 2, 3), (50, 35, 15))[0]):
            piece = rng.choice(self.pieces)
            if not piece.changes:
                continue
            change = self.pick(piece)
            assert change is not None
            values = piece.values[1:] if len(piece.values) > 1 else piece.values
            steps.append([self.change(piece, change, rng.choice(values))])
            if rng.random() < 0.4:  # back: the same way, or as it began
                steps.append(
                    [
                        self.change(
                            piece,
                            change if rng.random() < 0.6 and "delete" not in change.label else piece.changes[0],
                            piece.values[0],
                        )
                    ]
                )
        return steps

    def pick(self, piece: Piece, inside: bool = False) -> Change | None:
        """One of the changes; each kind (of the place, of a container, of the value) is as likely."""
        fits = [c for c in piece.changes if c.inside or not inside]
        if inside and self.rng.random() < 0.9:  # what is gone at the first call mostly ends a program there
            fits = [c for c in fits if not re.search("delete|clear|pop|del ", c.label)]
        kinds = sorted({c.label.split(":")[0] for c in fits})
        if not kinds:
            return None
        kind = self.rng.choice(kinds)
        return self.rng.choice([c for c in fits if c.label.split(":")[0] == kind])

    def leave_behind(self, piece: Piece) -> None:
        """Makes the forward itself, or a hook, change the piece."""
        change = self.pick(piece, inside=True)
        if change is None:
            return
        rng, value = self.rng, self.rng.choice(piece.values)
        if piece.counts and rng.random() < 0.6:
            value = f"{piece.read} + 1"
        code = re.sub(r"\bmodel\b", "self", change.code(value))
        if rng.random() < 0.3:
            code = f"if self.training:\n{indent(code)}"
        self.labels.append(change.label)
        self.watchable = False
        if rng.random() < 0.7:
            self.whens.append("in the forward")
            self.in_forward.append((rng.random() < 0.5, code))
        else:
            self.whens.append("in a hook")
            lines = "".join(f"global {name}\n" for name in piece.globals)
            self.in_hook.append(lines + "self = MODEL\n" + code)

    # -- the schedule -------------------------------------------------------------------------------------------------

    def call(self) -> dict[str, Any]:
        """One call: how the batch, the modes and the surroundings are."""
        return {"call": dict(self.base)}

    def varied(self) -> dict[str, Any]:
        rng, call = self.rng, dict(self.base)
        which = rng.random()
        if which < 0.3:
            call["train"] = not call["train"]
        elif which < 0.6:
            call["batch"] = rng.choice((2, 5))
        elif which < 0.75:
            call["grad"] = rng.choice(("no_grad", "inference_mode", "set_grad_enabled(False)"))
        elif which < 0.85:
            call["thread"] = True
        elif which < 0.95:
            call["x_grad"] = not call["x_grad"]
        else:
            call["keep_grad"] = True
        return {"call": call}

    def schedule(self) -> list[dict[str, Any]]:
        rng = self.rng
        self.base = {"train": rng.random() < 0.8, "batch": 3, "x_grad": rng.random() < 0.3, "grad": "on"}
        vary = rng.random() < 0.3
        steps: list[dict[str, Any]] = [self.call() for _ in range(rng.choice((2, 3)))]
        for numbers in self.sequence():
            when = rng.choices(WHEN[:3], (70, 12, 18))[0]
            self.whens.append(when)
            for number in numbers:
                if when == "between forward and backward":
                    call = self.call()
                    call["call"]["change"] = number
                    steps.append(call)
                else:
                    through = bool(_ON_THE_WRAPPER.search(self.functions[number])) and rng.random() < 0.4
                    steps.append({"change": number, "thread": when == "in another thread", "through": through})
            if vary and rng.random() < 0.4:
                steps.append(self.varied())
            steps += [self.call() for _ in range(rng.choice((1, 2, 2, 3)))]
            if any(p.results for p in self.pieces) and rng.random() < 0.1:
                self.whens.append("in the result")
                steps += [{"spoil": True}, self.call()]
            if rng.random() < 0.1:
                steps.append({"optimizer": True})
                steps.append(self.call())
        return steps

    # -- the source ---------------------------------------------------------------------------------------------------

    def source(self) -> str:
        pieces = self.pieces
        names = sorted({name for p in pieces for name in p.globals})
        steps = "".join(code + "\n" for early, code in self.in_forward if early)
        steps += "".join(p.forward + "\n" for p in pieces)
        steps += "".join(code + "\n" for early, code in self.in_forward if not early)
        # What backward needs of an input that is written in place has to be another tensor.
        first = (
            "y = self.linear(x * 1.0)\n"
            if re.search(r"\b(x|b\d)(\.(mul_|add_)|\[0\] =| \+=)", steps)
            else "y = self.linear(x)\n"
        )
        forward = "".join(
            f"global {name}\n" for name in names if re.search(rf"\b{name}\b( [-+*/]?= |: )|del {name}\b", steps)
        )
        results = [name for p in pieces for name in p.results]
        forward += "".join(f"{name} = None\n" for name in results) + first + steps
        last = {0: "return y\n"}.get(len(results), f"return y, {', '.join(results)}\n")
        plain = [x for p in pieces for x in p.parameters if "=" not in x and not x.startswith("*")]
        default = [x for p in pieces for x in p.parameters if "=" in x]
        star = sorted({x for p in pieces for x in p.parameters if x.startswith("*")})
        parameters = ", ".join(["self", "x", *plain, *default, *star])
        hooks = ""
        init = "".join(p.init + "\n" for p in pieces if p.init)
        for i, code in enumerate(self.in_hook):
            hooks += f"def hook_{i}(module, given, result):\n{indent(code)}\n\n"
            how = self.rng.choice(("register_forward_hook", "register_forward_hook", "register_full_backward_hook"))
            init += f"self.linear.{how}(hook_{i})\n"
        parent = "".join(p.parent + "\n" for p in pieces if p.parent) or "pass\n"
        body = "".join(p.body + "\n" for p in pieces if p.body)
        top = "".join(p.top + "\n" for p in pieces if p.top)
        text = f"{top}{hooks}\nclass Base(nn.Module):\n{indent(parent)}\n\nclass Net(Base):\n{indent(body)}"
        text += "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(4, 4)\n"
        text += f"{indent(init, 2)}\n    def forward({parameters}):\n{indent(forward + last, 2)}\n\n"
        text += "\n".join(self.functions)
        shared = self.shared()
        helpers = {name: lines for name, lines in needed(text).items() if name not in shared}
        first = "import LIBRARY as lib\n" + "".join(f"from LIBRARY import {name}\n" for name in shared)
        return "\n".join(
            (
                IMPORTS + first,
                "GIVEN, LATER, GIVES, ON_X, AROUND, MODEL = {}, {}, {}, {}, {}, None\n",
                *(h + "\n" for h in helpers.values()),
                text,
            )
        )

    def shared(self) -> dict[str, str]:
        """Definitions that the library has, and the program from there."""
        return needed("".join(p.lib + "\n" for p in self.pieces))

    def library(self) -> str:
        text = "".join(p.lib + "\n" for p in self.pieces if p.lib)
        return "\n".join((IMPORTS, *(h + "\n" for h in self.shared().values()), text)) if text else ""


_STACK = """

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Net() for _ in range($d))

    def forward(self, x, **given):
        further = []
        for part in self.parts:
            result = part(x, **given)
            x, *more = result if isinstance(result, tuple) else (result,)
            further.append(more)
        return (x, *further[$n])
"""


def program(seed: int, number: int, depth: int = 0) -> Program:
    """Program `number` of a seed."""
    values = (*PLAIN_VALUES, *TORCH_VALUES)
    composer = _Composer(seed, number)
    rng = composer.rng
    for n in range(rng.choices((1, 2, 3, 4), (40, 30, 20, 10))[0]):
        if ROWS and rng.random() < 0.35:
            composer.pieces.append(from_row(rng.choice(ROWS), n))
        else:
            composer.pieces.append(composed(rng, n, values))
    if rng.random() < 0.12:
        composer.leave_behind(rng.choice(composer.pieces))
    schedule = composer.schedule()
    part = rng.randrange(depth) if depth else 0
    if depth and composer.functions and rng.random() < 0.4:  # it is another one from the beginning
        schedule.insert(0, {"change": 0, "thread": False, "through": False})
    source = composer.source() + (fill(_STACK, d=depth, n=part) if depth else "")
    watchable = composer.watchable and all(p.watchable for p in composer.pieces)
    watchable = watchable and not any(map(_NOT_THE_ENGINE.search, composer.labels))
    return Program(
        seed, number, source, composer.library(), schedule, [p.place for p in composer.pieces],
        [r for p in composer.pieces for r in p.readings], composer.labels, composer.whens,
        watchable, depth, part,
    )  # fmt: skip
