"""Writes random programs, statement by statement, while PyTorch runs them: see `programs.py`."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.oracle.program_parts import BINARY, MORE, RESHAPES, UNARY, WRITES, WRITES_ALONE
from tests.oracle.programs import DELIBERATE, Run, Seen, is_final, seen


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, length: int) -> None:
        self.draw = random.Random(seed)
        self.run = Run(torch)
        self.length = length
        self.statements: list[str] = []
        self.errors: list[Exception | None] = []
        self.count = 0
        self.turned: set[str] = set()  # tensors that took another shape in place
        self.stretched: set[str] = set()  # views in which several elements share memory, and views of those
        self.ended = False

    def write(self) -> tuple[list[str], Seen]:
        """The program, and what PyTorch made of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                self.add(f"{self.fresh()} = {self.leaf()}")
            kinds = [kind for kind, weight in _KINDS for _ in range(weight)]
            while len(self.statements) < self.length and not self.ended:
                statement = self.draw.choice(kinds)(self)
                if statement is not None:
                    self.add(statement)
            self.finish()
        return self.statements, seen(self.run, self.errors)

    def add(self, statement: str) -> None:
        """Take a statement into the program, unless it makes no sense here or is one the two agree to differ on."""
        before = set(self.run.names)
        error = self.run.step(statement)
        if error is not None:
            text = str(error)
            nonsense = not isinstance(error, RuntimeError) or not any(w in text for w in _TELLING)
            if nonsense or any(w in text for w in DELIBERATE):
                for name in set(self.run.names) - before:
                    del self.run.names[name]
                return
        self.statements.append(statement)
        self.errors.append(error)
        self.ended = error is not None and is_final(statement)
        for name, t in self.run.tensors().items():
            if t.dtype is not torch.float64 or t.numel() > 200 or t.dim() > 4 or _spoilt(t):
                del self.run.names[name]
                self.statements.append(f"del {name}")
                self.errors.append(None)

    def finish(self) -> None:
        """At the end, the gradient of every tensor by every leaf, and one backward pass."""
        leaves = [n for n, t in self.run.tensors().items() if t.is_leaf and t.requires_grad]
        others = [n for n, t in self.run.tensors().items() if t.requires_grad]
        if not leaves or self.ended:
            return
        for name in others:
            self.add(
                f"found = [*globals().get('found', ()), *gradients({name}, [{', '.join(leaves)}], retain_graph=True)]"
            )
        self.add(self.backward())

    # -- what to name ----------------------------------------------------------------------------------------

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count - 1}"

    def any(self) -> str:
        """Some tensor, rather a young one."""
        names = list(self.run.tensors())
        return self.draw.choice(names if self.draw.random() < 0.6 else names[-3:])

    def value(self, name: str) -> Any:
        return self.run.names[name]

    def mate(self, a: str, *, into: bool = False) -> str:
        """A tensor that broadcasts with `a`; with `into`, to its shape."""
        shape = self.value(a).shape
        fitting = [n for n, t in self.run.tensors().items() if _broadcasts(t.shape, shape, into)]
        if fitting and self.draw.random() < 0.8:
            return self.draw.choice(fitting)
        return self.leaf(self.shrunk(tuple(shape)))

    def shrunk(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to the given one."""
        cut = shape[self.draw.choice((0, 0, 0, 1)) :]
        return tuple(n if self.draw.random() < 0.85 else 1 for n in cut)

    def leaf(self, shape: tuple[int, ...] | None = None) -> str:
        if shape is None:
            shape = self.draw.choice(((2, 3), (3, 3), (4,), (3,), (2, 2, 3), (), (1, 3), (3, 1), (6,), (4, 3), (2, 0)))
        return f"new({self.draw.randrange(10**6)}, {shape}, {self.draw.random() < 0.6})"

    # -- statements ------------------------------------------------------------------------------------------

    def make(self) -> str:
        new = self.leaf() if self.draw.random() < 0.7 else f"{self.any()}.detach().clone().requires_grad_()"
        return f"{self.fresh()} = {new}"

    def unary(self) -> str:
        a = self.any()
        call = self.draw.choice(UNARY).replace("t.shape", f"{a}.shape")
        return f"{self.fresh()} = {a}.{call}"

    def binary(self) -> str:
        a = self.any()
        return f"{self.fresh()} = {self.draw.choice(BINARY).format(a=a, b=self.mate(a))}"

    def matmul(self) -> str | None:
        a = self.any()
        shape = self.value(a).shape
        if not shape:
            return None
        fitting = [n for n, t in self.run.tensors().items() if t.dim() and t.shape[max(t.dim() - 2, 0)] == shape[-1]]
        b = self.draw.choice(fitting) if fitting else self.leaf((shape[-1], 2))
        if len(shape) > 2 or (b in fitting and self.value(b).dim() > 2):
            b += ".clone()"  # PyTorch may keep the operand or a copy of it
        return f"{self.fresh()} = {a}{'.clone()' if 'clone' in b else ''} @ {b}"

    def view(self) -> str | None:
        a, name = self.any(), self.fresh()
        look = self.look(a)
        if a in self.stretched or ".expand" in look or ".unfold" in look:
            self.stretched.add(name)
        if a in self.turned:
            self.turned.add(name)
        return f"{name} = {a}{look}"

    def look(self, a: str) -> str:
        """Some view of `a`."""
        draw, shape = self.draw, tuple(self.value(a).shape)
        dims = len(shape)
        choices = [".unsqueeze(0)", ".unsqueeze(-1)", ".squeeze()", ".view(-1)", "[None]", "[...]", ".reshape(-1)"]
        choices += [".detach()", ".flatten()", f".view({shape})", f".expand(2, *{shape})"]
        if dims:
            d = draw.randrange(dims)
            n = shape[d]
            lo = draw.randrange(n + 1)
            hi = draw.randrange(lo, n + 1)
            at = ":, " * d
            order = draw.sample(range(dims), dims)
            choices += [f".transpose(0, {d})", f".permute({order})", f".movedim({d}, 0)", ".mT", f"[..., {lo}:]"]
            choices += [f"[{at}{lo}:{hi}]", f"[{at}::2]", f"[{at}1:]", f".narrow({d}, {lo}, {hi - lo})"]
            choices += [f".chunk(2, {d})[0]", f".tensor_split(2, {d})[-1]"]
            if min(shape):
                choices.append(f".unfold({d}, {max(1, n // 2)}, 1)")
            if n:
                i = draw.randrange(-n, n)
                one = [f"[{at}{i}]", f".select({d}, {i})", f".unbind({d})[{i}]", f"[{at}{i}:, None]", f"[..., {i}]"]
                choices += one * 2
            if n == 1:
                choices += [f".squeeze({d})"] * 4
            if n % 2 == 0:
                choices.append(f".unflatten({d}, (2, -1))")
        if dims >= 2:
            choices += [f".diagonal({draw.randrange(-1, 2)})", ".diagonal(0, -2, -1)", "[0, 1:]", "[:, None, 0]"] * 2
        return draw.choice(choices)

    def several(self) -> str | None:
        a = self.any()
        if not self.value(a).dim() or not 0 < self.value(a).shape[0] < 4:
            return None
        names = [self.fresh() for _ in range(self.value(a).shape[0])]
        if a in self.stretched:
            self.stretched.update(names)
        return f"{', '.join(names)}, = {a}.unbind()"

    def pick(self, a: str) -> str:
        """Some advanced index for `a`."""
        shape = tuple(self.value(a).shape)
        if not shape or self.draw.random() < 0.2:
            return f"{a} > {self.draw.choice((-0.2, 0.1, 0.4))}"
        d = self.draw.randrange(len(shape))
        at, n = ":, " * d, shape[d]
        some = [self.draw.randrange(-n, n) for _ in range(self.draw.randrange(4))] if n else []
        where = f"m.tensor({some}, dtype=m.int64)"
        choices = [f"{at}{where}"]
        if len(shape) > 1 and min(shape):
            pairs = [[self.draw.randrange(n) for _ in range(2)] for n in shape]
            first, second, last = (f"m.tensor({pairs[i]})" for i in (0, 1, -1))
            choices += [f"{first}, {second}", f"{first}, ..., {last}", f"{first}, 0", f"{first}, 1:", f"None, {first}"]
            choices.append(f"{a}[:, 0] > 0")
        return self.draw.choice(choices)

    def indexed(self) -> str | None:
        a = self.any()
        if self.draw.random() < 0.7:
            return f"{self.fresh()} = {a}[{self.pick(a)}]"
        shape = tuple(self.value(a).shape)
        if not shape or not min(shape):
            return None
        d = self.draw.randrange(len(shape))
        rows = [self.draw.randrange(shape[d]) for _ in range(3)]
        return self.draw.choice((
            f"{self.fresh()} = {a}.index_select({d}, m.tensor({rows}))",
            f"{self.fresh()} = {a}.gather({d}, m.argsort({a}.detach(), {d}, stable=True))",
            f"{self.fresh()} = {a}.take(m.tensor({rows}))",
            f"{self.fresh()} = m.masked_select({a}, {a} > 0)",
            f"{self.fresh()} = m.take_along_dim({a}, m.argsort({a}.detach(), {d}, stable=True), {d})",
        ))  # fmt: skip

    def joined(self) -> str | None:
        a = self.any()
        same = [n for n, t in self.run.tensors().items() if t.shape == self.value(a).shape]
        parts = ", ".join(self.draw.choice(same) for _ in range(self.draw.randrange(1, 4)))
        return f"{self.fresh()} = m.{self.draw.choice(('cat', 'stack'))}([{parts}], {self.draw.choice((0, -1))})"

    def write_in_place(self) -> str | None:
        a = self.any()
        into = a if self.draw.random() < 0.7 else a + self.look(a)
        if self.draw.random() < 0.55:
            b = self.mate(a, into=True)
            if b != into and self.overlap(into, b):
                return None
            call = self.draw.choice(WRITES).format(a=a, b=b)
        else:
            call = self.draw.choice(WRITES_ALONE).format(a=a)
            into = a if a in call else into
        allowed = self.may_write(a, call) and (into == a or (a not in self.stretched and self.may_write(into, call)))
        return f"{into}.{call}" if allowed else None

    def overlap(self, target: str, source: str) -> bool:
        """PyTorch reads and writes within one memory by turns; Wayfare reads first."""
        a, b = self.probe(target), self.probe(source)
        return a is not None and b is not None and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    def may_write(self, target: str, call: str = "") -> bool:
        """Whether PyTorch lets memory be written that several elements share depends on the op; Wayfare never does."""
        if "index_fill" in call and self.value(target.partition(".")[0].partition("[")[0]).numel() == 0:
            return False
        if target not in self.stretched and ".expand" not in target and ".unfold" not in target:
            return True
        t = self.probe(target)
        return call.startswith(("add_", "mul_", "exp_")) and t is not None and t.numel() > 1 and not any(t.stride())

    def reshape_in_place(self) -> str | None:
        a = self.any()
        if self.value(a).retains_grad:
            return None  # whether its gradient has the old shape or the new one is an accident
        self.turned.add(a)
        return f"{a}.{self.draw.choice(RESHAPES)}"

    def assign(self) -> str | None:
        a = self.any()
        draw = self.draw
        if draw.random() < 0.5:
            look = self.look(a)
            index = look if look.startswith("[") else "[...]"
        else:
            index = f"[{self.pick(a)}]"
        part = self.probe(f"{a}{index}")
        if part is None or not self.may_write(a):
            return None
        value = self.draw.choice(("0.25", self.fitting(part), self.fitting(part), self.fitting(part)))
        how = draw.choice(("=", "=", "+=", "*="))
        if value != "0.25" and (self.overlap(a, value) or (how != "=" and not self.value(a).requires_grad)):
            return None
        return f"{a}{index} {how} {value}"

    def fitting(self, part: Any) -> str:
        """A tensor that can be written into `part`."""
        found = [n for n, t in self.run.tensors().items() if _broadcasts(t.shape, part.shape, True)]
        if found and self.draw.random() < 0.7:
            return self.draw.choice(found)
        return self.leaf(self.shrunk(tuple(part.shape)))

    def probe(self, expression: str) -> Any:
        try:
            return eval(expression, self.run.names)
        except (RuntimeError, IndexError):
            return None

    def scatter(self) -> str | None:
        a = self.any()
        shape = tuple(self.value(a).shape)
        if not shape or not min(shape) or not self.may_write(a):
            return None
        d = self.draw.randrange(len(shape))
        rows = [self.draw.randrange(shape[d]) for _ in range(2)]
        source = self.leaf((*shape[:d], 2, *shape[d + 1 :]))
        unique = sorted(set(rows))
        copied = self.leaf((*shape[:d], len(unique), *shape[d + 1 :]))
        order = f"m.argsort({a}.detach(), {d}, stable=True)"
        if d == 0 and self.draw.random() < 0.2:
            return f"{a}.index_put_((m.tensor({rows}),), {self.leaf((2, *shape[1:]))}, accumulate=True)"
        return self.draw.choice((
            f"{a}.index_add_({d}, m.tensor({rows}), {source}, alpha=0.5)",
            f"{a}.index_copy_({d}, m.tensor({unique}), {copied})",
            f"{a}.scatter_add_({d}, {order}, {self.leaf(shape)})",
            f"{a}.scatter_({d}, {order}, {self.leaf(shape)})",
            f"{a}.masked_scatter_({a} > 0, {self.leaf(shape)})",
        ))  # fmt: skip

    def quietly(self) -> str | None:
        """A write that is not recorded."""
        write = self.draw.choice((Writer.write_in_place, Writer.assign))(self)
        return None if write is None else f"with m.no_grad():\n    {write}"

    def branch(self) -> str:
        a, b, c = self.any(), self.any(), self.fresh()
        return f"if float({a}.sum()) > 1e-6:\n    {c} = {b} * 2\nelse:\n    {c} = {b}.sin()"

    def loop(self) -> str:
        a, c = self.any(), self.fresh()
        b = self.mate(a, into=True)
        if self.value(a).dim() and self.draw.random() < 0.5:
            rows = range(1, self.value(a).shape[0])
            return f"{c} = {a}.clone()\nfor i in {rows}:\n    {c}[i] = {c}[i - 1].sin() + {a}[i]"
        return f"{c} = {a}\nfor _ in range(3):\n    {c} = ({c} * {b}).tanh() + {a}"

    def watch(self) -> str | None:
        a = self.any()
        if self.value(a)._is_view() or a in self.turned:
            return None  # PyTorch forgets the hooks of a view when its memory is written
        calls = ("register_hook(lambda g: g * 2)", "retain_grad()", "register_hook(lambda g: None)")
        return f"{a}.{self.draw.choice(calls)}"

    def more(self) -> str | None:
        a = self.any()
        template = self.draw.choice(MORE)
        if "grad_fn.register" in template and (self.value(a)._is_view() or a in self.turned):
            return None  # PyTorch makes other nodes for views when their memory is written
        if template.startswith("Doubled") and not self.may_write(a):
            return None
        b = self.mate(a) if "{b}" in template else ""
        if "inputs=" in template and b in self.turned:
            return None
        if "t_()" in template or "transpose_" in template:
            self.turned.add(f"t{self.count}")
        names = {"n": self.fresh(), "o": self.fresh(), "a": a, "b": b}
        if a in self.stretched:
            self.stretched.update((names["n"], names["o"]))
        return template.format(**names)

    def touch_grad(self) -> str:
        a = self.any()
        return self.draw.choice((
            f"{a}.grad = None",
            f"if {a}.is_leaf and {a}.grad is not None:\n    {a}.grad.mul_(3)",
            f"if {a}.is_leaf and {a}.grad is not None:\n    {a}.grad.detach().zero_()",
        ))  # fmt: skip

    def backward(self) -> str:
        a = self.any()
        shape = tuple(self.value(a).shape)
        retain = self.draw.choice((", retain_graph=True", ", retain_graph=True", ", create_graph=True", ""))
        return f"{a}.backward(new({self.draw.randrange(10**6)}, {shape}){retain})"

    def second_order(self) -> str | None:
        a, b = self.any(), self.any()
        if not (self.value(a).requires_grad and self.value(b).requires_grad):
            return None
        if b in self.turned or (self.value(b)._is_view() and self.value(b)._version):
            return None  # PyTorch takes a view for another tensor once its memory was written
        return f"{self.fresh()} = derivative({a}, {b})"


def _spoilt(t: Any) -> bool:
    """PyTorch refuses to look at a part from `unbind` or `split` once its base was written."""
    try:
        t.is_leaf
    except RuntimeError:
        return True
    return False


def _broadcasts(a: Any, b: Any, into: bool) -> bool:
    try:
        shape = torch.broadcast_shapes(a, b)
    except RuntimeError:
        return False
    return shape == b if into else True


# Errors that tell something about autograd and memory; the others only say that a random statement was nonsense.
_TELLING = (
    "inplace", "in-place", "leaf Variable", "second time", "does not require grad", "requires no grad", "single memory",
    "don't require grad", "retain_grad", "view", "requires gradient",
)  # fmt: skip

_KINDS: list[tuple[Callable[[Writer], str | None], int]] = [
    (Writer.make, 2), (Writer.unary, 6), (Writer.binary, 7), (Writer.matmul, 2), (Writer.view, 9), (Writer.several, 1),
    (Writer.indexed, 3), (Writer.joined, 2), (Writer.write_in_place, 9), (Writer.reshape_in_place, 1),
    (Writer.assign, 5), (Writer.scatter, 1), (Writer.quietly, 2), (Writer.branch, 1), (Writer.loop, 1),
    (Writer.watch, 2), (Writer.touch_grad, 1), (Writer.backward, 1), (Writer.second_order, 1), (Writer.more, 12),
]  # fmt: skip
