"""Writes random programs for `wf.compile`, statement by statement, while plain Wayfare runs them."""

from __future__ import annotations

import random
import warnings

import numpy as np

import wayfare as wf
from tests.compiler import program_parts as parts
from tests.compiler import program_themes as themes
from tests.compiler.program_changes import CHANGES
from tests.compiler.program_world import CALLS, OPTIMIZERS, World
from tests.compiler.programs import SCHEDULE, STEADY, Program, plainly

SHAPES = (
    "(b,)", "(a, b)", "(a, b)", "(b, b)", "(a, b, c)", "()", "(b, 1)", "(1, b)", "(c, b)", "(c,)", "(2, 3)", "(0, b)",
)  # fmt: skip
# How an input comes about: {l} is its leaf, {p} the input before it.
INPUTS = ("{l}", "{l}", "{l}", "{l} * 1", "({l} * 1)[..., :]", "{l}.mT", "{l}.detach()")
BESIDE = ("{p}", "{p}", "{p}[..., 1:]", "{p}.transpose(0, -1)", "{p}.detach()", "{p}[:1]", "{p}.view(-1)")
# Inputs that are parts of memory which lives through all calls, at places that move from call to call.
MOVING = (
    "pool[number % 4]", "pool[number % 4 : number % 4 + 2]", "pool.data[number % 3]", "pool[:, number % 3]", "c0", "c1",
    "c1.detach()", "c1.data[number % 2]", "c2", "slots[number % 2]", "pool.view(-1)[number % 5 : number % 5 + 3]",
    "wf.from_numpy(array[number % 2])", "kept[-1] if kept else pool[0]", "c1[number % 2]", "c1 * 1", "c3[...]",
    "pool[number // 3 % 4]", "pool[number // 4 : number // 4 + 2]", "c0.data", "pool.detach()[number // 2 % 4]",
)  # fmt: skip
EXPRESSIONS = (
    (parts.UNARY, 4), (parts.REDUCE, 3), (parts.BINARY, 5), (parts.MATMUL, 2), (parts.VIEWS, 5), (parts.INDEX, 2),
    (parts.JOIN, 2), (parts.RANDOM, 1),
)  # fmt: skip
# Statements of a theme, among the others, which weigh 38.
OF_A_THEME = 14
STATEMENTS = ((parts.WRITES, 6), (parts.CONTROL, 5), (parts.GRADIENTS, 3), (parts.STATE, 1))
# A hook on an argument, at some of the calls.
HOOKED = "if {x}.requires_grad and number % 5 > 2: {x}.{by}"
BY = (
    "register_hook(lambda g: g * 2)", "register_hook(lambda g: heard.append(float(g.sum())))",
    "register_hook(lambda g: None)", "retain_grad()",
)  # fmt: skip
CONTAINERS = ("xs", "xs['rest']", "(xs, {a})", "[xs['rest'], {a}]", "{{'in': xs, 'out': {a}}}") * 2
RESULTS = (
    "{a}", "({a}, {b})", "[{a}, {a}]", "{{'one': {a}, 'two': [{b}, {c}]}}", "({a}, None, k, 'text', ({b},))",
    "{a}, {a}.view(-1) if {a}.is_contiguous() else {b}", "[{a}.detach(), {b}, {c}]", "({a}, float({b}.sum()))",
    "({a}, x0)", "(x0, {a}[None])", "(c1, {a})", "{a} * 2", "None", "{a} + {a}", "({a}, {b}, {c})",
    "({a}, {a}.shape)", "{a}.sum()", "({a}.sum() + {b}.sum())", "({a}, settings)", "(log, {a})", "[keeper, {a}]",
)  # fmt: skip


class Attempt:
    """A program so far, going on in one kind of call."""

    def __init__(self, writer, how):
        self.writer, self.how = writer, how
        self.begin()

    def begin(self):
        """From the start: all statements taken so far."""
        program = self.writer.program()
        world = World(program, plainly)
        self.names = world.given(self.how)
        self.names |= {"k": CALLS[self.how].get("k", 2), "r": 0.5}
        wf.manual_seed(3)
        for statement in program.statements:
            self.step(statement)

    def step(self, statement):
        """Run a statement; whether it went well."""
        try:
            exec(compile(statement, "<statement>", "exec"), self.names)
        except Exception:
            return False
        return True


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        self.count = 0
        self.dtype = draw.choice(("float64", "float64", "float32"))
        self.inputs = draw.randint(1, 3)
        self.given = []
        self.themes = draw.sample(list(themes.THEMES), min(len(themes.THEMES), draw.choice((0, 1, 1, 2, 2, 3))))
        self.form = {
            "result": "None", "large": draw.random() < 0.12, "trains": draw.random() < 0.25,
            "numbers": "numbers" in self.themes or draw.random() < 0.1, "optimizer": draw.choice(list(OPTIMIZERS)),
        }  # fmt: skip
        self.statements = []
        for i in range(self.inputs):
            self.give(i)

    def write(self):
        """The program."""
        draw = self.draw
        kinds = [(patterns, True) for patterns, weight in EXPRESSIONS for _ in range(weight)]
        kinds += [(patterns, False) for patterns, weight in STATEMENTS for _ in range(weight)]
        kinds += [(parts.TRAINING, False)] * (8 if self.form["trains"] else 0)
        kinds += [(themes.MODEL, False)] * (10 if self.form["trains"] else 0)
        for theme in self.themes:
            kinds += [(themes.THEMES[theme], False)] * (OF_A_THEME if themes.THEMES[theme] else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.attempts = [Attempt(self, how) for how in ("first", "values", "sizes")]
            length = draw.randint(1, 8)
            for _ in range(2 * length):
                patterns, is_expression = draw.choice(kinds)
                made = self.expression(patterns) if is_expression else self.statement(patterns)
                self.add(made, may_fail=patterns is themes.ERRORS)
                if len(self.statements) == length:
                    break
            names = {key: self.any() for key in "abc"}
            self.leave_early()
            nested = draw.random() < 0.3
            self.form |= {
                "result": draw.choice(RESULTS + (CONTAINERS if nested else ())).format(**names), "nested": nested,
                "closure": draw.random() < 0.5, "outside": self.asked(), "schedule": self.schedule(),
            }  # fmt: skip
        return self.program()

    def program(self):
        """What is written so far."""
        return Program(tuple(self.given), tuple(self.statements), inputs=self.inputs, dtype=self.dtype, **self.form)

    def asked(self):
        """What is asked of the results."""
        if "unused" in self.themes:
            return self.draw.choice(("some", "last", "each"))
        if "second" in self.themes:
            return self.draw.choice(("second", "create"))
        usual = "backward", "backward", "backward", "second", "nothing", "some", "last", "each", "overwritten"
        return self.draw.choice(usual)

    def schedule(self):
        """The calls, and what is changed between them."""
        draw = self.draw
        calls = list(STEADY if self.themes and draw.random() < 0.7 else SCHEDULE)
        wanted = [theme for theme in (*self.themes, *(["model"] * self.form["trains"])) if CHANGES[theme]]
        for _ in range(draw.randint(2, 7) if wanted else 0):
            change = draw.choice(CHANGES[draw.choice(wanted)]).format(i=draw.randint(0, 3))
            calls.insert(draw.randint(1, len(calls) - 1), change)
        return tuple(calls)

    def leave_early(self):
        """Sometimes a way out in the middle, taken when a value says so."""
        if self.draw.random() < 0.15 and self.statements:
            at = self.draw.randint(1, len(self.statements))
            self.statements.insert(at, f"if x0.sum() > {self.draw.choice((-0.5, 0.5))}:\n    return x0 * 2, k")

    def give(self, number):
        """Write how an input is made: by itself, or out of the memory of the one before."""
        draw = self.draw
        dtype = "int64" if draw.random() < 0.12 else self.dtype if draw.random() < 0.9 else "float32"
        leaf = f"l{number} = new({number}, {draw.choice(SHAPES)}, {dtype!r}, {draw.random() < 0.55})"
        made = f"x{number} = " + draw.choice(INPUTS).format(l=f"l{number}")
        beside = f"x{number} = " + draw.choice(BESIDE).format(p=f"x{number - 1}")
        ways = [[leaf, made], [leaf, f"x{number} = l{number}"]]
        if draw.random() < (0.5 if "aliases" in self.themes else 0.1):
            ways.insert(0, [f"x{number} = {draw.choice(MOVING)}"])
        elif number and draw.random() < 0.25:
            ways.insert(0, [beside])
        if draw.random() < 0.3:
            ways = [[s.replace("= new(", "= held(") for s in way] for way in ways]
        if "hooks" in self.themes and draw.random() < 0.5:
            ways = [[*way, HOOKED.format(x=f"x{number}", by=draw.choice(BY))] for way in ways]
        for way in ways:
            trial = Program((*self.given, *way), (), "None", number + 1)
            try:
                World(trial, plainly).given("first")
                World(trial, plainly).given("sizes")
            except (RuntimeError, IndexError):
                continue
            self.given += way
            return

    def add(self, statement, may_fail=False):
        """Take a statement into the program if it fits: goes well, or fails in some of the calls if it may."""
        if statement is None:
            return
        went = [attempt.step(statement) for attempt in self.attempts]
        if (any(went) and may_fail) or (went[0] and (all(went) or self.draw.random() < 0.1)):
            self.statements.append(statement)
        else:
            # It may have written half of what it wanted to.
            for attempt in self.attempts:
                attempt.begin()

    # -- what to name ----------------------------------------------------------------------------------------

    def fresh(self):
        self.count += 1
        return f"v{self.count - 1}"

    def tensors(self):
        """The real tensors of the program that are worth going on with, by name."""
        found = {}
        largest = 20_000 if self.form["large"] else 150
        for name, t in sorted(self.attempts[0].names.items(), key=_age):
            if name[0] in "vxc" and name[1:].isdigit() and isinstance(t, wf.Tensor) and t.is_floating_point():
                if t.numel() <= largest and t.dim() <= 4 and float(np.abs(t.detach().numpy()).max(initial=0)) < 1e3:
                    found[name] = t
        return found

    def any(self):
        """Some tensor, rather a young one."""
        names = list(self.tensors())
        return self.draw.choice(names if self.draw.random() < 0.4 else names[-3:])

    def mate(self, a):
        """A tensor that broadcasts with `a`."""
        shape = self.tensors()[a].shape
        fitting = [n for n, t in self.tensors().items() if _broadcasts(t.shape, shape)]
        return self.draw.choice(fitting)

    def fill(self, pattern, **more):
        """A statement or expression with its names filled in."""
        a = self.any()
        if "{t}" in pattern:
            more["t"] = self.draw.choice(parts.TARGETS).format(a=a)
        outside = [f"x{i}" for i in range(self.inputs)] + ["c1"]
        return pattern.format(a=a, b=self.mate(a), l=self.draw.choice(outside), **more)

    def expression(self, patterns):
        """A new name for something made."""
        return f"{self.fresh()} = {self.fill(self.draw.choice(patterns))}"

    def statement(self, patterns):
        """A whole statement; a write is sometimes not recorded."""
        made = self.fill(self.draw.choice(patterns), n=self.fresh(), o=self.fresh())
        quietly = patterns is parts.WRITES and self.draw.random() < 0.4
        return "with wf.no_grad():\n    " + made if quietly else made


def _age(item):
    """Captured things first, then the inputs, then what was made, in the order it was made."""
    name = item[0]
    return ("cxv".find(name[0]), int(name[1:])) if name[1:].isdigit() else (-2, 0)


def _broadcasts(first, second):
    pairs = zip(reversed(first), reversed(second), strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in pairs)
