"""Pieces written out: hooks of every kind, and functions of autograd that read state when the backward runs."""

from __future__ import annotations

from .pieces import Row

__all__ = ["ROWS"]

_TOP = "SCALE$n, HANDLES$n, SEEN$n = 2.0, [], []"
_REMOVE = ("remove", "while HANDLES$n:\n    HANDLES$n.pop().remove()")
_READ = ("what they read", "SCALE$n = $x")
_LAYER = (
    ("forward hook", "HANDLES$n.append(model.linear.register_forward_hook(lambda m, i, o: o * SCALE$n))"),
    ("forward hook with keywords",
        "HANDLES$n.append(model.linear.register_forward_hook(lambda m, i, k, o: o + SCALE$n, with_kwargs=True))"),
    ("forward hook in front",
        "HANDLES$n.append(model.linear.register_forward_hook(lambda m, i, o: o + SCALE$n, prepend=True))"),
    ("pre-hook", "HANDLES$n.append(model.linear.register_forward_pre_hook(lambda m, i: (i[0] * SCALE$n,)))"),
    ("backward hook", "HANDLES$n.append(model.linear.register_full_backward_hook(lambda m, i, o: tuple(g if g is "
        "None else g * SCALE$n for g in i)))"),
    ("backward pre-hook",
        "HANDLES$n.append(model.linear.register_full_backward_pre_hook(lambda m, o: tuple(g * SCALE$n for g in o)))"),
    ("hook that only looks",
        "HANDLES$n.append(model.linear.register_forward_hook(lambda m, i, o: SEEN$n.append(tuple(o.shape))))"),
    ("backward hook that only looks",
        "HANDLES$n.append(model.linear.register_full_backward_hook(lambda m, i, o: SEEN$n.append(o[0].shape[0])))"),
    _REMOVE, _READ,
)  # fmt: skip
_OWN = (
    ("forward hook", "HANDLES$n.append(model.register_forward_hook(lambda m, i, o: times(o, SCALE$n)))"), ("pre-hook",
        "HANDLES$n.append(model.register_forward_pre_hook(lambda m, i, k: (i, k), with_kwargs=True))"),
    ("hook that only looks", "HANDLES$n.append(model.register_forward_hook(lambda m, i, o: SEEN$n.append(len(i))))"),
        ("backward hook", "HANDLES$n.append(model.register_full_backward_hook(lambda m, i, o: SEEN$n.append(1)))"),
    ("always called",
        "HANDLES$n.append(model.register_forward_hook(lambda m, i, o: SEEN$n.append(2), always_call=True))"), _REMOVE,
        _READ,
)  # fmt: skip
_GLOBAL = (
    ("forward hook", "HANDLES$n.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * SCALE$n "
        "if isinstance(m, nn.Linear) else None))"),
    ("pre-hook", "HANDLES$n.append(nn.modules.module.register_module_forward_pre_hook(lambda m, i: (i[0] + SCALE$n,"
        ") if isinstance(m, nn.Linear) else None))"),
    ("backward hook", "HANDLES$n.append(nn.modules.module.register_module_full_backward_hook(lambda m, i, o: "
        "SEEN$n.append(1) if isinstance(m, nn.Linear) else None))"), _REMOVE, _READ,
)  # fmt: skip
_PARAMETER = (
    ("hook", "HANDLES$n.append(model.linear.weight.register_hook(lambda g: g * SCALE$n))"), ("hook that only looks",
        "HANDLES$n.append(model.linear.bias.register_hook(lambda g: SEEN$n.append(g.shape[0])))"),
    ("after accumulation",
        "HANDLES$n.append(model.linear.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(SCALE$n)))"),
        _REMOVE, _READ,
)  # fmt: skip
_RESULT = (_READ, ("off", "SCALE$n = None"))
_G = ("SCALE$n",)

ROWS = [
    Row("hooks: of a layer", "y = self.linear(y)", _LAYER, top=_TOP, globals=_G),
    Row("hooks: of a layer, there before", "y = self.linear(y)", _LAYER, top=_TOP, globals=_G,
        init="HANDLES$n.append(self.linear.register_forward_hook(lambda m, i, o: o * SCALE$n))", watchable=False),
    Row("hooks: a backward hook there before", "y = self.linear(y)", _LAYER, top=_TOP, globals=_G,
        init="HANDLES$n.append(self.linear.register_full_backward_hook(lambda m, i, o: tuple(g if g is None else g "
        "* SCALE$n for g in i)))", watchable=False),
    Row("hooks: a pre-hook there before", "y = self.linear(y)", _LAYER, top=_TOP, globals=_G,
        init="HANDLES$n.append(self.linear.register_forward_pre_hook(lambda m, i: (i[0] + SCALE$n,)))",
        watchable=False),
    Row("hooks: read by the forward", "y = y * (1 + len(self.linear._forward_hooks))", _LAYER, top=_TOP, globals=_G),
    Row("hooks: of the module", "y = y * 2", _OWN, top=_TOP, globals=_G),
    Row("hooks: global", "y = self.linear(y)", _GLOBAL, top=_TOP, globals=_G),
    Row("hooks: of a parameter", "y = self.linear(y)", _PARAMETER, top=_TOP, globals=_G),
    Row("hooks: of a layer outside", "y = OUT$n(y)", (("forward hook",
        "HANDLES$n.append(OUT$n.register_forward_hook(lambda m, i, o: o * SCALE$n))"), ("pre-hook",
        "HANDLES$n.append(OUT$n.register_forward_pre_hook(lambda m, i: (i[0] * SCALE$n,)))"), _REMOVE, _READ),
        top=_TOP + "\nOUT$n = make_layer(5)", globals=_G),
    Row("hooks: of the result",
        "if SCALE$n is not None and y.requires_grad:\n    y = y * 1\n    y.register_hook(lambda g: g * SCALE$n)",
        _RESULT, top=_TOP, globals=_G),
    Row("hooks: of the result, counting",
        "if y.requires_grad:\n    y = y * 1\n    y.register_hook(lambda g: SEEN$n.append(1))", _RESULT, top=_TOP,
        globals=_G, watchable=False),
    Row("autograd function reads a global in forward", "y = Scaled$n.apply(y)", (("rebind", "SCALE$n = $x"),),
        top=_TOP + "\nclass Scaled$n(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        "
        "return y * SCALE$n\n    @staticmethod\n    def backward(ctx, g):\n        return g * 3.0", globals=_G),
    Row("autograd function reads a global in backward", "y = Scaled$n.apply(y)", (("rebind", "SCALE$n = $x"),),
        top=_TOP + "\nclass Scaled$n(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        "
        "return y * 3.0\n    @staticmethod\n    def backward(ctx, g):\n        return g * SCALE$n", globals=_G),
    Row("autograd function counts in backward", "y = Scaled$n.apply(y)", (("method",
        "Scaled$n.backward = staticmethod(lambda ctx, g: g * $x)"),), top=_TOP + "\nclass "
        "Scaled$n(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        return y * 3.0\n   "
        " @staticmethod\n    def backward(ctx, g):\n        SEEN$n.append(1)\n        return g", globals=_G,
        watchable=False),
    Row("autograd function replaced", "y = Scaled$n.apply(y)", (("forward",
        "Scaled$n.forward = staticmethod(lambda ctx, y: y * $x)"), ("backward",
        "Scaled$n.backward = staticmethod(lambda ctx, g: g * $x)"), ("class", "Scaled$n = function_of($x)")),
        top="class Scaled$n(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        return y "
        "* 3.0\n    @staticmethod\n    def backward(ctx, g):\n        return g * 2.0", globals=("Scaled$n",)),
    Row("checkpoint reads a global again",
        "y = torch.utils.checkpoint.checkpoint(lambda v: torch.tanh(v * SCALE$n), y, use_reentrant=False)", (("rebind",
        "SCALE$n = $x"),), top=_TOP, globals=_G),
    Row("gradient inside", "with torch.enable_grad():\n    $t = x.detach().requires_grad_()\n    $t, = "
        "torch.autograd.grad((self.linear($t) ** 2).sum() * SCALE$n, $t)\ny = y + $t", (("rebind", "SCALE$n = $x"),),
        top=_TOP, globals=_G, watchable=False),
    Row("detached by a global", "y = y + (y.detach() if SCALE$n > 2.5 else y)", (("rebind", "SCALE$n = $x"),), top=_TOP,
        globals=_G),
    Row("weights written between", "y = torch.tanh(self.linear(y))", (("in place",
        "with torch.no_grad():\n    model.linear.weight.mul_($x)"), ("data",
        "model.linear.weight.data = torch.full((4, 4), $x)"), ("freeze", "model.linear.weight.requires_grad_(False)"),
        ("unfreeze", "model.linear.weight.requires_grad_(True)"), ("data in place",
        "model.linear.weight.data.mul_($x)"))),
    Row("views of a weight written between", "y = y * self.linear.weight[1] * self.linear.weight.t()[2]", (("in place",
        "with torch.no_grad():\n    model.linear.weight.mul_($x)"), ("data",
        "model.linear.weight.data = torch.full((4, 4), $x)"), ("data in place",
        "model.linear.weight.data.mul_($x)"))),
    Row("copies of a weight written between",
        "y = y * self.linear.weight.clone()[1] * self.linear.weight.t().contiguous()[2]", (("in place",
        "with torch.no_grad():\n    model.linear.weight.mul_($x)"), ("data in place",
        "model.linear.weight.data.mul_($x)"))),
    Row("a norm's weights written between", "y = self.linear(torch.relu(self.norm$n(y)))", (("in place",
        "with torch.no_grad():\n    model.norm$n.weight.mul_($x)"), ("data in place",
        "model.norm$n.weight.data.mul_($x)\nmodel.norm$n.bias.data.add_($x)"), ("freeze",
        "model.norm$n.requires_grad_(False)")), init="self.norm$n = nn.LayerNorm(4)"),
    Row("a region's weights written between",
        "y = torch.utils.checkpoint.checkpoint(lambda v: torch.tanh(v + self.shift$n * self.linear.weight[1]), y, "
        "use_reentrant=False)", (("in place", "with torch.no_grad():\n    model.shift$n.mul_($x)"), ("the weight",
        "with torch.no_grad():\n    model.linear.weight.mul_($x)")),
        init="self.shift$n = nn.Parameter(torch.ones(4))"),
    Row("views of two equal values", "$o = [(y * SCALE$n)[0], (y * SCALE$n)[0], (y * SCALE$n).t()]",
        (("rebind", "SCALE$n = $x"),), top=_TOP, globals=_G),
    Row("a custom function that holds a tensor",
        "y = Held$n.apply(y, [SCALE$n], types.SimpleNamespace(t=y.detach().mean() * SCALE$n))",
        (("rebind", "SCALE$n = $x"),),
        top=_TOP + "\n\nclass Held$n(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, a, rest, box):\n        ctx.box = box\n        return a * rest[0]\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        return g * ctx.box.t, None, None", globals=_G, watchable=False),
    Row("a class that the forward makes", "$o = [type('C', (), {'k': SCALE$n})]",
        (("rebind", "SCALE$n = $x"),), top=_TOP, globals=_G, watchable=False),
    Row("a view of an outside tensor written between", "y = y * OUT$n[1:2].expand(4) * OUT$n.reshape(2, 2)[1, 0]",
        (("in place", "with torch.no_grad():\n    OUT$n.mul_($x)"), ("another", "OUT$n = torch.full((4,), $x)")),
        top="OUT$n = torch.full((4,), 2.0, requires_grad=True)", globals=("OUT$n",)),
    Row("an outside tensor written between", "y = y * OUT$n", (("in place",
        "with torch.no_grad():\n    OUT$n.mul_($x)"), ("data", "OUT$n.data = torch.full((4,), $x)"), ("freeze",
        "OUT$n.requires_grad_(False)"), ("unfreeze", "OUT$n.requires_grad_(True)"), ("another",
        "OUT$n = torch.full((4,), $x)")), top="OUT$n = torch.full((4,), 2.0, requires_grad=True)", globals=("OUT$n",)),
    Row("parametrized later", "y = self.linear(y)", (("parametrize",
        "torch.nn.utils.parametrize.register_parametrization(model.linear, 'weight', nn.Tanh())"), ("remove",
        "torch.nn.utils.parametrize.remove_parametrizations(model.linear, 'weight')"), ("weight norm",
        "torch.nn.utils.parametrizations.weight_norm(model.linear)"))),
    Row("pruned later", "y = self.linear(y)", (("prune",
        "torch.nn.utils.prune.l1_unstructured(model.linear, 'weight', 0.5)"), ("remove",
        "torch.nn.utils.prune.remove(model.linear, 'weight')"))),
]  # fmt: skip
