"""Recorded calls without a session, and families of them: chains, trees, words of characters, plain-op cells."""

import random

import numpy as np

from wayfare.batch.record.call import Call, Value, row_of

ROW = row_of((4,), np.dtype(np.float32))


class Recording:
    """Calls in the order in which they are recorded; signatures are strings, one object for each name."""

    def __init__(self):
        self.calls = []
        self.signatures = {}

    def __call__(self, signature, *inputs, outputs=1):
        call = Call()
        call.signature = self.signatures.setdefault(signature, signature)
        call.inputs = inputs
        call.group = None
        call.example = call.code = None
        call.depth = -1
        made = tuple(Value(call, number, ROW, False) for number in range(outputs))
        self.calls.append(call)
        return made[0] if outputs == 1 else made


def producers(call):
    """The pending calls that a call reads."""
    found = [v.call for v in call.inputs if v.__class__ is Value]
    return [producer for producer in found if producer.group is None]


def lstm(record, xs, signature="cell", state=("h0", "c0")):
    """A chain of cells over inputs; the h of each step."""
    h, c = state
    hs = []
    for x in xs:
        h, c = record(signature, x, h, c, outputs=2)
        hs.append(h)
    return hs


def chains(lengths, ends="loss"):
    """A chain of cells for each length, and a loss on its last state."""
    record = Recording()
    for n in lengths:
        hs = lstm(record, [record("embed", "token") for _ in range(n)])
        record(ends, hs[-1])
    return record.calls


def misaligned(lengths, delays):
    """Chains that begin after a different number of other steps each."""
    record = Recording()
    for n, delay in zip(lengths, delays, strict=True):
        x = "token"
        for _ in range(delay):
            x = record("before", x)
        record("loss", lstm(record, ["token"] * n, state=(x, "c0"))[-1])
    return record.calls


def random_tree(rng, leaves):
    """A binary tree: None for a leaf, else a pair."""
    if leaves == 1:
        return None
    left = rng.randint(1, leaves - 1)
    return random_tree(rng, left), random_tree(rng, leaves - left)


def height(tree):
    return 0 if tree is None else 1 + max(map(height, tree))


def trees(shapes, cell):
    """A Tree-LSTM over each of the trees, a score at its root; `cell(record, left, right)` gives h and c."""
    record = Recording()

    def states(tree):
        if tree is None:
            return record("leaf", record("embed", "token"), outputs=2)
        return cell(record, states(tree[0]), states(tree[1]))

    for shape in shapes:
        record("score", states(shape)[0])
    return record.calls


def library_cell(record, left, right):
    return record("cell", left[0], right[0], left[1], right[1], outputs=2)


def plain_cell(record, left, right):
    """A binary tree cell as a user writes it, one call for each op."""
    gates = [record("add", record(f"left {g}", left[0]), record(f"right {g}", right[0])) for g in "ilruo"]
    i, fl, fr, o = (record("sigmoid", gates[k]) for k in (0, 1, 2, 4))
    u = record("tanh", gates[3])
    kept = record("add", record("mul", fl, left[1]), record("mul", fr, right[1]))
    c = record("add", record("mul", i, u), kept)
    return record("mul", o, record("tanh", c)), c


def tagger(rng, sentences):
    """A two-way chain over words, some of which are spelled by a chain over characters; a score for each word."""
    record = Recording()
    for _ in range(sentences):
        words = []
        for _ in range(rng.randint(5, 30)):
            if rng.random() < 0.3:
                spelled = lstm(record, [record("character", "c") for _ in range(rng.randint(2, 12))], "char cell")
                words.append(record("project", spelled[-1]))
            else:
                words.append(record("embed", "token"))
        onward = lstm(record, words, "onward")
        back = lstm(record, words[::-1], "back")[::-1]
        for f, b in zip(onward, back, strict=True):
            record("loss", record("score", f, b))
    return record.calls


def random_shapes(seed, count, leaves=(2, 30)):
    rng = random.Random(seed)
    return [random_tree(rng, rng.randint(*leaves)) for _ in range(count)]
