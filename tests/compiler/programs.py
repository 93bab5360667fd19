"""Random programs for `wf.compile`: run plainly and compiled through many calls, compared, and made short.

A program is the source of a function: inputs, statements and what it returns (see `program_writer`), and a schedule of
calls and of changes outside. It is called with the same arguments, with other values (so other branches are taken),
other sizes, other `requires_grad` flags and without recording, and after each call all that a user can see must be what
plain Python left (see `program_seen`).
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

import wayfare as wf
from tests.compiler.program_seen import compare
from tests.compiler.program_world import CALLS, CAPTURED, World

SCHEDULE = (
    "first", "first", "first", "first", "first", "first", "first", "values", "values", "values", "first", "sizes",
    "sizes", "sizes", "values", "flags", "flags", "flags", "no_grad", "no_grad", "no_grad", "first", "first",
)  # fmt: skip
# Where much is changed between the calls, there are fewer kinds of them: otherwise nothing would ever be replayed.
STEADY = (*("first",) * 9, *("values",) * 4, *("first",) * 4, "sizes", "sizes", "sizes", "first", "values", "first")
# Without a check nothing hides a wrong plan.
WAYS = {"unchecked": wf.compile(check=False), "default": wf.compile}


@dataclass(frozen=True)
class Program:
    """The source of a function and of its arguments, and how it is called."""

    arguments: tuple[str, ...]  # statements that make x0, x1, … out of leaves l0, l1, …
    statements: tuple[str, ...]
    result: str
    inputs: int
    schedule: tuple[str, ...] = SCHEDULE  # names of CALLS, and statements that change something outside
    dtype: str = "float64"
    closure: bool = False  # captured things are cells of a closure, else globals
    nested: bool = False  # the inputs come in a dictionary
    outside: str = "backward"  # what is asked of the results: see `ask`
    large: bool = False
    numbers: bool = False  # other numbers at each call
    trains: bool = False  # there are a model, its optimiser and a schedule
    optimizer: str = "Adam"

    def source(self):
        """The function as Python source."""
        names = [f"x{i}" for i in range(self.inputs)]
        first = "xs" if self.nested else ", ".join(names)
        body = list(self.statements)
        if self.nested:
            rest = "".join(f"{name}, " for name in names[1:])
            body.insert(0, f"{names[0]} = xs['first']" + (f"\n{rest}= xs['rest']" if rest else ""))
        body.append(f"return {self.result}")
        text = f"def program({first}, k=2, r=0.5):\n" + textwrap.indent("\n".join(body), "    ") + "\n"
        if not self.closure:
            return text
        return f"def make({', '.join(CAPTURED)}):\n" + textwrap.indent(text, "    ") + "    return program\n"

    def __str__(self):
        setting = "\n".join(self.arguments)
        chosen = ("dtype", "nested", "outside", "large", "numbers", "trains", "optimizer")
        form = ", ".join(f"{name}={getattr(self, name)}" for name in chosen)
        return f"{setting}\n{self.source()}# {form}\n# calls: {'; '.join(self.schedule)}"


def plainly(function):
    """The function itself: the way of plain Python."""
    return function


def difference(program, *ways, nudge=0.0):
    """How the compiled function differs from the plain one, in one sentence; None where they agree."""
    plain, others = World(program, plainly), [World(program, way, nudge) for way in ways or WAYS.values()]
    single = "float32" in str(program) or "float(" in program.source() or "int64" in str(program)
    for number, how in enumerate(program.schedule):
        want = plain.run(how)
        seen = [world.run(how) for world in others]
        for got in seen:
            found = compare(want, got, 1e-3 if single else 1e-6)
            if found == "wild":
                return None
            if found is not None:
                return f"{number} ({how}): {found}"
        if any(s.graph_error is not None for s in (want, *seen)):
            for world in (plain, *others):
                world.forget_gradients()
    return None


def hangs_on_rounding(program):
    """Whether plain Python gives something else where all numbers are off by a rounding error."""
    return difference(program, plainly, nudge=1e-13) is not None


def shortened(program, way):
    """As few statements and calls as still differ."""

    def differs(candidate):
        try:
            if _nameless(candidate) or (found := difference(candidate, way)) is None:
                return False
            return "NameError" not in found and not hangs_on_rounding(candidate)
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


def _nameless(program):
    """Whether it speaks of what is not there."""
    plain = World(program, plainly)
    wanted = dict.fromkeys(("first", *program.schedule))
    return any(isinstance(plain.run(how).error, (NameError, UnboundLocalError)) for how in wanted)


def simpler(program):
    """Programs with a little less in them."""
    calls = program.schedule
    for half in (calls[: len(calls) // 2], *(calls[:i] + calls[i + 1 :] for i in reversed(range(len(calls))))):
        if any(how in CALLS for how in half):
            yield replace(program, schedule=half)
    for i, statement in enumerate(program.statements):
        before, after = program.statements[:i], program.statements[i + 1 :]
        yield replace(program, statements=before + after)
        name, made, value = statement.partition(" = ")
        if made and name[0] == "v" and name[1:].isdigit() and "\n" not in statement:
            if value not in ("x0 * 2", "c1 * 2"):
                for plain in ("x0 * 2", "c1 * 2"):
                    yield replace(program, statements=(*before, f"{name} = {plain}", *after))
    if program.result not in ("None", "x0"):
        yield replace(program, result="None")
        for word in sorted({w for w in program.result.replace("]", " ").replace(")", " ").replace(",", " ").split()}):
            if word[0] in "vxc" and word[1:].isdigit() and word != program.result:
                yield replace(program, result=word)
    for name in ("closure", "nested", "large", "numbers", "trains"):
        if getattr(program, name):
            yield replace(program, **{name: False})
    if program.outside != "nothing":
        yield replace(program, outside="nothing")
        if program.outside != "backward":
            yield replace(program, outside="backward")
    if program.inputs > 1 and not program.nested:
        last = str(program.inputs - 1)
        kept = tuple(s for s in program.arguments if f"x{last}" not in s and f"l{last} =" not in s)
        yield replace(program, inputs=program.inputs - 1, arguments=kept)
