"""Random programs for `wf.map`: run batched and as a plain loop, compared in all that can be seen, and made short.

A program is a form that walks an example (see `program_parts`) with statements in its places. It is run on examples of
many sizes; what must agree are results, errors, what was kept outside, gradients of every leaf and the generator.
"""

import functools
import itertools
import linecache
import textwrap
import warnings
from dataclasses import dataclass, replace

import numpy as np

import wayfare as wf
from tests.batch.checks import tensors_in, weighted
from tests.batch.program_helpers import helper_for
from tests.batch.program_parts import CHOICES, FORMS, NAMES
from tests.batch.worlds import World
from tests.compiler.program_parts import NAMES as OTHER_NAMES
from wayfare.batch.function_profile import _PROFILES

FREE = """
def program(e):
    x0, x1, x2, k = e.m, e.x, e.shared, e.k
    #body
    return #result
"""
# Beyond this, rounding decides what the numbers are.
_LARGE = 1e7
_NUMBER = itertools.count()
# Where the loop refuses to differentiate, a map may do so: its results keep copies, and have a graph each.
LENIENT = (wf.errors.InPlaceError, wf.errors.GraphError)


@dataclass(frozen=True)
class Program:
    """A form, the statements in its places, and how it is run."""

    form: str
    places: tuple[tuple[str, tuple[str, ...]], ...]
    choices: tuple[tuple[str, str], ...]
    seed: int = 0
    count: int = 5
    chosen: tuple[int, ...] | None = None  # only these of the examples
    width: int = 3
    dtype: str = "float64"
    way: str = "map"
    # "backward", "second" derivatives, "twice" over the same graph, of "one" result, of "some", or "nothing"
    ask: str = "backward"
    # How the statements of each place are called, if they are: a style of `program_helpers`.
    helpers: str = ""

    def source(self):
        """The function as Python source, with its helpers."""
        whole = self._source(dict(self.places))
        if not self.helpers:
            return whole
        definitions, places = [], {}
        for place, statements in self.places:
            found = helper_for(f"do_{place}", statements, whole, self.helpers) if statements else None
            definitions += [] if found is None else [found[0]]
            places[place] = statements if found is None else (found[1],)
        return "\n".join([*definitions, self._source(places)])

    def _source(self, statements):
        text = FREE if self.form == "free" else FORMS[self.form][0]
        for name, choice in self.choices:
            text = text.replace(f"#{name}", choice)
        lines = []
        for line in text.strip().split("\n"):
            place = line.strip()[1:] if line.strip().startswith("#") else None
            if place is None:
                lines.append(line)
                continue
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(textwrap.indent("\n".join(statements[place]) or "pass", indent))
        return "\n".join(lines) + "\n"

    def world(self):
        """What it runs on."""
        return World(self.seed, self.count, self.width, self.dtype, chosen=self.chosen)

    def __str__(self):
        return f"{self.source()}\n# replay(Program(**{vars(self)}))"


class Seen:
    """What a run left behind."""

    error = graph_error = None
    late = False  # did it say that examples had begun too early?
    structure = kept = numbers = flags = values = grads = draws = stats = state = state_flags = totals = ()

    def see_state(self, world, names):
        """What all examples may have changed."""
        shared = world.shared()
        self.state_flags = [(t.requires_grad, t.is_leaf, tuple(t.shape), t.stride()) for t in shared]
        self.state = [*snapshot(shared), *snapshot([t.grad for t in shared])]
        if self.error is None:  # others may have added to these before an example failed
            self.totals = [np.array(world.things.numbers(names))]


def blocked(function, examples):
    with wf.batching():
        return [function(e) for e in examples]


def unrecorded(function, examples, **options):
    with wf.no_grad():
        return wf.map(function, examples, **options)


def scheduled(name):
    def run(function, examples):
        return wf.map(function, examples, schedule=getattr(wf.batching, name)())

    return run


def looped(function, examples):
    return wf.map(function, examples, batch=False)


# How to run a program batched, and the loop that says what is right.
WAYS = {
    "map": (wf.map, looped), "limit": (lambda f, xs: wf.map(f, xs, limit=5000), looped),
    "no_grad": (unrecorded, lambda f, xs: unrecorded(f, xs, batch=False)),
    "block": (blocked, lambda f, xs: [f(x) for x in xs]),
    "by_depth": (scheduled("ByDepth"), looped), "agenda": (scheduled("Agenda"), looped),
}  # fmt: skip


def function_in(program, world):
    """The program as a function of an example of a world, and the names it sees."""
    names = OTHER_NAMES | NAMES | world.names()
    exec(compiled(program.source()), names)
    return names["program"], names


@functools.lru_cache(16)
def compiled(source):
    """The code of a source: the same as long as it is used, so that what is known of it is remembered."""
    title = f"<program {next(_NUMBER)}>"
    linecache.cache[title] = (len(source), None, source.splitlines(True), title)
    return compile(source, title, "exec")


def run(program, way):
    """One run and all that can be seen after it."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        seen = run_in(program.world(), program, way)
    seen.late = any("had begun before" in str(warning.message) for warning in heard)
    return seen


def run_in(world, program, way):
    """The same, in a given world."""
    seen = Seen()
    function, names = function_in(program, world)
    wf.manual_seed(3)
    try:
        results = way(function, world.examples)
    except Exception as error:
        seen.error = error
        seen.see_state(world, names)
        return seen
    seen.draws = wf.get_rng_state().tolist()
    everything = [results, [world.kept[key] for key in sorted(world.kept)]]
    seen.structure, tensors, numbers = flattened(everything)
    seen.numbers = [np.array(numbers)]
    inputs = [t for e in world.examples for t in (e.x, e.m, *e.xs)]
    seen.flags = [
        (type(t).__name__, str(t.dtype), tuple(t.shape), strides_of(t), t.requires_grad, t.is_leaf) for t in tensors
    ]
    # A tensor from outside is returned as itself.
    seen.flags += [[i for i, x in enumerate(inputs) if x is t] for t in tensors]
    try:
        seen.values = snapshot([*tensors, *inputs])
        seen.see_state(world, names)
    except Exception as error:
        seen.error = error
        return seen
    chosen = results[1:2] if program.ask == "one" else results[::2] if program.ask == "some" else results
    try:
        seen.grads = asked(program.ask, tensors_in(chosen), world.leaves)
    except Exception as error:
        seen.graph_error = error
    seen.grads = [*seen.grads, *snapshot([t.grad for t in (*world.leaves, *inputs, *tensors) if t.is_leaf or
                                          t.retains_grad])]  # fmt: skip
    return seen


def strides_of(t):
    """Its strides where they say something: not along a dimension of size one, nor of nothing at all."""
    return tuple(s if n > 1 and t.numel() else 0 for n, s in zip(t.shape, t.stride(), strict=True))


def asked(how, results, leaves):
    """Differentiate the results in the way that is asked for."""
    total = weighted(results)
    if total is None or how == "nothing":
        return []
    if how != "second":
        if how == "twice":
            total.backward(retain_graph=True)
        total.backward()
        return []
    wanted = [t for t in leaves if t.requires_grad]
    firsts = wf.autograd.grad(total, wanted, create_graph=True, allow_unused=True, materialize_grads=True)
    again = weighted(firsts)
    if again is not None:
        again.backward()
    return snapshot(firsts)


def snapshot(tensors):
    """The numbers of tensors as they are now."""
    return [None if t is None else t.detach().numpy(force=True).copy() for t in tensors]


def difference(program, ways=None):
    """How the batched run differs from the loop, in one sentence; None where they agree."""
    batched, loop = ways or WAYS[program.way]
    want = run(program, loop)
    # A function that is new, and one whose first example need not go first any more.
    _PROFILES.clear()
    return between(program, run(program, batched), want) or between(program, run(program, batched), want)


def between(program, got, want):
    """How two runs differ."""
    if got.late:
        return None  # it has said that it may differ
    if type(got.error) is not type(want.error):
        if isinstance(want.error, LENIENT):
            return None
        return f"raises {got.error!r} instead of {want.error!r}"
    if want.error is not None and program.way == "block":
        return None  # what fails in a block may show only after the lines that follow
    for what in ("structure", "flags", "draws", "state_flags"):
        if getattr(got, what) != getattr(want, what):
            return f"{what} is {getattr(got, what)} instead of {getattr(want, what)}"
    single = any(word in str(program) for word in ("float32", "float(", ".float()", "e.other"))
    tolerance = 1e-3 if single else 1e-7
    lenient = want.graph_error is not None and got.graph_error is None  # what the loop refuses, the map may still know
    if got.graph_error is not None and want.graph_error is None:
        if isinstance(got.graph_error, LENIENT) and ("wf.batching" in str(program) or "wf.map" in str(program)):
            return None  # the loop has blocks and maps inside, and those keep copies
        return f"differentiating it raises {got.graph_error!r}"
    for what in ("values", "numbers", "state", "totals", *(() if want.graph_error or lenient else ("grads",))):
        mine, theirs = getattr(got, what), getattr(want, what)
        found = apart(mine, theirs, tolerance)
        if found == "wild":
            return None
        if found is not None:
            return f"{what}: {found}"
    return None


def apart(got, want, tolerance):
    """How arrays differ, or that they are too large to tell."""
    if len(got) != len(want):
        return f"{len(got)} tensors instead of {len(want)}"
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine is None or theirs is None:
            # Nothing and a gradient of zeros: whose leaf a result hangs on is not known of results computed together.
            if any(array is not None and array.any() for array in (mine, theirs)):
                return f"{number} is {mine} instead of {theirs}"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{number} is {mine.dtype}{mine.shape} instead of {theirs.dtype}{theirs.shape}"
        size = float(np.abs(np.nan_to_num(theirs.astype(float), posinf=0, neginf=0)).max(initial=0))
        if size > _LARGE:
            return "wild"
        close = tolerance if theirs.dtype == np.float64 else 1e-3
        if not np.allclose(mine, theirs, rtol=close, atol=close * (1 + size), equal_nan=True):
            return f"{number} is\n{mine}\ninstead of\n{theirs}"
    return None


def shortened(program, ways=None):
    """As few statements and examples as still differ."""

    def differs(candidate):
        try:
            loop = run(candidate, (ways or WAYS[candidate.way])[1])
            if isinstance(loop.error, (NameError, SyntaxError, UnboundLocalError)):
                return False
            return difference(candidate, ways) is not None
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for candidate in simpler(program):
            if differs(candidate):
                program, changed = candidate, True
                break
    return program


def simpler(program):
    """Programs with a little less in them."""
    chosen = program.chosen or tuple(range(program.count))
    for i in range(len(chosen)):
        if len(chosen) > 1:
            yield replace(program, chosen=chosen[:i] + chosen[i + 1 :])
    for p, (name, statements) in enumerate(program.places):
        for i, statement in enumerate(statements):
            fewer = (name, statements[:i] + statements[i + 1 :])
            yield replace(program, places=program.places[:p] + (fewer,) + program.places[p + 1 :])
            target, made, value = statement.partition(" = ")
            if made and target[0] in "vn" and "\n" not in statement:
                for plain in ("e.x * 2", "x1 * 2", "h * 2"):
                    if not value.endswith(" * 2"):
                        other = (name, (*statements[:i], f"{target} = {plain}", *statements[i + 1 :]))
                        yield replace(program, places=program.places[:p] + (other,) + program.places[p + 1 :])
    for c, (name, choice) in enumerate(program.choices):
        first = CHOICES.get(name, ("h",))[0]
        if choice != first and not (program.form == "free" and first == "h"):
            yield replace(program, choices=program.choices[:c] + ((name, first),) + program.choices[c + 1 :])
    if program.way != "map" and program.way != "block":
        yield replace(program, way="map")
    if program.ask != "nothing":
        yield replace(program, ask="nothing" if program.ask == "backward" else "backward")


def replay(program):
    """Print how a program differs, after a failure: paste what the report says."""
    print(program.source())
    print(difference(program))


def flattened(value):
    """A structure with its tensors and real numbers taken out, and those."""
    tensors, numbers = [], []

    def walk(item):
        if isinstance(item, wf.Tensor):
            tensors.append(item)
            return "tensor"
        if isinstance(item, dict):
            return {key: walk(v) for key, v in item.items()}
        if isinstance(item, (list, tuple)):
            return (type(item).__name__, *map(walk, item))
        if isinstance(item, float):
            numbers.append(item)
            return "number"
        return item

    return walk(value), tensors, numbers
