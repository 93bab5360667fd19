"""Cases, and how they are run: the same world twice, once plain and once through `wf.compile`, compared at each call.

A case is the text of a small module. It makes a world of its own (tensors, modules, optimisers, lists, …) and a
function `f` marked by `@way`. `args` are the arguments of call number `k`; a change is done to the world from outside.
What plain Python makes of it is the only judge:

    case("row copied", '''
    t = num(4, 3)
    @way
    def f(row, x):
        return row.copy_(x)
    ''', "t.add_(1)", args="t[k % 4], num(3, seed=k)")

A change is a text, done before call 2, 3, 5 or 9, each in a run of its own; a tuple of texts is done one by one at
every second call from there; a text that starts with "each:" is done before every call. `after` is what is done with
the result `r` of a call; by default its gradients are asked for. `call`, if the world defines it, makes call `k`
itself, and `look()` gives more to compare. Names that start with two underscores are not compared.
"""

import contextlib
import linecache
import math
import os
import random
import re
import signal
import sys
import textwrap
import types
import warnings

import numpy as np

import wayfare as wf
from tests.compiler.hostile.describe import Description, difference, head
from wayfare import nn
from wayfare.core.mode import set_mode
from wayfare.nn import functional as F

WORLD = "hostile_world"
# When a change is made. Each case has two of these moments, by turns; all of them where there is time.
MOMENTS = (2, 3, 5, 9)
EVERY_MOMENT = bool(os.environ.get("HOSTILE_EVERY_MOMENT"))
CALLS = 12
CASES = {}


class Wrong(AssertionError):
    """The compiled world is not like the plain one."""


class BadCase(AssertionError):
    """The case itself is wrong: plain Python raises, and the case does not say so."""


class Case:
    """One function and one change; `fails` says that plain Python raises in some of the calls."""

    def __init__(self, name, source, change, args, after, fails, calls):
        self.name, self.source, self.change, self.number = name, source, change, len(CASES)
        self.args, self.after, self.fails, self.calls = args, after, fails, calls

    def moments(self):
        """When the change is made: one run for each."""
        if not self.change or str(self.change).startswith("each:"):
            return (2, 3)
        return MOMENTS if EVERY_MOMENT else ((2, 9), (3, 5))[self.number % 2]

    def changes(self, moment):
        """What is done before which call."""
        if not self.change:
            return {}
        if isinstance(self.change, str):
            if self.change.startswith("each:"):
                return dict.fromkeys(range(1, self.calls + 1), self.change[5:].strip())
            return {moment: self.change}
        return {moment + 2 * i: self.change[i % len(self.change)] for i in range((self.calls - moment) // 2 + 1)}


def family(kind):
    """The maker of cases of one family."""

    def case(name, source, *changes, args="num(3, 4, seed=k, grad=True),", after=None, fails=False, calls=CALLS):
        source = textwrap.dedent(source).strip() + "\n"
        for change in changes or (None,):
            label = f"{kind}/{name}" + (f"[{_slug(change)}]" if change else "")
            while label in CASES:
                label += "+"
            CASES[label] = Case(label, source, change, args, after, fails, calls)

    return case


def _slug(change):
    text = change if isinstance(change, str) else " then ".join(change)
    return re.sub(r"[^\w.+*=()]+", " ", text).strip().replace(" ", "_")[:70]


def num(*shape, seed=0, grad=False):
    """Numbers that are the same in both worlds, in memory of their own."""
    return wf.tensor(np.random.default_rng(seed).standard_normal(shape)).requires_grad_(grad)


def run(name, **options):
    """Run one case at all its moments; raises `Wrong` at the first difference."""
    case = CASES[name]
    for moment in case.moments():
        # In half of the runs all results are kept and the world is looked at after each call; in the others nothing is
        # looked at but results, and nothing keeps them alive.
        watched = moment in (2, 5)
        want = _World(case, moment, watched, None).run()
        errors = [e for e in want.errors if e is not None]
        if errors and not case.fails:
            raise BadCase(f"plain Python raises {errors[0]!r}")
        _World(case, moment, watched, options, want.told).run()


class _World:
    def __init__(self, case, moment, watched, options, wanted=None):
        self.case, self.moment, self.watched, self.options, self.wanted = case, moment, watched, options, wanted
        self.told, self.errors, self.results, self.undo = [], [], [], []
        self.names = {}
        self.module = types.ModuleType(WORLD)
        self.space = self.module.__dict__
        self.space.update(wf=wf, nn=nn, F=F, np=np, math=math, num=num, way=self.way, patch=self.patch,
                          undo=self.undo.append)  # fmt: skip
        self.given = set(self.space)

    def way(self, function):
        made = function if self.options is None else wf.compile(function, **self.options)
        inner = made.__func__ if isinstance(made, (staticmethod, classmethod)) else made
        self.names[id(inner)] = inner
        self.names[id(getattr(inner, "__wrapped__", inner))] = inner
        return made

    def patch(self, thing, name, value):
        """Set an attribute until the end of this world."""
        had, old = name in vars(thing), vars(thing).get(name)
        self.undo.append(lambda: setattr(thing, name, old) if had else delattr(thing, name))
        setattr(thing, name, value)

    def run(self):
        with self._alone():
            self._exec(self.case.source, "world")
            if "call" not in self.space:
                self._exec(f"def call(k):\n    global args\n    args = ({self.case.args})\n    return f(*args)", "call")
            changes = self.case.changes(self.moment)
            for k in range(1, self.case.calls + 1):
                self.space["k"] = k
                if k in changes:
                    self._exec(changes[k], f"change{k}")
                self._call(k)
        return self

    def _call(self, k):
        result, error = None, None
        try:
            result = self.space["call"](k)
        except Exception as raised:
            error = (type(raised).__name__, head(raised))
        self._tell(k, error, result, "")
        done = True
        try:
            done = self._after(result)
        except Exception as raised:
            error = ("after", type(raised).__name__)  # its words name nodes, and a plan is one node
        self.errors.append(error)
        if self.watched:
            self.results.append(result)
        if done or k == self.case.calls:
            self._tell(k, error, result, " afterwards")

    def _after(self, result):
        """Use the result; is there anything to be seen of that?"""
        if self.case.after is not None:
            self.space["r"] = result
            self._exec(self.case.after, "after")
            del self.space["r"]
            return self.case.after != ""
        live = [t for t in _tensors(result) if t.requires_grad and t.dtype.is_floating_point]
        if live:
            sum((t * t).sum() for t in live).backward()
        return bool(live)

    def _tell(self, k, error, result, when):
        told = Description(WORLD, self.names)
        told.add("error", error)
        if self.watched or (k == self.case.calls and when):
            for name, value in list(self.space.items()):
                if name not in self.given and not name.startswith("__") and name != "r":
                    told.add(name, value)
            if k in (6, self.case.calls) and when:
                told.add("kept", self.results)
            if "look" in self.space:
                told.add("look()", self.space["look"]())
        told.add("result", result)
        told.add("dice", _dice())
        self.told.append(told.close())
        if self.wanted is not None:
            found = difference(told, self.wanted[len(self.told) - 1])
            if found:
                changed = f", changed at {self.moment}" if self.case.change else ""
                raise Wrong(f"call {k}{when}{changed}: {found}")

    def _exec(self, source, part):
        name = f"{part}{self.case.number}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), self.space)

    @contextlib.contextmanager
    def _alone(self):
        """The same start for both worlds, and nothing left behind."""
        environment, old = dict(os.environ), sys.modules.get(WORLD)
        sys.modules[WORLD] = self.module
        wf.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        wf.set_default_dtype(wf.float64)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for undo in reversed(self.undo):
                undo()
            set_mode(None)
            wf.set_default_dtype(wf.float32)
            os.environ.clear()
            os.environ.update(environment)
            self.space.clear()  # whoever still holds a function of this world shall not hold all of it
            self.results.clear()
            sys.modules.pop(WORLD)
            if old is not None:
                sys.modules[WORLD] = old


def _dice():
    return [wf.get_rng_state()._array.copy(), hash(random.getstate()), np.random.get_state()[1:3],
            str(wf.get_default_dtype()), wf.is_grad_enabled(), wf.is_inference_mode_enabled()]  # fmt: skip


def _tensors(value):
    if isinstance(value, wf.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _tensors(part)] if isinstance(value, (tuple, list)) else []


@contextlib.contextmanager
def at_most(seconds):
    """A case that hangs is an error."""

    def stop(*_):
        raise TimeoutError(f"still running after {seconds} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
