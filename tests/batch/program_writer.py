"""Writes random programs for `wf.map`.

A *formed* program walks a tree, a sequence or a graph with statements on vectors of one width. A *free* one is any
statements on tensors of any shape, one after the other, written while plain Wayfare runs it on every example.
"""

import random
import re
import warnings
from dataclasses import replace

import numpy as np

import wayfare as wf
from tests.batch import program_effects as effects
from tests.batch import program_parts as parts
from tests.batch.program_helpers import STYLES
from tests.batch.program_parts import CHOICES, FORMS, NAMES
from tests.batch.programs import Program
from tests.compiler import program_parts as others

WAYS = ("map",) * 6 + ("limit", "no_grad", "block", "block", "by_depth", "agenda")
ASKED = ("backward",) * 4 + ("second", "twice", "nothing")
EXPRESSIONS = (
    (others.UNARY, 4), (others.REDUCE, 3), (others.BINARY, 5), (others.MATMUL, 2), (others.VIEWS, 5),
    (others.INDEX, 2), (others.JOIN, 2), (others.RANDOM, 1),
)  # fmt: skip
# What one example does to things that all of them see hangs on the order in which they run.
GRADIENTS = tuple(s for s in others.GRADIENTS if "c1.grad" not in s)
STATEMENTS = ((others.WRITES, 6), (others.CONTROL, 5), (GRADIENTS, 3))
RESULTS = (
    "{a}", "({a}, {b})", "[{a}, {a}]", "{{'one': {a}, 'two': [{b}, {c}]}}", "({a}, None, k, 'text', ({b},))",
    "[{a}.detach(), {b}, {c}]", "({a}, float({b}.sum()))", "({a}, x0)", "(x0, {a}[None])", "(c1, {a})", "None",
    "({a}, {a}.shape)", "{a}.sum()", "({a}.sum() + {b}.sum())",
)  # fmt: skip
# What hangs on the example it is run for, or on the order in which examples run.
PERSONAL = re.compile(r"\be\.|wf\.map|kept|backward|rand|drop|bern|multi|normal_")
ORDERED = re.compile("kept")
NOTHING = re.compile("$^")


def write(seed, leaving=False):
    """The program of a seed; `leaving` something behind, or not."""
    draw = random.Random(seed)
    return FreeWriter(draw, seed, leaving).write() if draw.random() < 0.45 else formed(draw, seed, leaving)


def setting(draw, seed, leaving=False):
    """How a program is run and on what."""
    asked = ASKED + ("one", "some") * 2 if leaving else ASKED
    return {
        "seed": seed, "count": draw.choice((1, 2, 3, 5, 5, 8)), "way": draw.choice(WAYS), "ask": draw.choice(asked),
        "dtype": draw.choice(("float64", "float64", "float64", "float32")),
    }  # fmt: skip


# -- programs with a form --------------------------------------------------------------------------------------


def formed(draw, seed, leaving=False):
    """A program that walks an example."""
    form = draw.choice(list(FORMS))
    text, places = FORMS[form]
    choices = {name: draw.choice(options) for name, options in CHOICES.items() if f"#{name}" in text}
    if leaving and "memory" in choices:
        choices["memory"] = "{}"  # what others have seen already hangs on the order in which they run
    written = []
    for place, first in places.items():
        # Whoever comes first computes what all examples share: it may not hang on who that is.
        alike = form == "dag" and place == "cell" and choices["memory"] == "memo"
        # Inner examples run side by side: in which order they add to a list is not said.
        unordered = form == "nested" and place == "step"
        forbidden = PERSONAL if alike else ORDERED if unordered else NOTHING
        written.append((place, statements_for(draw, place, first, forbidden, form if leaving else None)))
    form_and_parts = form, tuple(written), tuple(choices.items())
    return Program(*form_and_parts, width=draw.choice((3, 3, 4, 17)), **setting(draw, seed, leaving))


def statements_for(draw, place, first, forbidden, leaving=None):
    """Statements of one place: new vectors out of those that are there, and `h` at the end."""
    made, statements = list(first), []
    for number in range(draw.randint(0, 5)):
        pools = (parts.VECTORS, parts.VECTORS, parts.STATEMENTS, parts.RANDOM if number == 2 else parts.VECTORS)
        pool = draw.choice(pools)
        a, b = (draw.choice(made if draw.random() < 0.5 else made[-2:]) for _ in "ab")
        name = f"n{number}" if place == "body" else f"{place[:2]}{number}"
        if leaving and draw.random() < 0.1:
            way_out = effects.way_out(draw, leaving, place, a, b)
            statements += [way_out] if way_out else []
            continue
        several = leaving and draw.random() < 0.6
        statement = effects.effect(draw, a, b, name) if several else draw.choice(pool).format(a=a, b=b, n=name)
        if forbidden.search(statement):
            continue
        statements.append(statement)
        made.append(name)
    statements.append(f"h = {made[-1]}" if draw.random() < 0.2 else f"h = ({made[-1]}).tanh() + {made[0]} * 0.1")
    return tuple(statements)


FAULTS = (
    "raise ValueError('of the user')", "{{}}['missing']", "[][3]", "1 // 0", "assert False, 'of the user'",
    "wf.ones(3) @ wf.ones(4)", "wf.cat([wf.ones(2, 3), wf.ones(2, 2)])", "F.embedding(wf.tensor([99]), table)",
    "table[99]", "wf.linalg.inv(uu * 0)", "wf.ones(2).reshape(5)", "F.nll_loss(table, wf.full((20,), 99))",
    "wf.ones(3).sum(4)", "table[wf.tensor([99])]", "wf.ones(2, 2).item()", "bool(wf.ones(3))", "wf.ones(2).nope",
    "wf.linalg.cholesky(uu * 0 - 1)", "wf.zeros(0).max()", "int(wf.tensor(float('nan')))",
)  # fmt: skip


def with_fault(seed, leaving=False):
    """A program in which one example fails somewhere, and the number of that example."""
    draw = random.Random(seed)
    program = formed(draw, seed, leaving)
    failing = draw.randrange(program.count)
    fault = draw.choice(FAULTS).format()
    number = draw.randrange(len(program.places))
    name, statements = program.places[number]
    at = draw.randint(0, len(statements))
    if fault[0] in "wFt" and draw.random() < 0.5:
        fault = f"float(({fault}).sum())"
    changed = (name, (*statements[:at], f"if e.index == {failing}:\n    {fault}", *statements[at:]))
    places = (*program.places[:number], changed, *program.places[number + 1 :])
    # Its own memory: it must not matter who comes to a place first. And gradients are asked for inside.
    choices = tuple((what, "{}" if what == "memory" else choice) for what, choice in program.choices)
    way = "map" if program.way == "no_grad" else program.way
    return replace(program, places=places, choices=choices, way=way, ask="nothing"), failing


def with_helpers(seed, leaving=False):
    """A program that walks an example and calls helpers: functions, closures, methods."""
    draw = random.Random(seed)
    return replace(formed(draw, seed, leaving), helpers=draw.choice(list(STYLES)))


# -- free programs ---------------------------------------------------------------------------------------------


class Attempt:
    """A program so far, going on in one example."""

    def __init__(self, writer, example):
        self.writer, self.example = writer, example
        self.begin()

    def begin(self):
        """From the start: all statements taken so far."""
        world = self.writer.program().world()
        e = world.examples[self.example]
        self.names = others.NAMES | NAMES | world.names()
        self.names |= {"e": e, "x0": e.m, "x1": e.x, "x2": e.shared, "k": e.k}
        # Only one of all examples may write here.
        self.shared = [world.c0, world.c1, world.b, world.w, world.u, world.uu, world.table, e.shared]
        self.shared += [world.things.s1, world.things.p0]
        wf.manual_seed(3)
        for statement in self.writer.statements:
            self.step(statement)

    def step(self, statement):
        """Run a statement; whether it went well and left alone what others see."""
        before = [t._version for t in self.shared]
        if statement.startswith("if "):
            statement = statement.replace("    return ", "    _ = ")
        try:
            exec(compile(statement, "<statement>", "exec"), self.names)
        except Exception:
            return False
        return self.writer.leaving or before == [t._version for t in self.shared]


class FreeWriter:
    """Writes one free program."""

    def __init__(self, draw, seed, leaving=False):
        self.draw = draw
        self.leaving = leaving
        self.count = 0
        self.setting = setting(draw, seed, leaving) | {"count": draw.choice((2, 3, 4, 5))}
        self.statements = []
        self.result = "None"

    def program(self):
        """What is written so far."""
        return Program("free", (("body", tuple(self.statements)),), (("result", self.result),), **self.setting)

    def write(self):
        """The program."""
        kinds = [(patterns, True) for patterns, weight in EXPRESSIONS for _ in range(weight)]
        kinds += [(patterns, False) for patterns, weight in STATEMENTS for _ in range(weight)]
        if self.leaving:
            kinds += [(effects.FREE, False)] * 20 + [(others.GRADIENTS, False)] * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.attempts = [Attempt(self, i) for i in range(self.setting["count"])]
            length = self.draw.randint(2, 9)
            for _ in range(2 * length):
                patterns, is_expression = self.draw.choice(kinds)
                self.add(self.expression(patterns) if is_expression else self.statement(patterns))
                if len(self.statements) == length:
                    break
            names = {key: self.any() for key in "abc"}
            self.result = self.draw.choice(RESULTS).format(**names)
        return self.program()

    def add(self, statement):
        """Take a statement into the program if it fits every example."""
        if all([attempt.step(statement) for attempt in self.attempts]):
            self.statements.append(statement)
            return
        # It may have written half of what it wanted to.
        for attempt in self.attempts:
            attempt.begin()

    def fresh(self):
        self.count += 1
        return f"v{self.count - 1}"

    def tensors(self):
        """The real tensors of the program that are worth going on with, by name."""
        found = {}
        for name, t in self.attempts[0].names.items():
            if name[0] in "vxc" and name[1:].isdigit() and isinstance(t, wf.Tensor) and t.is_floating_point():
                if t.numel() <= 150 and t.dim() <= 4 and float(np.abs(t.detach().numpy()).max(initial=0)) < 1e3:
                    found[name] = t
        return dict(sorted(found.items(), key=lambda item: ("cxv".find(item[0][0]), int(item[0][1:]))))

    def any(self):
        """Some tensor, rather a young one."""
        names = list(self.tensors())
        return self.draw.choice(names if self.draw.random() < 0.4 else names[-3:])

    def mate(self, a):
        """A tensor that broadcasts with `a`."""
        shape = self.tensors()[a].shape
        pairs = lambda t: zip(reversed(t.shape), reversed(shape), strict=False)
        return self.draw.choice([n for n, t in self.tensors().items() if all(1 in p or p[0] == p[1] for p in pairs(t))])

    def fill(self, pattern, **more):
        """A statement or expression with its names filled in."""
        a = self.any()
        if "{c}" in pattern:
            more["c"] = self.draw.choice(effects.FREE_CONDITIONS).format(a=a, b=a)
        if "{t}" in pattern:
            more["t"] = self.draw.choice(others.TARGETS).format(a=a)
        return pattern.format(a=a, b=self.mate(a), l=self.draw.choice(("x0", "x1", "x2", "c1")), **more)

    def expression(self, patterns):
        """A new name for something made."""
        return f"{self.fresh()} = {self.fill(self.draw.choice(patterns))}"

    def statement(self, patterns):
        """A whole statement; a write is sometimes not recorded."""
        made = self.fill(self.draw.choice(patterns), n=self.fresh(), o=self.fresh())
        quietly = patterns is others.WRITES and self.draw.random() < 0.4
        return "with wf.no_grad():\n    " + made if quietly else made
