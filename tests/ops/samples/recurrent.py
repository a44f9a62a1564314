"""Rows of the recurrent layers against their equations, written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand

Tensor = torch.Tensor
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "Relu": lambda x, a, b: F.relu(x),
    "Tanh": lambda x, a, b: torch.tanh(x),
    "Sigmoid": lambda x, a, b: torch.sigmoid(x),
    "Softsign": lambda x, a, b: F.softsign(x),
    "Softplus": lambda x, a, b: F.softplus(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: F.leaky_relu(x, a),
    "Elu": lambda x, a, b: F.elu(x, a),
    "ScaledTanh": lambda x, a, b: a * torch.tanh(b * x),
    "HardSigmoid": lambda x, a, b: (a * x + b).clamp(0, 1),
}
PARAMETERS = {"Affine": 2, "LeakyRelu": 1, "Elu": 1, "ScaledTanh": 2, "HardSigmoid": 2}


def functions(names: list[str], attributes: dict[str, Any]) -> list[Callable[[Tensor], Tensor]]:
    alphas, betas = iter(attributes.get("activation_alpha", ())), iter(attributes.get("activation_beta", ()))
    clip = attributes.get("clip")

    def make(name: str) -> Callable[[Tensor], Tensor]:
        count = PARAMETERS.get(name, 0)
        a = next(alphas) if count > 0 else None
        b = next(betas) if count > 1 else None
        return lambda x: FUNCTIONS[name](x if clip is None else x.clamp(-clip, clip), a, b)

    return [make(name) for name in names]


def rnn_cell(x, w, r, wb, rb, p, state, f, **_):  # type: ignore[no-untyped-def]
    (h,) = state
    return (f[0](x @ w.T + h @ r.T + wb + rb),)


def gru_cell(x, w, r, wb, rb, p, state, f, linear_before_reset=0, **_):  # type: ignore[no-untyped-def]
    (h,) = state
    (wz, wr, wh), (rz, rr, rh) = w.chunk(3), r.chunk(3)
    (wbz, wbr, wbh), (rbz, rbr, rbh) = wb.chunk(3), rb.chunk(3)
    z = f[0](x @ wz.T + h @ rz.T + wbz + rbz)
    reset = f[0](x @ wr.T + h @ rr.T + wbr + rbr)
    if linear_before_reset:
        candidate = f[1](x @ wh.T + reset * (h @ rh.T + rbh) + wbh)
    else:
        candidate = f[1](x @ wh.T + (reset * h) @ rh.T + rbh + wbh)
    return ((1 - z) * candidate + z * h,)


def lstm_cell(x, w, r, wb, rb, p, state, f, input_forget=0, **_):  # type: ignore[no-untyped-def]
    h, c = state
    i, o, forget, g = (x @ w.T + h @ r.T + wb + rb).chunk(4, -1)
    pi, po, pf = p.chunk(3)
    i = f[0](i + pi * c)
    forget = 1 - i if input_forget else f[0](forget + pf * c)
    c = forget * c + i * f[1](g)
    o = f[0](o + po * c)
    return o * f[2](c), c


def layer(cell: Callable[..., Any], gates: int, defaults: list[str]) -> Callable[..., tuple[Tensor, ...]]:
    states = 2 if gates == 4 else 1

    def run(x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None, **attributes: Any) -> tuple[Tensor, ...]:
        b, lengths, *initial = [*rest, *[None] * (5 - len(rest))]
        peephole = initial[2] if gates == 4 else None
        if attributes.get("layout"):
            x = x.transpose(0, 1)
            initial = [None if s is None else s.transpose(0, 1) for s in initial]
        direction = attributes.get("direction", "forward")
        reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        names = attributes.get("activations", defaults * len(reversals))
        f = functions(names, attributes)
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        sequences, last = [], [[] for _ in range(states)]
        for d, backwards in enumerate(reversals):
            wb, rb = (x.new_zeros(2 * gates * hidden) if b is None else b[d]).chunk(2)
            p = x.new_zeros(3 * hidden) if peephole is None else peephole[d]
            state = [x.new_zeros(batch, hidden) if s is None else s[d] for s in initial[:states]]
            ys = [x.new_zeros(batch, hidden)] * steps
            for t in reversed(range(steps)) if backwards else range(steps):
                new = cell(x[t], w[d], r[d], wb, rb, p, state, f[d * len(defaults) :], **attributes)
                alive = torch.ones(batch, 1, dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
                ys[t] = torch.where(alive, new[0], torch.zeros_like(new[0]))
                state = [torch.where(alive, n, s) for n, s in zip(new, state)]
            sequences.append(torch.stack(ys))
            for kept, s in zip(last, state):
                kept.append(s)
        y = torch.stack(sequences, 1)
        final = [torch.stack(s, 1 if attributes.get("layout") else 0) for s in last]
        return y.permute(2, 0, 1, 3) if attributes.get("layout") else y, *final

    return run


def cases(gates: int, defaults: list[str]) -> Callable[[torch.dtype], Sequence[Case]]:
    states = 2 if gates == 4 else 1
    hidden, features, steps, batch = 3, 2, 4, 2

    def of(
        dtype: torch.dtype,
        direction: str = "forward",
        layout: int = 0,
        bias: bool = True,
        lengths: bool = False,
        initial: bool = False,
        peephole: bool = False,
        **attributes: Any,
    ) -> Case:
        dirs = 2 if direction == "bidirectional" else 1
        x = rand(batch, steps, features, dtype=dtype) if layout else rand(steps, batch, features, dtype=dtype)
        inputs: list[Tensor | None] = [
            x,
            rand(dirs, gates * hidden, features, dtype=dtype, low=-1, high=1),
            rand(dirs, gates * hidden, hidden, dtype=dtype, low=-1, high=1),
            rand(dirs, 2 * gates * hidden, dtype=dtype, low=-1, high=1) if bias else None,
            torch.tensor([2, 4], dtype=torch.int32) if lengths else None,
        ]
        shape = (batch, dirs, hidden) if layout else (dirs, batch, hidden)
        inputs += [rand(*shape, dtype=dtype, low=-1, high=1) if initial else None for _ in range(states)]
        if gates == 4:
            inputs.append(rand(dirs, 3 * hidden, dtype=dtype, low=-1, high=1) if peephole else None)
        while inputs[-1] is None:
            inputs.pop()
        values = {"direction": direction, "layout": layout, "hidden_size": hidden, **attributes}
        return Case(tuple(inputs), values, outputs=1 + states)

    def all_cases(dtype: torch.dtype) -> list[Case]:
        out = [of(dtype, d, layout) for d, layout in product(("forward", "reverse", "bidirectional"), (0, 1))]
        out += [of(dtype, d, lengths=True, initial=True) for d in ("forward", "bidirectional")]
        out += [of(dtype, bias=False), of(dtype, initial=True, layout=1), of(dtype, clip=0.3)]
        others = {1: ["Softsign"], 3: ["HardSigmoid", "Affine"], 4: ["HardSigmoid", "LeakyRelu", "ScaledTanh"]}[gates]
        alphas = {1: [[], []], 3: [[0.25, 0.5], [0.5, 0.25]], 4: [[0.25, 0.1, 1.5], [0.5, 0.75]]}[gates]
        out.append(of(dtype, activations=others, activation_alpha=alphas[0], activation_beta=alphas[1]))
        two = [*defaults, *(["Relu"] if gates == 1 else ["Sigmoid", *["Elu"] * (len(defaults) - 1)])]
        alpha = [0.5] * (len(defaults) - 1)
        out.append(of(dtype, "bidirectional", activations=two, activation_alpha=alpha))
        if gates == 3:
            out += [of(dtype, "bidirectional", linear_before_reset=1, initial=True)]
        if gates == 4:
            out += [of(dtype, peephole=True, initial=True), of(dtype, "bidirectional", peephole=True, input_forget=1)]
        return out

    return all_cases


def row(name: str, cell: Callable[..., Any], gates: int, defaults: list[str]) -> Row:
    return Row(name, layer(cell, gates, defaults), cases(gates, defaults), tolerance=5e-2, refuses=True)


def torch_layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Tensor | None, mode: str, reverse: int = 0, batch_first: int = 0
) -> tuple[Tensor, ...]:
    """One direction of torch's layers: gates i, f, g, o or r, z, n."""
    b_ih, b_hh, h, c, w_hr = [*rest, *[None] * (5 - len(rest))]
    x = x.transpose(0, 1) if batch_first else x
    hidden = w_hh.shape[1] if w_hr is None else w_hr.shape[1]
    h = x.new_zeros(x.shape[1], w_hh.shape[1]) if h is None else h
    c = x.new_zeros(x.shape[1], hidden) if c is None else c
    ys = [h] * x.shape[0]
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        from_x, from_h = F.linear(x[t], w_ih, b_ih), F.linear(h, w_hh, b_hh)
        if mode == "lstm":
            i, f, g, o = (from_x + from_h).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            h = h if w_hr is None else h @ w_hr.T
        elif mode == "gru":
            (xr, xz, xn), (hr, hz, hn) = from_x.chunk(3, -1), from_h.chunk(3, -1)
            z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
            h = (1 - z) * n + z * h
        else:
            h = getattr(torch, mode)(from_x + from_h)
        ys[t] = h
    y = torch.stack(ys)
    return (y.transpose(0, 1) if batch_first else y, h, c)[: 3 if mode == "lstm" else 2]


def torch_cases(dtype: torch.dtype) -> list[Case]:
    hidden, features, steps, batch = 3, 2, 4, 2

    def of(mode: str, bias: bool = True, initial: bool = False, outputs: int = hidden, **flags: int) -> Case:
        gates = {"lstm": 4, "gru": 3}.get(mode, 1)
        small = dict(dtype=dtype, low=-1.0, high=1.0)
        inputs: list[Tensor | None] = [
            rand(*((batch, steps) if flags.get("batch_first") else (steps, batch)), features, dtype=dtype),
            rand(gates * hidden, features, **small),
            rand(gates * hidden, outputs, **small),
            *(rand(gates * hidden, **small) if bias else None for _ in range(2)),
            rand(batch, outputs, **small) if initial else None,
            rand(batch, hidden, **small) if initial and mode == "lstm" else None,
            rand(outputs, hidden, **small) if outputs != hidden else None,
        ]
        while inputs[-1] is None:
            inputs.pop()
        return Case(tuple(inputs), {"mode": mode, **flags}, outputs=3 if mode == "lstm" else 2)

    out = []
    for mode in ("lstm", "gru", "tanh", "relu"):
        out += [of(mode), of(mode, initial=True, reverse=1), of(mode, bias=False, batch_first=1)]
        out += [of(mode, initial=True, batch_first=1, reverse=1)]
    return [*out, of("lstm", outputs=2), of("lstm", outputs=2, initial=True, bias=False, batch_first=1, reverse=1)]


def kept(cell: Callable[..., Any], gates: int, defaults: list[str]) -> Callable[..., tuple[Tensor, ...]]:
    """The outputs of LSTMTraining or GRUTraining that only their gradients read: cells of an LSTM, and all gates."""

    def run(x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None, **attributes: Any) -> tuple[Tensor, ...]:
        every = layer(cell, gates, defaults)(x, w, r, *rest, **attributes)
        b, _, *initial = [*rest, *[None] * (4 - len(rest))]
        hidden, backwards = r.shape[2], attributes.get("direction") == "reverse"
        wb, rb = (x.new_zeros(2 * gates * hidden) if b is None else b[0]).chunk(2)
        state = [x.new_zeros(x.shape[1], hidden) if s is None else s[0] for s in initial[: 2 if gates == 4 else 1]]
        cells, inside = [state[-1]] * x.shape[0], [x.new_zeros(0)] * x.shape[0]
        for t in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
            parts = (x[t] @ w[0].T + wb).chunk(gates, -1)
            products = (state[0] @ r[0].T + rb).chunk(gates, -1)
            if gates == 4:
                i, o, f, g = (p + q for p, q in zip(parts, products))
                inside[t] = torch.cat([i.sigmoid(), o.sigmoid(), f.sigmoid(), g.tanh()], -1)
                cells[t] = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
                state = [o.sigmoid() * cells[t].tanh(), cells[t]]
            else:
                z, reset = ((p + q).sigmoid() for p, q in zip(parts[:2], products))
                n = (parts[2] + reset * products[2]).tanh()
                inside[t] = torch.cat([z, reset, n], -1)
                state = [(1 - z) * n + z * state[0]]
        return (*every, *([torch.stack(cells)[:, None]] if gates == 4 else []), torch.stack(inside)[:, None])

    return run


def training_cases(gates: int, directions: list[str], outputs: int) -> Callable[[torch.dtype], list[Case]]:
    more = {"linear_before_reset": 1} if gates == 3 else {}

    def of(dtype: torch.dtype) -> list[Case]:
        small, cases = dict(dtype=dtype, low=-1.0, high=1.0), []
        for direction, given in product(directions, (False, True)):
            d = 2 if direction == "bidirectional" else 1
            inputs = [rand(4, 2, 2, dtype=dtype), rand(d, gates * 3, 2, **small), rand(d, gates * 3, 3, **small)]
            if given:
                states = [rand(d, 2, 3, **small) for _ in range(2 if gates == 4 else 1)]
                inputs += [rand(d, 2 * gates * 3, **small), None, *states]
            attributes = {"direction": direction, "hidden_size": 3, **more}
            cases.append(Case(tuple(inputs), attributes, outputs=outputs))
        return cases

    return of


def gradient_of(cell: Callable[..., Any], gates: int, defaults: list[str]) -> Callable[..., tuple[Tensor, ...]]:
    """LSTMGrad or GRUGrad: autograd through the equations. What the operator is given of forward is not needed here."""
    forward = layer(cell, gates, defaults)

    def run(x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None, **attributes: Any) -> tuple[Tensor, ...]:
        if gates == 4:
            _, h0, c0, *_, dy, dh, dc = rest
            b, initial, grads = None, [h0, c0], [dy, dh, dc]
        else:
            b, _, h0, *_, dy, dh = rest
            initial, grads = [h0], [dy, dh]
        b = x.new_zeros(w.shape[0], 2 * w.shape[1]) if b is None else b
        leaves = [v.detach().requires_grad_() for v in (x, w, r, b, *initial)]
        with torch.enable_grad():
            ys = forward(*leaves[:4], None, *leaves[4:], **attributes)
            return torch.autograd.grad(ys, leaves, grads)

    return run


def gradient_cases(cell: Callable[..., Any], gates: int, defaults: list[str]) -> Callable[[torch.dtype], list[Case]]:
    def of(dtype: torch.dtype) -> list[Case]:
        cases = []
        for case in training_cases(gates, ["forward", "reverse"], 2)(dtype)[1::2]:
            x, w, r, b, _, *initial = case.inputs
            b = torch.zeros_like(b) if gates == 4 else b
            saved = kept(cell, gates, defaults)(x, w, r, b, None, *initial, **case.attributes)
            states = 2 if gates == 4 else 1
            given = [saved[0], *saved[1 + states :]]
            flowing = [rand(*y.shape, dtype=dtype) for y in saved[: 1 + states]]
            head = [x, w, r, None, *initial] if gates == 4 else [x, w, r, b, None, *initial]
            cases.append(Case((*head, *given, *flowing), case.attributes, outputs=4 + states))
        return cases

    return of


def training_rows(name: str, cell: Callable[..., Any], gates: int, defaults: list[str]) -> list[Row]:
    rule, both = (cell, gates, defaults), ["forward", "reverse", "bidirectional"]
    states = 2 if gates == 4 else 1
    more = dict(domain="com.microsoft", tolerance=5e-2, refuses=True)
    values = training_cases(gates, both[:2], 3 + 2 * (gates == 4))
    return [
        Row(f"{name}Training", layer(*rule), training_cases(gates, both, 1 + states), **more),
        Row(f"{name}Training", kept(*rule), values, differentiable=False, **more),
        # What forward kept belongs to these inputs, not to parts of them or to inputs rounded on their own.
        Row(
            f"{name}Grad",
            gradient_of(*rule),
            gradient_cases(*rule),
            differentiable=False,
            wide=True,
            no_forms=("size", "without"),
            **more,
        ),
    ]


ROWS = [
    *training_rows("LSTM", lstm_cell, 4, ["Sigmoid", "Tanh", "Tanh"]),
    *training_rows("GRU", gru_cell, 3, ["Sigmoid", "Tanh"]),
    Row("RecurrentLayer", torch_layer, torch_cases, domain="ai.ortmodule", tolerance=5e-2, refuses=True),
    row("RNN", rnn_cell, 1, ["Tanh"]),
    row("GRU", gru_cell, 3, ["Sigmoid", "Tanh"]),
    row("LSTM", lstm_cell, 4, ["Sigmoid", "Tanh", "Tanh"]),
]
