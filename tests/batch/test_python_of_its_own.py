"""Ordinary code that writes to nothing but its own objects waits for values together with the other examples."""

import collections
import dataclasses
import enum
import functools
import heapq
import itertools
import math
import re
from typing import NamedTuple

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch.analysis.effects import explain_side_effects

EXAMPLES = 6
words = {"a": 0, "b": 1, "c": 2}
embed, cell, score = nn.Embedding(5, 4), nn.LSTMCell(4, 4), nn.Linear(4, 3)
layers = [nn.Linear(4, 4), nn.Tanh()]
table = np.arange(12.0).reshape(3, 4)
options = {"width": 2, "names": ["a", "b"], "by name": {"tanh": wf.tanh, "own": lambda x: x * 2}}


class Action(enum.Enum):
    SHIFT = 0
    REDUCE = 1


class Vocabulary:
    """Seen by all examples, and only read."""

    def __init__(self):
        self.numbers = dict(words)
        self.names = list(words)

    def __getitem__(self, word):
        return self.numbers.get(word, 0)

    def __len__(self):
        return len(self.numbers)

    @property
    def size(self):
        return len(self) + 1

    @functools.cached_property
    def longest(self):
        return max(map(len, self.names))

    def encode(self, text):
        return [self[w] for w in text if w in self.numbers]


vocabulary = Vocabulary()


class State:
    """A parser's state, made inside the example."""

    start = 0

    def __init__(self, text, numbers=vocabulary):
        self.stack, self.buffer, self.history = [], list(text), collections.deque()
        self.numbers = numbers
        self.steps = self.start

    def shift(self):
        self.stack.append(embed(wf.tensor(self.numbers[self.buffer.pop(0)])))
        self.steps += 1

    def reduce(self):
        right, left = self.stack.pop(), self.stack.pop()
        self.stack.append((left + right).tanh())
        self.history.append(Action.REDUCE)

    @property
    def done(self):
        return not self.buffer and len(self.stack) < 2

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.history.clear()


def parser(x):
    with State("abc") as state:
        while not state.done:
            shift = len(state.stack) < 2 or score(state.stack[-1]).argmax().item() == 5
            action = Action.SHIFT if state.buffer and shift else Action.REDUCE
            match action:
                case Action.SHIFT:
                    state.shift()
                case _:
                    state.reduce()
            state.stack[-1].sum().item()
    return state.stack[0], state.steps


def beam_search(x):
    beams = [(0.0, [0], None)]
    for _ in range(3):
        states = [cell(embed(wf.tensor(text[-1])), state) for _, text, state in beams]
        chances = [chance + score(h).log_softmax(0) for (chance, _, _), (h, _) in zip(beams, states, strict=True)]
        best, which = wf.cat(chances).topk(options["width"])
        beams = [(c, beams[n // 3][1] + [n % 3], states[n // 3])
                 for c, n in zip(best.tolist(), which.tolist(), strict=True)]  # fmt: skip
        beams = sorted(beams, key=lambda beam: -beam[0])
    return beams[0][1]


def a_heap(x):
    heap, number = [], itertools.count()
    for layer in layers:
        x = layer(x)
        heapq.heappush(heap, (-x.sum().item(), next(number), x))
    return heapq.heappop(heap)[2]


@dataclasses.dataclass
class Item:
    value: float
    parts: list = dataclasses.field(default_factory=list)

    def __lt__(self, other):
        return self.value < other.value

    def add(self, part):
        self.parts.append(part)
        return self


class Pair(NamedTuple):
    left: float
    right: list


def data_classes(x):
    items = [Item((x * i).sum().item()).add(i) for i in range(3)]
    best = max(items)
    best.parts += [math.exp(best.value / 100)]
    pair = Pair(min(items).value, [])
    pair.right.append(x.max().item())
    return pair, best.parts


class Node:
    """A tree of the user's, which examples are given."""

    def __init__(self, word=None, *children):
        self.word, self.children, self.seen = word, children, 0

    def is_leaf(self):
        return not self.children


TREE = Node(None, Node("a"), Node(None, Node("b"), Node("c")))


def trees(x, tree=TREE):
    def encode(node, depth, path):
        path.append(node.word)
        if node.is_leaf():
            return embed(wf.tensor(vocabulary[node.word]))
        parts = [encode(child, depth + 1, path) for child in node.children]
        h = functools.reduce(lambda a, b: a + b, parts)
        return h.tanh() if h.sum().item() > 0 else h

    path = []
    return encode(tree, 0, path) * x, path


class Net(nn.Module):
    """A module that loops over its parts, reads values and calls its parent's method."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.by_name = nn.ModuleDict({"out": nn.Linear(4, 2)})
        self.config = {"steps": 2, "names": ["out"]}
        self.vocabulary = vocabulary

    def step(self, x, trace):
        for i, layer in enumerate(self.layers):
            x = getattr(self, "layers")[i](x) + layer(x)  # noqa: B009
            trace.append(x.norm().item())
        return x

    def forward(self, x):
        trace, counts = [], collections.Counter()
        for _ in range(self.config["steps"]):
            x = self.step(x, trace)
            counts["steps"] += self.vocabulary.size
        with wf.no_grad():
            top = self.by_name[self.config["names"][0]](x).argmax().item()
        return x, trace, dict(counts), top


class Deeper(Net):
    def forward(self, x):
        x, *rest = super().forward(x)
        return nn.functional.relu(x).sum().item(), rest


def generators(x):
    def parts(n):
        for i in range(n):
            yield (x * i).sum().item()
        yield from (float(v) for v in [1, 2])

    found = {round(p, 3): i for i, p in enumerate(parts(3))}
    first, *rest = parts(2)
    return sum(parts(3)), found, first, rest, any(p > 0 for p in parts(2))


def tables(x):
    out = [table[i].sum() for i in range(2)]
    out.append(np.maximum(table, 1)[0, 0])
    for word in re.findall("[a-z]", "a b c"):
        out.append(words[word])
        x = x + embed(wf.tensor(vocabulary.encode([word])[0]))
    x = options["by name"]["own"](x)
    x = options["by name"]["tanh"](x)
    memory = {}
    for i in range(3):
        memory.setdefault(i % 2, []).append(x.sum().item())
        memory[i] = memory.get(i, []) + [f"{x[0].item():.3f}"]
    try:
        memory["missing"]
    except KeyError:
        pass
    finally:
        del memory[0]
    return x, out, memory, vocabulary.longest


def numbers_of_its_own(x):
    draw, total = np.random.default_rng(0), 0
    while x.abs().sum() > 1 and total < 4:
        x, total = x * 0.5 + float(draw.random()) * 0.01, total + 1
    own = wf.Generator().manual_seed(3)
    return x + wf.rand(4, generator=own), total, wf.rand(2)


def counted_by_a_closure(x):
    count = 0

    def visit(n):
        nonlocal count
        count += 1
        return x * n if (x * n).sum().item() > 0 or n == 0 else visit(n - 1)

    return visit(3), count


def a_policy(x):
    log_chances, rewards = [], []
    for _ in range(3):
        chances = score(x).log_softmax(0)
        action = wf.multinomial(chances.exp(), 1)
        log_chances.append(chances[action])
        rewards.append(float(action.item() == 1))
        x = layers[0](x)
    return wf.stack(log_chances).sum(), rewards


@pytest.mark.parametrize("function", [
    parser, beam_search, a_heap, data_classes, trees, Net(), Deeper(), generators, tables, numbers_of_its_own,
    counted_by_a_closure, a_policy, functools.partial(trees, tree=Node("a")), Net().step,
], ids=lambda f: getattr(f, "__name__", type(f).__name__))  # fmt: skip
def test_its_own_objects_do_not_keep_others_from_going_on(function):
    xs = [wf.ones(4) * (i + 1) for i in range(EXAMPLES)]
    if getattr(function, "__name__", "") == "step":
        step, function = function, lambda x: step(x, [])
    assert explain_side_effects(function, (xs[0],)) == ""
    wf.manual_seed(0)
    wf.map(function, xs, batch=True)
    stats = wf.batching.last()
    wf.map(function, xs[:1], batch=True)
    alone = wf.batching.last()
    # One example may go first; by themselves all of them would take as many rounds and groups as there are examples.
    assert stats.rounds <= EXAMPLES // 2 * alone.rounds, stats
    assert stats.groups <= EXAMPLES // 2 * alone.groups, stats
