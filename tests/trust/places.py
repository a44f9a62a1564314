"""Where a value lives: attributes, globals, cells, defaults, class members, what a helper keeps for itself.

A place is a name that holds a value,
    with the ways to bind it anew. What wraps the value there is containers.py's. `$v` is
the value at the start, `$w` the one that a change sets. Changes run as functions of the module, `model`; the program's
second file is `lib`.
"""

from __future__ import annotations

import dataclasses

__all__ = ["PLACES", "Place", "Step"]

# How one object leads to the next: ("attr", name) of something with a __dict__, ("slot", name) of something without,

# ("key", expression), ("index", number), ("call", ""), ("only", "") of a set with one element, ("super", name) of
# super(), ("absent", name) for an attribute that is not there at first; containers add ("item", expression) of what is
# no mapping, and ("iter", "").
Step = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Place:
    """A place.

    Attributes:
        base, steps: how the forward gets there; other: whole expressions that do as well.
        outside: how a change gets there, where that differs.
        assign: (label, statement) that bind it anew to $w; delete: that unbind it; further: other changes.
        top, lib, parent, body, init, parameter: what it adds to the program, its library, the base class, the class,
            the constructor, the forward's parameters; prelude: what the forward does before it reads.
        globals: names that a statement has to declare.
        only: the kinds of values that it can hold (all of them if empty); bare: whether it can hold no container.
        leaves: whether the forward itself may assign to it.
    """

    name: str
    base: str
    steps: tuple[Step, ...] = ()
    assign: tuple[tuple[str, str], ...] = ()
    delete: tuple[tuple[str, str], ...] = ()
    further: tuple[tuple[str, str], ...] = ()
    outside: str = ""
    other: tuple[str, ...] = ()
    top: str = ""
    lib: str = ""
    parent: str = ""
    body: str = ""
    init: str = ""
    parameter: str = ""
    prelude: str = ""
    globals: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    bare: bool = False
    leaves: bool = True
    watchable: bool = True


def _set(statement: str, label: str = "rebind") -> tuple[tuple[str, str], ...]:
    return ((label, statement),)


NUMBERS = ("float", "int", "equal number", "zero", "flag", "string", "None", "flag or number", "nan", "tuple")
_FUNCTION = "def get$n():\n    return $v\n"
_AGAIN = "def get$n():\n    return $w"

PLACES = [
    Place("module attribute", "self", (("attr", "s$n"),), _set("model.s$n = $w"), _set("del model.s$n", "delete"),
        init="self.s$n = $v",
          further=(("class attribute behind", "type(model).s$n = $w\ndel model.s$n"), ("property over",
              "type(model).s$n = property(lambda self: $w)"))),
    Place("absent module attribute", "self", (("absent", "s$n"),), (("add", "model.s$n = $w"), ("add to the class",
        "type(model).s$n = $w"), ("add to nn.Module", "nn.Module.s$n = $w")), _set("model.__dict__.pop('s$n', None)",
        "delete")),
    Place("attribute of a sub-module", "self.linear", (("attr", "s$n"),), _set("model.linear.s$n = $w"),
        _set("del model.linear.s$n", "delete"), outside="model.linear.s$n", init="self.linear.s$n = $v",
          further=(("sub-module replaced", "model.linear = nn.Linear(4, 4)\nmodel.linear.s$n = $w"),)),
    Place("attribute of a module in a ModuleList", "self.many$n[0]", (("attr", "s$n"),),
        _set("model.many$n[0].s$n = $w"), outside="model.many$n[0].s$n", init="self.many$n = "
        "nn.ModuleList([nn.Identity(), nn.Identity()])\nself.many$n[0].s$n = $v\nself.many$n[1].s$n = $d",
          further=(("order of modules", "model.many$n = nn.ModuleList([model.many$n[1], model.many$n[0]])"), ("insert",
              "model.many$n.insert(0, nn.Identity())\nmodel.many$n[0].s$n = $w"))),
    Place("attribute of a module in a plain list", "self.tools$n[0]", (("attr", "s$n"),),
        _set("model.tools$n[0].s$n = $w"), _set("del model.tools$n[0].s$n", "delete"), outside="model.tools$n[0].s$n",
        init="self.tools$n = [nn.Tanh()]\nself.tools$n[0].s$n = $v"),
    Place("attribute of a global module", "TOOL$n", (("attr", "s$n"),), _set("TOOL$n.s$n = $w"), outside="TOOL$n.s$n",
        top="TOOL$n = nn.Tanh()\nTOOL$n.s$n = $v"),
    Place("global", "S$n", (), _set("S$n = $w"), _set("globals().pop('S$n', None)", "delete"), top="S$n = $v",
        globals=("S$n",), other=("globals()['S$n']", "sys.modules[__name__].S$n", "globals().get('S$n', $d)",
        "vars(sys.modules[__name__])['S$n']", "eval('S$n')", "globals()['S' + str($n)]", "scope_of()['S' + str($n)]",
        "getattr(sys.modules[__name__], 'S' + str($n))", "eval('S' + str($n))",
        "[v for k, v in globals().items() if k == 'S' + str($n)][0]", "ident.__globals__['S$n']")),
    Place("absent global", "sys.modules[__name__]", (("absent", "S$n"),), _set("globals()['S$n'] = $w", "add"),
        _set("globals().pop('S$n', None)", "delete"), outside="globals()['S$n']", leaves=False,
        other=("globals().get('S$n', $d)", "globals().get('S' + str($n), $d)", "scope_of().get('S' + str($n), $d)",
        "getattr(sys.modules[__name__], 'S' + str($n), $d)", "vars(sys.modules[__name__]).get('S' + str($n), $d)",
        "(S$n if 'S' + str($n) in globals() else $d)", "ident.__globals__.get('S' + str($n), $d)")),
    Place("absent name in another file", "lib", (("absent", "S$n"),), _set("lib.S$n = $w", "add"),
        _set("lib.__dict__.pop('S$n', None)", "delete"), outside="lib.S$n", leaves=False,
        other=("getattr(lib, 'S' + str($n), $d)", "by_name(lib, 'S' + str($n), $d)", "vars(lib).get('S' + str($n), $d)",
        "(lib.S$n if 'S' + str($n) in dir(lib) else $d)")),
    Place("global of another file", "lib", (("attr", "S$n"),), _set("lib.S$n = $w"), _set("del lib.S$n", "delete"),
        outside="lib.S$n", lib="S$n = $v", other=("importlib.import_module(lib.__name__).S$n",
        "sys.modules[lib.__name__].S$n", "__import__(lib.__name__).S$n"),
          further=(("file replaced", "sys.modules[lib.__name__].__dict__.update(S$n=$w)"), ("reload",
              "lib.again = lambda: $w\nexec(compile('S$n = again()\\n', lib.__file__, 'exec'), lib.__dict__)"))),
    Place("imported name", "S$n", (), _set("S$n = $w"), lib="S$n = $v", top="from $m import S$n", globals=("S$n",),
        further=(("import again", "lib.S$n = $w\nS$n = lib.S$n"),)),
    Place("name imported in the forward", "$t", (), _set("lib.S$n = $w"), outside="lib.S$n", lib="S$n = $v",
        prelude="from $m import S$n as $t"),
    Place("builtins", "S$n", (), (("rebind", "builtins.S$n = $w"), ("shadow", "globals()['S$n'] = $w")),
        _set("del builtins.S$n", "delete"), outside="builtins.S$n", top="builtins.S$n = $v", leaves=False,
        other=("getattr(builtins, 'S' + str($n))", "eval('S' + str($n))", "(S$n, globals)[0]")),
    Place("module __getattr__", "lib.later$n", (), _set("lib.KEPT$n = $w"), outside="lib.KEPT$n",
        lib="KEPT$n = $v\ndef __getattr__(name):\n    if name in globals().get('MISSING', {}):\n        raise "
        "AttributeError(name)\n    if not name.startswith('later'):\n        raise AttributeError(name)\n    return "
        "globals()['KEPT' + name[5:]]", further=(("add", "lib.later$n = $w"),)),
    Place("class attribute", "self", (("slot", "S$n"),), (("rebind", "type(model).S$n = $w"), ("shadow",
        "model.S$n = $w"), ("class", "model.__class__ = type('Other', (type(model),), {'S$n': $w})")),
        _set("del type(model).S$n", "delete"), outside="type(model).S$n", body="S$n = $v"),
    Place("inherited attribute", "self", (("slot", "S$n"),), (("rebind", "Base.S$n = $w"), ("shadow in the class",
        "Net.S$n = $w"), ("shadow", "model.S$n = $w")), _set("del Base.S$n", "delete"), outside="Base.S$n",
        parent="S$n = $v"),
    Place("type(self)", "type(self)", (("attr", "S$n"),), (("rebind", "Net.S$n = $w"), ("class",
        "model.__class__ = type('Other', (type(model),), {'S$n': $w})")), outside="Net.S$n", body="S$n = $v",
        other=("self.__class__.S$n", "type(self).__dict__['S$n']", "type(self).__mro__[0].S$n",
        "getattr(type(self), 'S' + '$n')", "getattr(type(self), 'S' + str($n))", "vars(type(self))['S' + str($n)]")),
    Place("absent class attribute", "type(self)", (("absent", "S$n"),), (("add", "Net.S$n = $w"), ("add to the base",
        "Base.S$n = $w")), outside="Net.S$n", leaves=False, other=("getattr(self, 'S' + str($n), $d)",
        "getattr(type(self), 'S' + str($n), $d)", "by_name(self, 'S' + str($n), $d)",
        "(self.S$n if 'S' + str($n) in dir(self) else $d)",
        "next((vars(c)['S' + str($n)] for c in type(self).__mro__ if 'S' + str($n) in vars(c)), $d)")),
    Place("classmethod", "self.get$n()", (), (("rebind", "Net.S$n = $w"), ("method",
        "Net.get$n = classmethod(lambda cls: $w)"), ("on the instance", "model.get$n = lambda: $w")), outside="Net.S$n",
        body="S$n = $v\n@classmethod\ndef get$n(cls):\n    return cls.S$n"),
    Place("staticmethod", "self.get$n()", (), (("method", "Net.get$n = staticmethod(lambda: $w)"), ("on the instance",
        "model.get$n = lambda: $w")), body="@staticmethod\ndef get$n():\n    return $v", leaves=False,
        outside="Net.get$n()"),
    Place("super()", "super()", (("super", "S$n"),), _set("Base.S$n = $w"), _set("del Base.S$n", "delete"),
        outside="Base.S$n", parent="S$n = $v"),
    Place("super() method", "super().get$n()", (), (("method", "Base.get$n = lambda self: $w"), ("bases",
        "Base.S$n = $w")), outside="Base.S$n", parent="S$n = $v\ndef get$n(self):\n    return self.S$n"),
    Place("super(), behind one's own", "super()", (("super", "S$n"),), _set("Base.S$n = $w"), outside="Base.S$n",
        parent="S$n = $v", body="S$n = None", other=("type(self).__mro__[1].S$n", "Net.__base__.S$n",
        "type(self).__bases__[0].S$n")),
    Place("super() method, overridden", "self.get$n()", (), (("method", "Base.get$n = lambda self: $w"), ("bases",
        "Base.S$n = $w"), ("own", "Net.get$n = lambda self: $w")), outside="Base.S$n",
        parent="S$n = $v\ndef get$n(self):\n    return self.S$n",
        body="def get$n(self):\n    return super().get$n()"),
    Place("property", "self", (("slot", "p$n"),), (("rebind", "model._s$n = $w"), ("property",
        "type(model).p$n = property(lambda self: $w)")), _set("del model._s$n", "delete"), outside="model._s$n",
        init="self._s$n = $v", body="@property\ndef p$n(self):\n    return self._s$n"),
    Place("cached property", "self", (("slot", "p$n"),), (("forget",
        "model._s$n = $w\nmodel.__dict__.pop('p$n', None)"), ("no effect", "model._s$n = $w"), ("over",
        "model.__dict__['p$n'] = $w")), outside="model._s$n", init="self._s$n = $v",
        body="@functools.cached_property\ndef p$n(self):\n    return self._s$n", watchable=False),
    Place("descriptor", "self", (("slot", "p$n"),), (("rebind", "Net.__dict__['p$n'].k = $w"), ("descriptor",
        "Net.p$n = Reader($w)")), outside="Net.__dict__['p$n'].k", body="p$n = Reader($v)"),
    Place("class constant", "C$n", (("attr", "S"),), (("rebind", "C$n.S = $w"), ("class",
        "C$n = type('C$n', (), {'S': $w})")), _set("del C$n.S", "delete"), outside="C$n.S",
        top="class C$n:\n    S = $v", globals=("C$n",)),
    Place("metaclass", "C$n.S", (), (("rebind", "Meta$n.S = $w"), ("shadow", "C$n.S = $w")), outside="Meta$n.S",
        top="class Meta$n(type):\n    S = $v\nclass C$n(metaclass=Meta$n):\n    pass", other=("type(C$n).S",
        "C$n.__class__.S")),
    Place("cell", "get$n()", (), _set("put$n($w)"), outside="get$n()", top="def make$n():\n    s = $v\n    def "
        "get():\n        return s\n    def put(value):\n        nonlocal s\n        s = value\n    return get, put\n"
        "get$n, put$n = make$n()", further=(("another cell", "get$n = make$n()[0]"), ("cell_contents",
        "get$n.__closure__[0].cell_contents = $w"), ("function", "get$n = lambda: $w")), globals=("get$n",),
        other=("(lambda: get$n())()", "[f() for f in (get$n,)][0]")),
    Place("cell of a method", "self.get$n()", (), (("rebind", "Net.get$n.__closure__[0].cell_contents = $w"),
        ("another cell", "Net.get$n = around$n($w)")), outside="Net.get$n.__closure__[0].cell_contents",
        top="def around$n(s):\n    return lambda self: s", body="get$n = around$n($v)"),
    Place("default argument", "get$n()", (), (("rebind", "get$n.__defaults__ = ($w,)"), ("function",
        "get$n = lambda: $w")), outside="get$n.__defaults__[0]", top="def get$n(s=$v):\n    return s",
        globals=("get$n",)),
    Place("keyword default", "get$n()", (), (("rebind", "get$n.__kwdefaults__ = {'s': $w}"), ("in place",
        "get$n.__kwdefaults__['s'] = $w")), outside="get$n.__kwdefaults__['s']",
        top="def get$n(*, s=$v):\n    return s"),
    Place("default of a method", "self.get$n()", (), (("rebind", "Net.get$n.__defaults__ = ($w,)"), ("method",
        "Net.get$n = lambda self: $w")), outside="Net.get$n.__defaults__[0]",
        body="def get$n(self, s=$v):\n    return s"),
    Place("default of the forward", "s$n", (), (("rebind", "set_default(Net.forward, 's$n', $w)"), ("given",
        "GIVEN['s$n'] = $w"), ("not given", "GIVEN.pop('s$n', None)")), outside="get_default(Net.forward, 's$n')",
        parameter="s$n=$v"),
    Place("function attribute", "get$n", (("attr", "s"),), _set("get$n.s = $w"), _set("del get$n.s", "delete"),
        outside="get$n.s", top="def get$n():\n    return get$n.s\nget$n.s = $v", other=("get$n()",)),
    Place("absent function attribute", "get$n", (("absent", "s"),), _set("get$n.s = $w", "add"),
        _set("get$n.__dict__.pop('s', None)", "delete"), outside="get$n.s", top="def get$n():\n    return None"),
    Place("constant of a function", "get$n()", (), (("run again", _AGAIN), ("code",
        "get$n.__code__ = (lambda: $w).__code__"), ("lambda", "get$n = lambda: $w"), ("partial",
        "get$n = functools.partial(ident, $w)"), ("bound method", "get$n = Plain($w).get"), ("object with __call__",
        "get$n = Caller($w)"), ("class", "get$n = type('get$n', (), {'__new__': lambda cls: $w})")), top=_FUNCTION,
        globals=("get$n",), leaves=False, outside="get$n()"),
    Place("constant of a function of another file", "lib.get$n()", (), (("run again",
        "def again():\n    return $w\nlib.get$n = again"), ("code", "lib.get$n.__code__ = (lambda: $w).__code__"),
        ("lambda", "lib.get$n = lambda: $w")), lib=_FUNCTION, leaves=False, outside="lib.get$n()"),
    Place("a helper's helper", "outer$n()", (), (("run again", _AGAIN), ("outer", "outer$n = lambda: $w"), ("code",
        "get$n.__code__ = (lambda: $w).__code__")),
        top=_FUNCTION + "def outer$n():\n    return [get$n() for _ in range(1)][0]", globals=("get$n", "outer$n"),
        leaves=False, outside="get$n()"),
    Place("global of a helper", "get$n()", (), _set("S$n = $w"), top="S$n = $v\ndef get$n():\n    return S$n",
        globals=("S$n",), outside="S$n", other=("(lambda f: f())(get$n)", "next(map(lambda f: f(), [get$n]))")),
    Place("lambda in a dict", "TABLE$n['f']()", (), _set("TABLE$n['f'] = lambda: $w"),
        top="TABLE$n = {'f': lambda: $v}", leaves=False, outside="TABLE$n['f']()", other=("TABLE$n.get('f', int)()",
        "[f() for f in TABLE$n.values()][0]"), further=(("inserted before",
        "old = dict(TABLE$n)\nTABLE$n.clear()\nTABLE$n['a'] = lambda: $w\nTABLE$n.update(old)"),)),
    Place("lambda in a list of the module", "self.steps$n[0]()", (), (("item", "model.steps$n[0] = lambda: $w"),
        ("insert", "model.steps$n.insert(0, lambda: $w)"), ("code",
        "model.steps$n[0].__code__ = (lambda: $w).__code__")), init="self.steps$n = [lambda: $v]", leaves=False,
        outside="model.steps$n[0]()"),
    Place("partial", "get$n()", (), (("rebind", "get$n = functools.partial(ident, $w)"), ("keywords",
        "get$n = functools.partial(ident, v=$w)"), ("in place", "get$n.__setstate__((ident, ($w,), {}, {}))")),
        outside="get$n.args[0]", top="get$n = functools.partial(ident, $v)", globals=("get$n",)),
    Place("keywords of a partial", "get$n()", (), _set("get$n.keywords['v'] = $w"), outside="get$n.keywords['v']",
        top="get$n = functools.partial(ident, v=$v)"),
    Place("bound method", "get$n()", (), (("rebind", "holder$n.k = $w"), ("method", "Plain.get = lambda self: $w"),
        ("another object", "get$n = Plain($w).get")), outside="holder$n.k",
        top="holder$n = Plain($v)\nget$n = holder$n.get", globals=("get$n",)),
    Place("bound method on the module", "self.get$n()", (), (("rebind", "model.get$n.__self__.k = $w"),
        ("another object", "model.get$n = Plain($w).get")), outside="model.get$n.__self__.k",
        init="self.get$n = Plain($v).get"),
    Place("__call__ of an object", "call$n()", (), (("rebind", "call$n.k = $w"), ("__call__",
        "Caller.__call__ = lambda self: $w"), ("on the instance", "call$n.__call__ = lambda: $w"), ("object",
        "call$n = Caller($w)")), outside="call$n.k", top="call$n = Caller($v)", globals=("call$n",)),
    Place("__call__ of an attribute", "self.call$n()", (), (("rebind", "model.call$n.k = $w"), ("__call__",
        "type(model.call$n).__call__ = lambda self: $w")), outside="model.call$n.k", init="self.call$n = Caller($v)"),
    Place("method", "self.get$n()", (), (("class", "type(model).get$n = lambda self: $w"), ("instance",
        "model.get$n = types.MethodType(lambda self: $w, model)"), ("function on the instance",
        "model.get$n = lambda: $w"), ("code", "type(model).get$n.__code__ = (lambda self: $w).__code__"), ("__class__",
        "model.__class__ = type('Other', (type(model),), {'get$n': lambda self: $w})")),
        _set("model.__dict__.pop('get$n', None)", "delete"), body="def get$n(self):\n    return $v", leaves=False,
        outside="model.get$n()"),
    Place("method patched on the instance", "self.get$n()", (), (("instance", "model.get$n = lambda: $w"), ("class",
        "type(model).get$n = lambda self: $w")), _set("model.__dict__.pop('get$n', None)", "delete"),
        body="def get$n(self):\n    return $d", init="self.get$n = lambda: $v", leaves=False, outside="model.get$n()"),
    Place("decorated method", "self.get$n()", (), (("rebind", "model.s$n = $w"), ("wrapped",
        "type(model).get$n.__wrapped__.__code__ = (lambda self: $w).__code__"), ("decorator",
        "type(model).get$n = decorated(lambda self: $w)")), outside="model.s$n", init="self.s$n = $v",
        body="@decorated\ndef get$n(self):\n    return self.s$n"),
    Place("singledispatch", "get$n(x)", (), (("register", "get$n.register(torch.Tensor)(lambda x: $w)"), ("rebind",
        "S$n = $w")), outside="S$n", top="S$n = $v\n@functools.singledispatch\ndef get$n(x):\n    return S$n",
        globals=("S$n",), watchable=False),
    Place("lru_cache", "get$n()", (), (("cleared", "S$n = $w\nget$n.cache_clear()"), ("not cleared", "S$n = $w")),
        outside="S$n", top="S$n = $v\n@functools.lru_cache(maxsize=None)\ndef get$n():\n    return S$n",
        globals=("S$n",), watchable=False),
    Place("lru_cache of tensors", "get$n()", (), (("cleared", "S$n = $w\nget$n.cache_clear()"), ("not cleared",
        "S$n = $w"), ("asked", "S$n = $w\nget$n.cache_clear()\nget$n()")), outside="S$n",
        top="S$n = $v\n@functools.lru_cache\ndef get$n():\n    return torch.full((), S$n)", globals=("S$n",),
        watchable=False, only=("float",), bare=True),
    Place("name of a class", "float(Named$n.__name__[1:])", (), (("rebind", "Named$n.__name__ = 'v' + str($w)"),),
        top="Named$n = type('v' + str($v), (), {})", outside="float(Named$n.__name__[1:])", only=("float",), bare=True,
        leaves=False),
    Place("context variable", "VARIABLE$n.get()", (), _set("VARIABLE$n.set($w)"),
        top="VARIABLE$n = contextvars.ContextVar('variable$n', default=$v)", outside="VARIABLE$n.get()",
        other=("VARIABLE$n.get($d)", "contextvars.copy_context().get(VARIABLE$n, $d)"), further=(("set before",
        "VARIABLE$n.set($v)"),)),
    Place("thread local", "LOCAL$n", (("attr", "s"),), _set("LOCAL$n.s = $w"), _set("del LOCAL$n.s", "delete"),
        outside="LOCAL$n.s", top="LOCAL$n = threading.local()\nLOCAL$n.s = $v", further=(("in another thread",
        "in_thread(lambda: setattr(LOCAL$n, 's', $w))"),)),
    Place("environment", "os.environ['TRUST_$n']", (), _set("os.environ['TRUST_$n'] = str($w)"),
        _set("os.environ.pop('TRUST_$n', None)", "delete"), top="os.environ['TRUST_$n'] = str($v)",
        outside="os.environ['TRUST_$n']", other=("os.environ.get('TRUST_$n', $d)", "os.getenv('TRUST_$n')",
        "os.getenv('TRUST_$n', $d)"), only=("string",), bare=True),
    Place("environment, a number", "float(os.environ['TRUST_$n'])", (), _set("os.environ['TRUST_$n'] = str($w)"),
        top="os.environ['TRUST_$n'] = str($v)", outside="float(os.environ['TRUST_$n'])",
        other=("float(os.environ.get('TRUST_$n', $d))", "float(os.getenv('TRUST_$n'))"), only=("float",), bare=True),
    Place("weak reference", "WEAK$n()", (("attr", "k"),), (("rebind", "KEPT$n.k = $w"), ("object",
        "KEPT$n = Plain($w)\nWEAK$n = weakref.ref(KEPT$n)")), outside="KEPT$n.k",
        top="KEPT$n = Plain($v)\nWEAK$n = weakref.ref(KEPT$n)", globals=("KEPT$n", "WEAK$n")),
    Place("argument", "s$n", (), _set("GIVEN['s$n'] = $w"), outside="GIVEN['s$n']", parameter="s$n",
        top="GIVEN['s$n'] = $v", leaves=False),
    Place("keyword argument", "kwargs['s$n']", (), (("rebind", "GIVEN['s$n'] = $w"), ("order",
        "GIVEN['s$n'] = GIVEN.pop('s$n')")), _set("GIVEN.pop('s$n', None)", "delete"), outside="GIVEN['s$n']",
        parameter="**kwargs", top="GIVEN['s$n'] = $v", other=("kwargs.get('s$n', $d)",
        "[v for k, v in kwargs.items() if k == 's$n'][0]", "kwargs.setdefault('s$n', $d)"), leaves=False),
    Place("attribute of an argument", "s$n", (("attr", "k"),), (("rebind", "GIVEN['s$n'] = Plain($w)"), ("in place",
        "GIVEN['s$n'].k = $w")), outside="GIVEN['s$n'].k", parameter="s$n", top="GIVEN['s$n'] = Plain($v)",
        leaves=False),
    Place("attribute of the tensor argument", "x", (("attr", "k$n"),), _set("ON_X['k$n'] = $w"), outside="ON_X['k$n']",
        top="ON_X['k$n'] = $v", bare=True, leaves=False, other=("x.k$n", "getattr(x, 'k$n', $d)"), watchable=False),
    Place("attribute of a parameter", "self.linear.weight", (("attr", "k$n"),), _set("model.linear.weight.k$n = $w"),
        _set("del model.linear.weight.k$n", "delete"), outside="model.linear.weight.k$n",
        init="self.linear.weight.k$n = $v"),
    Place("an alias of a global", "self.s$n", (), _set("SHARED$n = model.s$n = $w"), outside="SHARED$n",
        top="SHARED$n = $v", init="self.s$n = SHARED$n", globals=("SHARED$n",), further=(("the global alone",
        "SHARED$n = $w"),)),
    Place("module's own __getattr__", "self.later$n", (),
        _set("model.__dict__['kept'] = {**model.__dict__.get('kept', {}), 'later$n': $w}"),
        outside="model.__dict__['kept']['later$n']", init="self.__dict__.setdefault('kept', {})['later$n'] = $v",
        body="def __getattr__(self, name):\n    kept = self.__dict__.get('kept', {})\n    return kept[name] if name "
        "in kept else super().__getattr__(name)", further=(("in place", "model.kept['later$n'] = $w"),)),
    Place("module-level cache", "(CACHE.get('k$n') or CACHE.setdefault('k$n', $v))", (), _set("CACHE['k$n'] = $w"),
        _set("CACHE.pop('k$n', None)", "delete"), outside="CACHE['k$n']", leaves=False, watchable=False),
    Place("closure over the module", "self.use$n()", (), _set("model.s$n = $w"), outside="model.s$n",
        init="self.s$n = $v\nself.use$n = lambda: self.s$n", further=(("another closure",
        "model.use$n = lambda: $w"),)),
    Place("config of the module", "self.config", (("attr", "s$n"),), _set("model.config.s$n = $w"),
        _set("del model.config.s$n", "delete"), outside="model.config.s$n",
        init="self.config = getattr(self, 'config', types.SimpleNamespace())\nself.config.s$n = $v",
        further=(("config replaced", "model.config = types.SimpleNamespace(**{**vars(model.config), 's$n': $w})"),
        ("copy", "model.config = copy.deepcopy(model.config)"))),
    Place("absent entry of a config", "self.config", (("absent", "s$n"),), _set("model.config.s$n = $w", "add"),
        outside="model.config.s$n", init="self.config = getattr(self, 'config', types.SimpleNamespace())"),
    Place("parameter group of another module", "OTHER$n.config", (("attr", "s"),), _set("OTHER$n.config.s = $w"),
        outside="OTHER$n.config.s", top="OTHER$n = nn.Linear(2, 2)\nOTHER$n.config = types.SimpleNamespace(s=$v)"),
    Place("enum member's attribute", "Mode.A", (("attr", "s$n"),), _set("Mode.A.s$n = $w"), outside="Mode.A.s$n",
        top="Mode.A.s$n = $v"),
    Place("local of a generator", "next(source$n)", (), _set("source$n = produce$n($w)"),
        top="def produce$n(s):\n    while True:\n        yield s\nsource$n = produce$n($v)",
        outside="source$n.gi_frame.f_locals['s']", globals=("source$n",), leaves=False, watchable=False),
]  # fmt: skip
