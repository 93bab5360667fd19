"""What people write for one example: functions that `wf.map` should not run slower than a plain loop does."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.works import Unavailable, resolve

# name → make(m), which gives a function and its examples
MAPS: dict[str, Callable[[Any], tuple[Callable[..., Any], list[Any]]]] = {}
WIDTH = 16
COUNT = 32


def pattern(name: str) -> Callable[[Any], Any]:
    """Enter a pattern under the words a table shows."""

    def enter(make: Any) -> Any:
        MAPS[name] = make
        return make

    return enter


def vectors(m: Any, count: int = COUNT) -> list[Any]:
    """Examples that are vectors."""
    return [m.randn(WIDTH) for _ in range(count)]


def rows(m: Any, count: int) -> list[Any]:
    """Examples of 1, 2, 3, … rows."""
    return [m.randn(n, WIDTH) for n in range(1, count + 1)]


@pattern("a layer and its loss")
def _plain(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)
    return lambda x: layer(x).tanh().sum(), vectors(m)


@pattern("`.numpy()` twice")
def _numpy(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(x: Any) -> float:
        first = layer(x).detach().numpy()
        return float(first.sum() + layer(layer(x)).detach().numpy().sum())

    return f, vectors(m)


@pattern("a leaf of its own")
def _leaf(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)
    return lambda x: (layer(x) + m.zeros(WIDTH).requires_grad_()).tanh().sum(), vectors(m)


@pattern("a tensor hook")
def _hook(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(x: Any) -> Any:
        h = layer(x)
        h.register_hook(lambda g: g * 2)
        return h.tanh().sum()

    return f, vectors(m)


@pattern("1 M elements, 4 examples")
def _large(m: Any) -> Any:
    return lambda x: (x * 2 + 1).tanh().sum(), [m.randn(1_000_000) for _ in range(4)]


@pattern("100,000 elements, 16 examples")
def _middling(m: Any) -> Any:
    return lambda x: (x * 2 + 1).tanh().sum(), [m.randn(100_000) for _ in range(16)]


@pattern("`h[i] = layer(x)` into a buffer")
def _buffer(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(x: Any) -> Any:
        h = m.zeros(4, WIDTH)
        for i in range(4):
            h[i] = layer(x)
        return h.sum()

    return f, vectors(m)


@pattern("attention over 64 lengths")
def _attention(m: Any) -> Any:
    return lambda x: ((x @ x.t()) / 4).softmax(-1).matmul(x).sum(), rows(m, 64)


@pattern("a custom Function")
def _custom(m: Any) -> Any:
    class Square(m.autograd.Function):  # type: ignore[misc]
        """x * x."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            """The square."""
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            """Its gradient."""
            (x,) = ctx.saved_tensors
            return g * 2 * x

    layer = m.nn.Linear(WIDTH, WIDTH)
    return lambda x: Square.apply(layer(x)).sum(), vectors(m)


@pattern("a Linear of its own")
def _own(m: Any) -> Any:
    return lambda x: m.nn.Linear(WIDTH, WIDTH)(x).sum(), vectors(m)


@pattern("batch norm in training")
def _norm(m: Any) -> Any:
    norm = m.nn.BatchNorm1d(WIDTH)
    return lambda x: norm(x).sum(), [m.randn(4, WIDTH) for _ in range(COUNT)]


@pattern("a transformer layer over 32 lengths")
def _transformer(m: Any) -> Any:
    layer = m.nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0)
    return lambda x: layer(x).sum(), rows(m, 32)


@pattern("a mask")
def _mask(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(x: Any) -> Any:
        h = layer(x)
        return h[h > 0].sum()

    return f, vectors(m)


@pattern("one example")
def _one(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)
    return lambda x: layer(x).tanh().sum(), vectors(m, 1)


@pattern("two examples")
def _two(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)
    return lambda x: layer(x).tanh().sum(), vectors(m, 2)


@pattern("a child-sum Tree-LSTM with leaf states of its own")
def _child_sum(m: Any) -> Any:
    nn, d = m.nn, WIDTH
    iou, iou_of, f_x, f_h = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, d)

    def visit(tree: Any, x: Any) -> Any:
        below = [visit(part, x) for part in tree]
        if not below:
            zero = x.detach().new_empty(1, d).fill_(0.0).requires_grad_()
            below = [(zero, x.detach().new_empty(1, d).fill_(0.0).requires_grad_())]
        h, c = m.cat([h for h, _ in below]), m.cat([c for _, c in below])
        i, o, u = (iou(x) + iou_of(h.sum(0))).chunk(3, -1)
        f = (f_h(h) + f_x(x)).sigmoid()
        cell = i.sigmoid() * u.tanh() + (f * c).sum(0)
        return (o.sigmoid() * cell.tanh()).reshape(1, d), cell.reshape(1, d)

    chance = random.Random(0)

    def tree(depth: int) -> list[Any]:
        return [tree(depth - 1) for _ in range(chance.randrange(1, 4))] if depth else []

    examples = [(tree(3), x) for x in vectors(m, 8)]
    return lambda example: visit(*example)[0].sum(), examples


@pattern("a loop until a value")
def _until(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(x: Any) -> Any:
        h = x
        for _ in range(8):
            if h.sum() > 2:
                break
            h = layer(h).tanh() + x
        return h.sum()

    return f, vectors(m)


@pattern("a running total of numbers")
def _total(m: Any) -> Any:
    layer, seen = m.nn.Linear(WIDTH, WIDTH), {"total": 0.0}

    def f(x: Any) -> Any:
        loss = layer(x).tanh().sum()
        seen["total"] += loss.item()
        return loss

    return f, vectors(m)


@pattern("counts in a shared matrix")
def _counts(m: Any) -> Any:
    layer, counts = m.nn.Linear(WIDTH, WIDTH), m.zeros(WIDTH)

    def f(x: Any) -> Any:
        h = layer(x)
        counts[h.argmax()] += 1
        return h.sum()

    return f, vectors(m)


@pattern("an index inside a `try`")
def _try(m: Any) -> Any:
    table = m.nn.Embedding(10, WIDTH)

    def f(n: Any) -> Any:
        try:
            return table(n).sum()
        except IndexError:
            return table.weight.sum()

    return f, [m.tensor(i % 11) for i in range(COUNT)]


@pattern("gradients inside, by autograd.grad")
def _inner(m: Any) -> Any:
    w = m.randn(WIDTH, WIDTH, requires_grad=True)

    def f(x: Any) -> Any:
        (g,) = m.autograd.grad((x @ w).tanh().sum(), [w])
        return (x @ (w - 0.1 * g)).sum()

    return f, vectors(m)


@pattern("an LSTM over sentences")
def _lstm(m: Any) -> Any:
    cell = m.nn.LSTMCell(WIDTH, WIDTH)

    def f(x: Any) -> Any:
        state = m.zeros(WIDTH), m.zeros(WIDTH)
        for row in x:
            state = cell(row, state)
        return state[0].sum()

    return f, rows(m, COUNT)


@pattern("prints of every fourth example")
def _prints(m: Any) -> Any:
    layer = m.nn.Linear(WIDTH, WIDTH)

    def f(example: Any) -> Any:
        number, x = example
        h = layer(x)
        if number % 4 == 0:
            str(h)
        return h.sum()

    return f, list(enumerate(vectors(m)))


def measure(m: Any, name: str, rounds: int, warm: int, seconds: float) -> dict[str, Any]:
    """Seconds of a plain loop and of a map, with their backward passes, in turns; after so many of each to warm up."""
    if not hasattr(m, "map"):
        raise Unavailable(f"{m.__name__} has no map().")
    sides = []
    for run in (lambda f, xs: [f(x) for x in xs], m.map):
        m.manual_seed(0)
        sides.append(partial(_once, run, *MAPS[name](m)))
    return _in_turns(m, sides, rounds, warm, seconds)


def measure_work(
    m: Any, of: str, parameters: dict[str, Any], rounds: int, warm: int, seconds: float
) -> dict[str, Any]:
    """The same for a work of the suite `batching`."""
    sides = [resolve(of)(m, mode, **parameters).step for mode in ("loop", "map")]
    return _in_turns(m, [partial(_timed, step) for step in sides], rounds, warm, seconds)


def _in_turns(m: Any, sides: list[Callable[[], float]], rounds: int, warm: int, seconds: float) -> dict[str, Any]:
    found: list[list[float]] = [[], []]
    early: list[float] = [0.0, 0.0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        began = perf_counter()
        turn = 0
        while turn < warm + rounds or perf_counter() - began < seconds:
            for side in (0, 1) if turn % 2 else (1, 0):
                took = sides[side]()
                if turn < warm:
                    early[side] += took
                else:
                    found[side].append(took)
            turn += 1
    last = m.batching.last()
    return {
        "loop": found[0], "map": found[1], "early": early[1] / early[0], "account": str(getattr(last, "account", "")),
        "warned": [str(warning.message) for warning in said],
    }  # fmt: skip


def _timed(step: Callable[[], object]) -> float:
    began = perf_counter()
    step()
    return perf_counter() - began


def _once(run: Any, f: Any, xs: Any) -> float:
    began = perf_counter()
    made = run(f, xs)
    live = [t for t in made if getattr(t, "requires_grad", False)]
    if live:
        sum(live[1:], live[0]).backward()
    return perf_counter() - began
