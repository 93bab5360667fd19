"""Never stale: what is read by a name that the code does not spell out, or by functions in C, or that was not there."""

import builtins
import copy
import dataclasses
import functools
import importlib
import math
import operator
import string
import time
import types
import warnings
from dataclasses import asdict
from operator import attrgetter

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.worlds import simple, stay_equal
from wayfare import nn
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

PARTS, LAYERS = ["b", "c", "k"], ["sub", "scale"]
name, act, fetch, look = "lr", "relu", getattr, vars


def module(**values):
    made = types.ModuleType("cfg")
    made.__dict__.update(values)
    return made


def thing(**values):
    made = type("Thing", (), {})()
    made.__dict__.update(values)
    return made


def function(**values):
    def made(x):
        return x

    made.__dict__.update(values)
    return made


def cfg():
    return module(lr=2.0)


def nested():
    return thing(b=thing(c=thing(k=2.0), k=2.0))


def change_nested(v):
    v.b.c.k = v.b.k = 7.0


def lr(v):
    v.lr = 7.0


def net():
    made = nn.Module()
    made.sub = nn.Module()
    made.sub.scale = 2.0
    return made


class Stepper(wf.optim.SGD):
    k = 2.0


def optimizer():
    return Stepper([nn.Parameter(wf.ones(1))], lr=2.0)


def shadowed(v):
    v.k = 7.0


def rate(v):
    v.param_groups[0]["lr"] = 7.0


@dataclasses.dataclass
class Config:
    lr: float = 2.0


class Slotted:
    __slots__ = ("lr",)

    def __init__(self):
        self.lr = 2.0


slot = Slotted.__dict__["lr"].__get__


# What is seen, how it is used, and what changes. These are replayed: everything they may read is guarded.
REPLAYED = {
    "a module's": (cfg, lambda v, x: x * getattr(v, name), [lr]),
    "a module's, getattr by another name": (cfg, lambda v, x: x * fetch(v, name), [lr]),
    "a module's, asked for": (cfg, lambda v, x: x * 2 if hasattr(v, name) else x, [lambda v: delattr(v, name)]),
    "a module's with a default": (module, lambda v, x: x * getattr(v, name, 3.0), [lr, lambda v: delattr(v, name)]),
    "a module's with a default, spelt out": (module, lambda v, x: x * getattr(v, "lr", 3.0),
                                             [lr, lambda v: delattr(v, name)]),
    "a class of a module": (lambda: module(lr=type("Lr", (), {"k": 2.0})), lambda v, x: x * getattr(v, name).k,
                            [lambda v: setattr(v.lr, "k", 7.0)]),
    "vars of a module": (cfg, lambda v, x: x * vars(v)[name], [lr]),
    "vars by another name": (cfg, lambda v, x: x * look(v)[name], [lr]),
    "attrgetter of a module": (cfg, lambda v, x: x * operator.attrgetter(name)(v), [lr]),
    "attrgetter, imported": (cfg, lambda v, x: x * attrgetter(name)(v), [lr]),
    "dir of a module": (cfg, lambda v, x: x * len(dir(v)), [lambda v: setattr(v, "more", 1)]),
    "names in a module": (lambda: module(sub=cfg()), lambda v, x: x * getattr(getattr(v, "su" + "b"), name),
                          [lambda v: lr(v.sub)]),
    "reduce over an object": (nested, lambda v, x: x * functools.reduce(getattr, PARTS, v),
                              [change_nested]),
    "reduce over modules of layers": (net, lambda v, x: x * functools.reduce(getattr, LAYERS, v),
                                      [lambda v: setattr(v.sub, "scale", 7.0)]),
    "partial of getattr": (lambda: thing(k=2.0), lambda v, x: x * functools.partial(getattr, v)("k"),
                           [lambda v: setattr(v, "k", 7.0)]),
    "map of getattr": (lambda: thing(k=2.0), lambda v, x: x * sum(map(getattr, [v], ["k"])),
                       [lambda v: setattr(v, "k", 7.0)]),
    "default of getattr": (lambda: thing(a=2.0), lambda v, x: x * getattr(v, "a".strip(), "b") * 1.0,
                           [lambda v: setattr(v, "a", 7.0)]),
    "format with fields": (nested, lambda v, x: x * float("{0.b.k}".format(v)), [change_nested]),  # noqa: UP030, UP032
    "format by the class": (nested, lambda v, x: x * float(str.format("{0.b.k}", v)), [change_nested]),
    "format_map": (nested, lambda v, x: x * float("{v.b.k}".format_map({"v": v})), [change_nested]),
    "format, computed": (nested, lambda v, x: x * float("".join(["{0.b", ".k}"]).format(v)), [change_nested]),
    "format, nested": (nested, lambda v, x: x * len("{1:{0.b.k}}".format(v, "a")),
                       [lambda v: setattr(v.b, "k", 7.0)]),
    "format, one of two": (nested, lambda v, x: x * float(("{0.b.k}" if act else "{0}").format(v)), [change_nested]),
    "getattr, one of two": (nested, lambda v, x: x * getattr(v.b, "k" if act else "c"), [change_nested]),
    "getattr of one of two": (nested, lambda v, x: x * (v.b if act else v).k, [change_nested]),
    "getattr in a comprehension": (nested, lambda v, x: x * sum([getattr(v.b, n) for n in ("k", "k")]),
                                   [change_nested]),
    "getattr of a call": (nested, lambda v, x: x * getattr(vars(v).get("b", v), "k", 1.0), [change_nested]),
    "getattr in getattr": (nested, lambda v, x: x * getattr(getattr(v, "b"), "k"), [change_nested]),  # noqa: B009
    "Formatter": (nested, lambda v, x: x * float(string.Formatter().format("{0.b.k}", v)), [change_nested]),
    "a function's": (lambda: function(lr=2.0), lambda v, x: x * getattr(v, name), [lr]),
    "attributes of a function": (function, lambda v, x: x * len(v.__dict__), [lr]),
    "a function's, not there at first": (function, lambda v, x: x * 3 if hasattr(v, "sum") else x,
                                         [lambda v: setattr(v, "sum", 1)]),
    "a function's, all replaced": (lambda: function(lr=2.0), lambda v, x: x * v.lr,
                                   [lambda v: setattr(v, "__dict__", {"lr": 7.0})]),
    "a partial's": (lambda: functools.partial(function()), lambda v, x: x * getattr(v, "k", 3.0),
                    [lambda v: setattr(v, "k", 7.0), lambda v: setattr(v, "k", 8.0)]),
    "a partial's, there": (lambda: shaped(functools.partial(function())), lambda v, x: x * v.k, [shadowed]),
    "a partial's by a computed name": (lambda: shaped(functools.partial(function())),
                                       lambda v, x: x * getattr(v, "k".strip()), [shadowed]),
    "an optimiser's": (optimizer, lambda v, x: x * getattr(v, "k".strip()), [shadowed]),
    "an optimiser's of its class": (optimizer, lambda v, x: x * v.k, [shadowed]),
    "a class of an optimiser": (lambda: type("Own", (Stepper,), {"k": 3.0})([nn.Parameter(wf.ones(1))]),
                                lambda v, x: x * v.k, [lambda v: setattr(type(v), "k", 7.0)]),
    "an object's slot": (Slotted, lambda v, x: x * slot(v), [lr]),
}  # fmt: skip


def shaped(v):
    v.k = 2.0
    return v


@pytest.mark.parametrize("case", REPLAYED)
def test_read_by_a_name_that_is_not_spelt_out(case):
    make_value, use, changes = REPLAYED[case]

    def make(way):
        value = make_value()
        return simple(way(lambda x: use(value, x)), *[lambda change=change: change(value) for change in changes])

    stay_equal(make)


# These may run as plain Python.
PYTHON = {
    "an optimiser's numbers": (optimizer, lambda v, x: x * getattr(v, "param_groups".strip())[0]["lr"], [rate]),
    "vars of an optimiser": (optimizer, lambda v, x: x * vars(v)["param_groups"][0]["lr"], [rate]),
    "asdict, imported": (Config, lambda v, x: x * asdict(v)[name], [lr]),
    "copy": (lambda: thing(lr=2.0), lambda v, x: x * sum(copy.copy(v).__dict__.values()), [lr]),
    "names of an object": (lambda: thing(lr=2.0), lambda v, x: x * len(v.__dir__()), [shadowed]),
    "dictionary of an optimiser": (optimizer, lambda v, x: x * v.__dict__["param_groups"][0]["lr"], [rate]),
}  # fmt: skip


@pytest.mark.parametrize("case", PYTHON)
def test_read_past_what_is_noticed(case):
    make_value, use, changes = PYTHON[case]

    def make(way):
        value = make_value()
        return simple(way(lambda x: use(value, x)), *[lambda change=change: change(value) for change in changes])

    stay_equal(make, python=True)


# A method taken outside, from what changes later.
METHODS = {
    "length of a list": (lambda: [1], "__len__", lambda m, x: x * m(), lambda v: v.append(2)),
    "length of a dictionary": (lambda: {1: 1}, "__len__", lambda m, x: x * m(), lambda v: v.update({2: 2})),
    "length of a set": (lambda: {1}, "__len__", lambda m, x: x * m(), lambda v: v.add(2)),
    "in a list": (lambda: [1], "__contains__", lambda m, x: x * m(2), lambda v: v.append(2)),
    "equal to a list": (lambda: [1], "__eq__", lambda m, x: x * m([1, 2]), lambda v: v.append(2)),
    "list and more": (lambda: [1], "__add__", lambda m, x: x * sum(m([1])), lambda v: v.append(2)),
    "a list's elements": (lambda: [1], "__iter__", lambda m, x: x * sum(m()), lambda v: v.append(2)),
    "item of a list": (lambda: [1], "__getitem__", lambda m, x: x * m(0), lambda v: v.__setitem__(0, 2)),
    "an object's": (lambda: thing(k=2.0), "__getattribute__", lambda m, x: x * m("k"), shadowed),
    "a module's": (lambda: module(k=2.0), "__getattribute__", lambda m, x: x * m("k"), shadowed),
    "text of a list": (lambda: [1], "__repr__", lambda m, x: x * len(m()), lambda v: v.append(2)),
}  # fmt: skip


@pytest.mark.parametrize("case", METHODS)
def test_a_method_taken_outside(case):
    make_value, method, use, change = METHODS[case]

    def make(way):
        value = make_value()
        taken = getattr(value, method)
        return simple(way(lambda x: use(taken, x)), lambda: change(value))

    stay_equal(make)


@pytest.mark.parametrize("taken", [object.__getattribute__, getattr, types.ModuleType.__getattribute__])
def test_a_way_to_all_attributes_taken_outside(taken):
    def make(way):
        value = module(k=2.0)
        return simple(way(lambda x: x * taken(value, "k")), lambda: shadowed(value))

    stay_equal(make)


def test_text_taken_outside():
    def make(way):
        value = nested()
        taken = "{0.b.k}".format
        return simple(way(lambda x: x * float(taken(value))), lambda: change_nested(value))

    stay_equal(make)


USES = {
    "computed": lambda x: getattr(F, act)(x),
    "as a value": lambda x: (lambda lib: lib.relu(x))(F),
    "of a package": lambda x: getattr(wf, act)(x),
    "in a package": lambda x: getattr(wf.nn.functional, act)(x),
}  # fmt: skip


@pytest.mark.parametrize("case", USES)
def test_a_function_of_ours_that_is_replaced(case, monkeypatch):
    def make(way):
        return simple(way(USES[case]), lambda: replace(7.0), lambda: replace(3.0))

    def replace(k):
        monkeypatch.setattr(wf if case == "of a package" else F, "relu", lambda x: x * k)

    stay_equal(make)


def test_a_name_missing_everywhere_that_becomes_a_builtin(monkeypatch):
    def use(x):
        try:
            return x * factor_for_all
        except NameError:
            return x

    def make(way):
        return simple(way(use), lambda: monkeypatch.setattr(builtins, "factor_for_all", 7.0, raising=False))

    stay_equal(make)


@pytest.mark.parametrize("function", [
    lambda x: x * getattr(cfg_of_constants, "lr"),  # noqa: B009
    lambda x: x * getattr(cfg_of_constants, name),
    lambda x: getattr(F, act)(x) + getattr(x, sine)(),
    lambda x: getattr(wf, act)(x) + getattr(x, sine)(),
    lambda x: getattr(helpers, twice)(x) + getattr(x, sine)(),
    lambda x: x * getattr(np, root)(4.0) + getattr(math, root)(4.0),
    lambda x: x * len("{} and {:.2f}".format("a", 2.0)),
    lambda x: getattr(wf, "sin", None)(x),
])  # fmt: skip
def test_what_is_common_is_replayed(function):
    stay_equal(lambda way: simple(way(function)))


cfg_of_constants = module(lr=2.0)
sine, twice, root = "sin", "twice", "sqrt"
helpers = module(time=time, wf=wf, np=np, twice=lambda x: x * 2, now=lambda x: x * time.time())


@pytest.mark.filterwarnings("ignore:compile")
def test_what_cannot_be_guarded_is_noticed_when_it_is_called(monkeypatch):
    """A module may hold what cannot be guarded, as long as nobody uses it."""
    monkeypatch.setattr(time, "time", iter(range(100)).__next__)
    f = wf.compile(lambda x: getattr(helpers, "now".strip())(x))
    assert [f(wf.ones(1)).item() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_parts_of_the_library_that_others_have_loaded_do_not_matter():
    importlib.import_module("wayfare.cli.demo.corpus")
    function = wf.compile(lambda x: getattr(wf, act)(x) + getattr(x, sine)(), check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            function(wf.ones(2))
    assert function.explain().data["replayed"]
