"""Random programs that branch and loop on values, along recorded paths: results and gradients are those of the loop."""

import os
import random

import numpy as np
import pytest

import wayfare as wf
from wayfare.batch.paths import choose, functions

COUNT = int(os.environ.get("WAYFARE_PROGRAMS", "60"))
MANY = int(os.environ.get("WAYFARE_PATH_PROGRAMS", "2000"))  # of the long run
TOGETHER = 20
SIZE = 4

EXPRESSIONS = [
    "({a} * {w}).tanh()", "({a} @ {W}).sigmoid()", "({W} @ {a}) * 0.5", "{a} + 0.3 * {b}", "{a} * 0.7",
    "{a} - {b} * 0.5",
    "{a}.softmax(0)", "({a} - {a}.mean()) / ({a}.abs().sum() + 1)", "wf.cat([{a}[2:], {b}[:2]])", "{a}.flip(0)",
    "wf.where({a} > {b}, {a}, {b} * 0.5)", "wf.maximum({a}, {w})", "{a}.detach() * {b}", "{a}.clamp(-1, 0.8)",
    "{a} * {b}.max()", "F.layer_norm({a}, (4,))", "{a}[[1, 0, 3, 2]]", "wf.stack([{a}, {b}]).mean(0)",
    "{a}.cumsum(0) * 0.3",
    "{a}.reshape(2, 2).T.reshape(4)", "{a}.sin() + {w}", "{a}.abs().sqrt() * 0.5", "{a} / (1 + {b} * {b})",
    "{a}[{b}.argmax()] * {b}", "F.gelu({a})", "{a}.expand(3, 4).sum(0) * 0.2", "{a}.sort()[0]",
]  # fmt: skip
CONDITIONS = [
    "{a}.sum() > {c}", "{a}.max() > {b}.mean() + {c}", "{a}[0] > {b}[1]", "({a} > {c}).any()", "int({a}.argmax()) < 2",
    "{a}.norm() > {c} + 0.5", "not ({a} < {b}).all()", "float({a}.abs().max()) > {c}",
]  # fmt: skip
RESULTS = [
    "{a}", "{a}.sum()", "({a}, {b}.mean())", "{{'h': {a}, 'x': x, 'n': n}}", "[{a} * {b}, n]", "{a}[1:]",
    "({a} * {b}).sum() + x[0]",
]  # fmt: skip


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = ["def function(x, y):", "    a, b, n = x * 1, y + 0, 0"]

    def fill(self, pattern):
        names = {"a": self.random.choice("ab"), "b": self.random.choice(["a", "b", "x", "y"]), "w": "w", "W": "W"}
        return pattern.format(c=round(self.random.uniform(-0.6, 0.9), 2), **names)

    def block(self, indent, depth):
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.random()
            pad = "    " * indent
            if kind < 0.5 or depth > 2:
                self.lines.append(f"{pad}{self.random.choice('ab')} = {self.fill(self.random.choice(EXPRESSIONS))}")
            elif kind < 0.7:
                self.lines.append(f"{pad}if {self.fill(self.random.choice(CONDITIONS))}:")
                self.block(indent + 1, depth + 1)
                if self.random.random() < 0.6:
                    self.lines.append(f"{pad}else:")
                    self.block(indent + 1, depth + 1)
            elif kind < 0.85:
                condition = self.fill(self.random.choice(CONDITIONS))
                self.lines += [f"{pad}while n < {self.random.randint(2, 6)} and {condition}:", f"{pad}    n += 1"]
                self.block(indent + 1, depth + 2)
            elif kind < 0.93:
                self.lines += [f"{pad}b = {self.fill('{b}')}.clone()", f"{pad}b[1:3] = {self.fill('{a}')}[:2] * 0.5",
                               f"{pad}b *= 0.9"]  # fmt: skip
            else:
                expression = self.fill(self.random.choice(EXPRESSIONS))
                self.lines += [f"{pad}with wf.no_grad():", f"{pad}    a = {expression} * 1"]

    def program(self):
        self.block(1, 0)
        if self.random.random() < 0.3:
            self.lines += [f"    if {self.fill(self.random.choice(CONDITIONS))}:",
                           f"        return {self.fill(self.random.choice(RESULTS))}"]  # fmt: skip
        self.lines.append(f"    return {self.fill(self.random.choice(RESULTS))}")
        return "\n".join(self.lines)


def tensors_of(result):
    if isinstance(result, wf.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from tensors_of(part)
    elif isinstance(result, dict):
        yield from tensors_of(list(result.values()))


def plain(result):
    """What does not depend on the way it was computed."""
    if isinstance(result, wf.Tensor):
        return "tensor", result.requires_grad, str(result.dtype), tuple(result.shape)
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    return type(result)(plain(part) for part in result) if isinstance(result, (tuple, list)) else result


def told(seed, batch):
    """What the program gives in several maps, and how many examples ran along paths."""
    numbers = np.random.default_rng(seed)
    w, W = (wf.tensor(numbers.standard_normal(s)).requires_grad_() for s in ((SIZE,), (SIZE, SIZE)))
    space = {"wf": wf, "F": wf.nn.functional, "w": w, "W": W}
    exec(Writer(seed).program(), space)
    found, along = [], 0
    for number in range(4):
        columns = [[wf.tensor(numbers.standard_normal(SIZE)) for _ in range(9)] for _ in range(2)]
        if seed % 2:
            for x in columns[0]:
                x.requires_grad_()
        results = wf.map(space["function"], *columns, batch=batch)
        stats = wf.batching.last()
        along += stats.paths.examples if batch and stats is not None and stats.paths is not None else 0
        chosen = results if number % 2 == 0 else results[2:7]
        carrying = [t for t in tensors_of(chosen) if t.requires_grad]
        if carrying:
            sum((t * t).sum() for t in carrying).backward()
        values = [t.detach().numpy() for t in tensors_of(results)]
        grads = [None if t.grad is None else t.grad.numpy().copy() for t in (w, W, *columns[0])]
        w.grad = W.grad = None
        found.append((plain(results), values, grads))
    return found, along


def check(seed):
    got, along = told(seed, True)
    want, _ = told(seed, False)
    where = f"seed {seed}:\n{Writer(seed).program()}"
    for (shape, values, grads), (other_shape, other_values, other_grads) in zip(got, want, strict=True):
        assert shape == other_shape, where
        assert [g is None for g in grads] == [g is None for g in other_grads], where
        for one, other in zip([*values, *grads], [*other_values, *other_grads], strict=True):
            if one is not None:
                np.testing.assert_allclose(one, other, 1e-8, 1e-10, err_msg=where)
    return along


@pytest.fixture(autouse=True)
def planned_at_once(monkeypatch):
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_random_programs(first):
    along = sum(check(seed) for seed in range(first, first + TOGETHER))
    assert along > 4 * TOGETHER  # they do run along paths


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", range(COUNT, MANY, 100))
def test_many_random_programs(first):
    for seed in range(first, first + 100):
        check(seed)
