"""Random programs for `wf.compile`: run plainly and compiled through many calls, compared, and made short.

A program is the source of a function: inputs, statements and what it returns (see `program_writer`). It is called with
the same arguments, with other values (so other branches are taken), other sizes, other `requires_grad` flags and
without recording, and after each call all that a user can see must be what plain Python left: results, errors,
gradients, memory shared or not, the contents of arguments and of captured things, and the state of the generator.
"""

from __future__ import annotations

import itertools
import linecache
import textwrap
import warnings
from dataclasses import dataclass, replace

import numpy as np

import wayfare as wf
from tests.compiled.program_parts import NAMES, Box, new, softer

FIRST, OTHER = {"a": 2, "b": 3, "c": 4}, {"a": 3, "b": 5, "c": 4}
# Sizes at which kernels run their vectorised loops, and what is left over.
LARGE, LARGER = {"a": 9, "b": 33, "c": 18}, {"a": 11, "b": 47, "c": 18}
CAPTURED = ("c0", "c1", "log", "settings", "box", "net", "opt", "sched")
# How a call differs from the first: other values, other sizes, other flags, another mode.
CALLS = {
    "first": {}, "values": {"seed": 100, "k": 3, "scale": 0.5}, "sizes": {"other": True, "seed": 200},
    "flags": {"flip": True}, "no_grad": {"grad": False},
}  # fmt: skip
SCHEDULE = (
    "first", "first", "first", "first", "first", "first", "first", "values", "values", "values", "first", "sizes",
    "sizes", "sizes", "values", "flags", "flags", "flags", "no_grad", "no_grad", "no_grad", "first", "first",
)  # fmt: skip
# Beyond this, rounding decides what the numbers are.
_LARGE = 1e7
_NUMBER = itertools.count()


@dataclass(frozen=True)
class Program:
    """The source of a function and of its arguments."""

    arguments: tuple[str, ...]  # statements that make x0, x1, … out of leaves l0, l1, …
    statements: tuple[str, ...]
    result: str
    inputs: int
    dtype: str = "float64"
    closure: bool = False  # captured things are cells of a closure, else globals
    nested: bool = False  # the inputs come in a dictionary
    outside: str = "backward"  # what is asked of the results: "backward", "second" derivatives or "nothing"
    large: bool = False
    trains: bool = False  # there are a model, its optimiser and a schedule

    def source(self):
        """The function as Python source."""
        names = [f"x{i}" for i in range(self.inputs)]
        head = "def program(xs, k=2):" if self.nested else f"def program({', '.join(names)}, k=2):"
        body = list(self.statements)
        if self.nested:
            rest = "".join(f"{name}, " for name in names[1:])
            body.insert(0, f"{names[0]} = xs['first']" + (f"\n{rest}= xs['rest']" if rest else ""))
        body.append(f"return {self.result}")
        text = head + "\n" + textwrap.indent("\n".join(body), "    ") + "\n"
        if not self.closure:
            return text
        return f"def make({', '.join(CAPTURED)}):\n" + textwrap.indent(text, "    ") + "    return program\n"

    def __str__(self):
        setting = "\n".join(self.arguments)
        form = f"{self.dtype}, nested={self.nested}, outside={self.outside}, large={self.large}"
        return f"{setting}\n{self.source()}# {form}"


class World:
    """One way of running a program, with captured things of its own that live through all calls."""

    def __init__(self, program, way):
        self.program = program
        self.c0 = new(7, (3,), program.dtype)
        self.c1 = new(8, (2, 3), program.dtype, True)
        self.log, self.settings, self.box = [], {"scale": 1.5}, Box()
        self.net = self.opt = self.sched = None
        if program.trains:
            wf.manual_seed(4)
            layers = wf.nn.BatchNorm1d(3), wf.nn.Linear(3, 3), wf.nn.Dropout(0.25)
            self.net = wf.nn.Sequential(*layers).to(getattr(wf, program.dtype))
            # Not the usual epsilon: it would make steps of full length out of rounding errors.
            self.opt = wf.optim.Adam(self.net.parameters(), lr=0.02, eps=1e-3)
            self.sched = wf.optim.lr_scheduler.StepLR(self.opt, 2, gamma=0.8)
        captured = {name: getattr(self, name) for name in CAPTURED}
        source, title = program.source(), f"<program {next(_NUMBER)}>"
        linecache.cache[title] = (len(source), None, source.splitlines(True), title)
        names = NAMES | {"helper": way(softer)} | ({} if program.closure else captured)
        exec(compile(source, title, "exec"), names)
        function = names["make"](**captured) if program.closure else names["program"]
        self.call = way(function)
        self.kept = []

    def forget_gradients(self):
        """After a backward pass that failed half way: what it had added up by then is nobody's business."""
        self.c1.grad = None
        if self.net:
            self.net.zero_grad()

    def run(self, how):
        """One call, and all that can be seen after it."""
        options = CALLS[how]
        self.settings["scale"] = options.get("scale", 1.5)
        asked = {name: options[name] for name in ("other", "seed", "flip") if name in options}
        given = arguments(self.program, **asked)
        inputs = [given[f"x{i}"] for i in range(self.program.inputs)]
        leaves = [value for name, value in given.items() if name[0] == "l" and name[1:].isdigit()]
        k = options.get("k", 2)
        wf.manual_seed(3)
        seen = Seen()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                with wf.set_grad_enabled(options.get("grad", True)):
                    arranged = ({"first": inputs[0], "rest": inputs[1:]},) if self.program.nested else inputs
                    result = self.call(*arranged, k) if k != 2 else self.call(*arranged)
            except Exception as error:
                seen.error, result = error, None
        seen.warnings = {str(w.message) for w in told if not _allowed(w)}
        seen.draws = wf.get_rng_state().tolist()
        seen.structure, results, returned = flattened(result)
        rates = [group["lr"] for group in self.opt.param_groups] if self.opt else []
        seen.state, logged, noted = flattened([self.log, self.box.kept, self.box.total, self.settings, rates])
        seen.numbers = [np.array([*returned, *noted], np.float32)]
        tensors = [*results, *inputs, *leaves, self.c0, self.c1, *logged]
        seen.flags = [(str(t.dtype), tuple(t.shape), t.requires_grad, t.is_leaf) for t in tensors]
        seen.before = snapshot(tensors)
        seen.same = [next(i for i, other in enumerate(tensors) if other is t) for t in tensors]
        seen.shared = shared(tensors)
        if self.program.outside != "nothing" and seen.error is None:
            seen.graph_error, seen.found = ask(results, [t for t in leaves if t.requires_grad], self.program.outside)
        parameters = list(self.net.parameters()) if self.net else []
        if self.net:
            moments = [v for state in self.opt.state.values() for v in state.values() if isinstance(v, wf.Tensor)]
            seen.learned = snapshot([*self.net.state_dict().values(), *moments])
        grads = [t.grad for t in (*leaves, self.c1, *parameters)]
        seen.grads = snapshot(grads)
        seen.grad_memory = shared([g for g in grads if g is not None])
        self.kept += results
        if len(self.kept) < 40:
            seen.after, seen.refused = written(results, tensors)
        return seen


def _allowed(warning):
    """NumPy's remarks, and that Python is run because something cannot be replayed: not that a plan failed."""
    text = str(warning.message)
    return warning.category is RuntimeWarning or (text.startswith("compile: ") and "plan failed" not in text)


class Seen:
    """What a call left behind."""

    error = graph_error = None
    structure = state = numbers = ()
    found = before = after = refused = learned = grads = flags = same = shared = draws = grad_memory = ()
    warnings = frozenset()


def arguments(program, other=False, seed=0, flip=False):
    """Fresh arguments for a call, by name."""
    sizes = (LARGER if other else LARGE) if program.large else OTHER if other else FIRST
    names = dict(NAMES) | sizes | {
        "new": lambda own, shape, dtype, grad: new(own + seed, shape, dtype, (grad != flip) and dtype != "int64")
    }  # fmt: skip
    exec("\n".join(program.arguments), names)
    return names


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


def snapshot(tensors):
    """The numbers of tensors as they are now."""
    return [None if t is None else t.detach().numpy(force=True).copy() for t in tensors]


def shared(tensors):
    """Which pairs share memory."""
    arrays = [t.detach().numpy(force=True) for t in tensors]
    pairs = itertools.combinations(range(len(arrays)), 2)
    return {(i, j) for i, j in pairs if np.shares_memory(arrays[i], arrays[j])}


def weighted(tensors):
    """One number that hangs on every element in its own way."""
    parts = [(t.double() * new(50 + i, tuple(t.shape))).sum() for i, t in enumerate(tensors)]
    return sum(parts[1:], parts[0])


def ask(results, leaves, how):
    """Differentiate the results from outside; the error if that cannot be done, and second derivatives."""
    live = [t for t in results if t.requires_grad and t.is_floating_point()]
    if not live:
        return None, ()
    try:
        total = weighted(live)
        if how == "backward" or not leaves:
            total.backward()
            return None, ()
        firsts = wf.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        again = [g for g in firsts if g.requires_grad]
        if again:
            weighted(again).backward()
        return None, snapshot(firsts)
    except Exception as error:
        return error, ()


def written(results, tensors):
    """What all tensors are after an element of each result has been written, and which could not be."""
    refused = []
    with wf.no_grad():
        for number, t in enumerate(results):
            if t.numel() and t.is_floating_point():
                try:
                    t.data[(0,) * t.dim()] = 10.0 + number
                except RuntimeError:  # several elements share that memory
                    refused.append(number)
    return snapshot(tensors), refused


def difference(program, schedule=SCHEDULE, way=None):
    """How the compiled function differs from the plain one, in one sentence; None where they agree."""
    plain, compiled = World(program, lambda f: f), World(program, way or wf.compile)
    single = "float32" in str(program) or "float(" in program.source() or "int64" in str(program)
    for number, how in enumerate(schedule):
        want = plain.run(how)
        got = compiled.run(how)
        found = compare(want, got, 1e-3 if single else 1e-6)
        if found == "wild" or want.refused != got.refused:
            return None
        if found is not None:
            return f"call {number} ({how}): {found}"
        if want.graph_error is not None or got.graph_error is not None:
            plain.forget_gradients()
            compiled.forget_gradients()
    found = apart(snapshot(compiled.kept), snapshot(plain.kept), 1e-3)
    return None if found in (None, "wild") else f"a result kept from an earlier call {found}"


def compare(want, got, tolerance):
    """The first difference between what two calls left."""
    if (got.error is None) != (want.error is None) or type(got.error) is not type(want.error):
        return f"raises {got.error!r} instead of {want.error!r}"
    if new_warnings := got.warnings - want.warnings:
        return f"warns {new_warnings}"
    for what in ("structure", "flags", "same"):
        if getattr(got, what) != getattr(want, what):
            return f"{what} is {getattr(got, what)} instead of {getattr(want, what)}"
    if (found := apart(got.before, want.before, tolerance)) is not None:
        return found if found == "wild" else f"a value {found}"
    if got.state != want.state:
        return f"the state of Python objects is {got.state} instead of {want.state}"
    if (found := apart(got.numbers, want.numbers, tolerance)) is not None:
        return found if found == "wild" else f"numbers: {found}"
    if got.draws != want.draws:
        return "the generator is in another state"
    if got.shared != want.shared:
        return f"memory is shared by {sorted(got.shared)} instead of {sorted(want.shared)}"
    if want.graph_error is not None:
        return None  # what plain Python refuses for having been overwritten, the compiled function may still know
    if "custom Function" in str(got.graph_error):
        return None  # second derivatives of a custom Function are refused, in a sentence
    if got.graph_error is not None:
        return f"differentiating it raises {got.graph_error!r}"
    # Where plain Python gives several elements one memory, and refuses to write there, a compiled function need not.
    for what in ("found", "grads", "learned", "after"):
        if what == "after" and want.refused != got.refused:
            continue
        if len(getattr(got, what)) != len(getattr(want, what)):
            return f"{what}: {len(getattr(got, what))} tensors instead of {len(getattr(want, what))}"
        if (found := apart(getattr(got, what), getattr(want, what), tolerance)) is not None:
            return found if found == "wild" else f"{what}: {found}"
    if got.grad_memory != want.grad_memory:
        return f"gradients share memory {got.grad_memory} instead of {want.grad_memory}"
    return None


def apart(got, want, tolerance):
    """How arrays differ, or that they are too large to tell."""
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine is None or theirs is None:
            if mine is not None or theirs is not None:
                return f"{number} is {mine} instead of {theirs}"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{number} is {mine.dtype}{mine.shape} instead of {theirs.dtype}{theirs.shape}"
        size = float(np.abs(np.nan_to_num(theirs.astype(float), posinf=0, neginf=0)).max(initial=0))
        if size > _LARGE:
            return "wild"
        close = tolerance if theirs.dtype == np.float64 else 1e-3
        if not np.allclose(mine, theirs, rtol=close, atol=close * (1e-2 + size), equal_nan=True):
            return f"{number} is\n{mine}\ninstead of\n{theirs}"
    return None


def shortened(program, schedule=SCHEDULE, way=None):
    """As few statements and calls as still differ."""

    def differs(candidate, calls):
        try:
            plain = World(candidate, lambda f: f)
            if any(isinstance(plain.run(how).error, NameError) for how in dict.fromkeys(("first", *calls))):
                return False
            found = difference(candidate, calls, way)
            return found is not None and "NameError" not in found
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for i in range(len(schedule)):
            fewer = schedule[:i] + schedule[i + 1 :]
            if fewer and differs(program, fewer):
                schedule, changed = fewer, True
                break
        for candidate in simpler(program):
            if differs(candidate, schedule):
                program, changed = candidate, True
                break
    return program, schedule


def simpler(program):
    """Programs with a little less in them."""
    for i, statement in enumerate(program.statements):
        before, after = program.statements[:i], program.statements[i + 1 :]
        yield replace(program, statements=before + after)
        name, made, value = statement.partition(" = ")
        if made and name[0] == "v" and name[1:].isdigit() and "\n" not in statement:
            for plain in ("x0 * 2", "c1 * 2"):
                if value not in ("x0 * 2", "c1 * 2"):
                    yield replace(program, statements=(*before, f"{name} = {plain}", *after))
    if "," in program.result or "{" in program.result:
        for word in sorted({w for w in program.result.replace("]", " ").replace(")", " ").replace(",", " ").split()}):
            if word[0] in "vxc" and word[1:].isdigit():
                yield replace(program, result=word)
    if program.closure:
        yield replace(program, closure=False)
    if program.nested:
        yield replace(program, nested=False)
    if program.large:
        yield replace(program, large=False)
    if program.outside != "nothing":
        yield replace(program, outside={"second": "backward", "backward": "nothing"}[program.outside])
