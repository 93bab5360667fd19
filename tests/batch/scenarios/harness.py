"""How a scenario is written, run as a loop, run by `wf.map` in many ways, and compared."""

import contextlib
import copy
import functools
import io
import itertools
import linecache
import textwrap
import warnings
import zlib

import numpy as np

import wayfare as wf
from tests.batch.checks import numbers, vectors, weight
from tests.batch.scenarios.describe import Walk, difference, of_error
from wayfare import nn
from wayfare.nn import functional as F

SCENARIOS = {}

# What is differentiated after the examples have run.
BACKWARDS = ("all", "one", "second", "each")

# By which way a scenario is run, and which of its results are differentiated then.
WAYS = {
    "alone": ("all",), "agenda": BACKWARDS, "depth": ("each",), "limit0": ("one",), "limit2000": ("all",),
    "warm": ("second",), "twice": ("all",), "block": ("each",), "map in block": ("all",), "no_grad": ("all",),
    "nested1": ("second",), "nested2": ("all",),
}  # fmt: skip

SELDOM = ("limit2000", "map in block", "alone")


class BadScenario(Exception):
    """A scenario that is wrong by itself."""


class Scenario:
    """One small program: `make()` gives a function, its iterables, and what else can be seen."""

    def __init__(self, name, make, raises=False, random=False, without=(), whole=False, only=None):
        self.name, self.make, self.raises, self.random, self.whole = name, make, raises, random, whole
        without = without.split(",") if isinstance(without, str) else without
        without = [way.strip() for way in without]
        self.ways = [way for way in WAYS if way not in without and (only is None or way in only)]
        turn = zlib.crc32(name.encode()) % 3  # of the ways that cost time and seldom tell, each scenario has one
        self.ways = [way for way in self.ways if way not in SELDOM or way == SELDOM[turn]]
        self.loops = {}


def mod(module, seed=70):
    """A module in double precision whose numbers are known."""
    module.double()
    with wf.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(numbers(*p.shape, seed=seed + k) * 0.5)
    return module


def vecs(count=4, width=3, grad=True, start=0):
    return vectors(count, width, grad, start)


NAMES = {
    "wf": wf, "nn": nn, "F": F, "np": np, "num": numbers, "vecs": vecs, "weight": weight, "mod": mod, "copy": copy,
    "functools": functools, "contextlib": contextlib, "itertools": itertools, "__name__": "scenario",
}  # fmt: skip


def family(kind):
    """How the scenarios of one file are entered: a decorator for `make` functions, and `case` for lines of text."""

    def scenario(make=None, **options):
        if make is None:
            return lambda m: scenario(m, **options)
        enter(f"{kind}/{make.__name__}", make, options)
        return make

    def case(name, setup, body, state="()", **options):
        """`setup` makes what is shared (`xs`, or `its`, where the usual vectors will not do), `body` is `f(x, i)`."""
        lines = ["def make():"]
        text = textwrap.dedent(setup)
        if not any(line.startswith(("xs =", "its =")) for line in text.splitlines()):
            lines.append("    xs = vecs()")
        lines += textwrap.indent(text, "    ").splitlines()
        if "its =" not in text:
            lines.append("    its = [xs, range(len(xs))]")
        if body is not None:
            lines += ["    def f(x, i):", *textwrap.indent(textwrap.dedent(body), "        ").splitlines()]
        lines.append(f"    return f, its, lambda: ({state},)")
        source, file = "\n".join(lines) + "\n", f"<scenario {kind}/{name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        space = dict(NAMES)
        exec(compile(source, file, "exec"), space)
        enter(f"{kind}/{name}", space["make"], options)

    return scenario, case


def enter(name, make, options):
    if name in SCENARIOS:
        raise BadScenario(f"two scenarios are called {name}")
    SCENARIOS[name] = Scenario(name, make, **options)


# -- running ------------------------------------------------------------------------------------------------------


def loop(f, its, at):
    """The plain loop; `at` learns which example runs."""
    out = []
    for i, example in enumerate(zip(*its, strict=True)):
        at[:] = [str(i)]
        out.append(f(*example))
    at[:] = []
    return out


def by_map(f, its, way, batch):
    """The results by `wf.map`."""
    options = {"batch": batch}
    if batch:
        options |= {
            "depth": {"schedule": wf.batching.ByDepth()}, "limit0": {"limit": 0}, "limit2000": {"limit": 2000},
        }.get(way, {})  # fmt: skip
    if way == "nested1":
        return wf.map(lambda _: wf.map(f, *its, **options), [0], batch=batch)[0]
    if way == "map in block" and batch:
        with wf.batching():
            return wf.map(f, *its)
    return wf.map(f, *its, **options)


def run_one(scenario, way, batch, backward):
    """One run of everything: a list of what was seen, in order, with a name for each."""
    with surroundings() as text:
        if way == "nested2":
            return nested(scenario, batch, backward, text)
        if way == "warm" and batch:
            made = scenario.make()
            with contextlib.suppress(Exception):
                by_map(made[0], made[1], way, batch)
            text.truncate(0)
            text.seek(0)
            wf.manual_seed(5)
        f, its, state = scenario.make()
        for _ in range(2 if way == "twice" else 1):
            results, error = attempt(f, its, way, batch, scenario.whole)
        return [*seen(results, its, state, error, text), *after(results, its, state, backward, text)]


@contextlib.contextmanager
def surroundings():
    """Every run starts from the same seed and leaves nothing in force; what it prints is kept."""
    text = io.StringIO()
    wf.manual_seed(5)
    try:
        with contextlib.redirect_stdout(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield text
    finally:
        wf.set_default_dtype(wf.float32)
        wf.set_grad_enabled(True)


def attempt(f, its, way, batch, whole):
    """Results and no error, or the other way round."""
    at, results, error = [], None, None
    its = [list(part) for part in its]
    mode = wf.no_grad() if way == "no_grad" else contextlib.nullcontext()
    try:
        with mode:
            if way == "block" and batch:
                with wf.batching():
                    results = loop(f, its, at)
            elif batch is None:
                results = loop(f, its, at)
            else:
                results = by_map(f, its, way, batch)
    except Exception as e:
        kind, message, found = of_error(e, whole)
        results, error = None, (kind, message, [] if way == "block" else (found or at)[:1])
    return results, error


def seen(results, its, state, error, text):
    """What is there after the map: results, state and what was printed."""
    walk = Walk()
    found = [("results", walk.of(results)), ("state", walk.of(state())), ("examples", walk.of([list(p) for p in its]))]
    return [("error", error), *found, ("sharing", walk.sharing()), ("printed", text.getvalue())]


def after(results, its, state, backward, text):
    """What is there after a backward pass: gradients, mostly."""
    faults = []
    for part in chosen(results or [], backward):
        total = weighted(part)
        if total is None:
            continue
        try:
            total.backward()
        except Exception as e:
            faults.append(of_error(e)[:2])
    walk = Walk()
    found = [("results", walk.of(results)), ("state", walk.of(state())), ("examples", walk.of([list(p) for p in its]))]
    found = [("fault of backward", faults), ("printed", text.getvalue()), *found]
    return [(f"{what} after backward of {backward}", value) for what, value in found]


def chosen(results, backward):
    """Which results are differentiated together."""
    if backward == "each":
        return [[r] for r in results]
    return [results if backward == "all" else results[1:2] if backward == "one" else results[::2]]


def weighted(values):
    """One number that hangs on every element of every result in its own way."""
    walk = Walk()
    walk.of(list(values))
    live = [t for t in walk.tensors if t.requires_grad and t.is_floating_point()]
    parts = [(t.double() * numbers(*t.shape, seed=50 + i)).sum() for i, t in enumerate(live)]
    return sum(parts[1:], parts[0]) if parts else None


def nested(scenario, batch, backward, text):
    """Two worlds side by side, each with a map of its own, in one outer map."""
    worlds = [scenario.make() for _ in range(2)]
    results, error = [None, None], None
    try:
        if batch is None:
            for k, (f, its, _) in enumerate(worlds):
                results[k] = loop(f, its, [])
        else:
            results = wf.map(lambda world: wf.map(world[0], *world[1], batch=batch), worlds, batch=batch)
    except Exception as e:
        error = of_error(e)[:2]
        worlds = worlds[:1]  # the loop never came to the second
    found = [("error", error)]
    text = io.StringIO()  # what two worlds print is mixed
    for k, (_, its, state) in enumerate(worlds):
        found += seen(results[k], its, state, None, text)
    for k, (_, its, state) in enumerate(worlds):
        found += after(results[k], its, state, backward, text)
    return found


# -- comparing ----------------------------------------------------------------------------------------------------


def wanted(scenario, way, backward):
    """What the loop shows; run once for each kind of loop."""
    kind = way if way in ("no_grad", "nested2", "twice", "block") or scenario.random else "loop"
    key = kind, backward
    if key not in scenario.loops:
        batch = False if scenario.random and way != "block" else None
        scenario.loops[key] = run_one(scenario, way, batch, backward)
    found = scenario.loops[key]
    error = found[0][1]
    if bool(error) != scenario.raises and way != "no_grad":
        raise BadScenario(f"the loop of {scenario.name} {'raises ' + str(error) if error else 'raises nothing'}")
    return found


def is_lenient(mine, theirs):
    """Does the map differentiate what the loop refuses to? Its results keep copies, and have a graph each."""
    refusals = ("InPlaceError", "GraphError")
    return len(mine) < len(theirs) and all(kind in refusals for kind, _ in theirs) and all(f in theirs for f in mine)


def check(name, way):
    """The first difference between the loop and the map; None where there is none."""
    scenario = SCENARIOS[name]
    for backward in WAYS[way][:1] if scenario.raises else WAYS[way]:
        want = wanted(scenario, way, backward)
        got = run_one(scenario, way, way != "alone", backward)
        for (what, mine), (_, theirs) in zip(got, want, strict=True):
            if what.startswith("fault") and is_lenient(mine, theirs):
                break
            found = difference(mine, theirs)
            if found:
                return f"{what}{found}"
            if theirs and what.startswith("fault"):
                break  # a pass that ended with an error has left nobody knows what
    return None
