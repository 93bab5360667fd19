"""Run documents made by hand, per the schema: what the viewer is tested with, independent of the recorder."""

import math

PROGRAM = """\
import wayfare as wf

x = wf.tensor([[0.5, -1.0], [2.0, 0.1]])
y = wf.tensor([1.0, 0.0])
w = wf.randn(2, requires_grad=True)
b = wf.zeros((), requires_grad=True)

h = x @ w
p = (h + b).sigmoid()
loss = ((p - y) ** 2).mean()
if loss > 0.1:
    loss.backward()
"""


class Document:
    """Builds a run document value by value, with events and interned strings."""

    def __init__(self, title="a run", program=PROGRAM, file="train.py"):
        self._numbers = {}
        lines = {str(i): line for i, line in enumerate(program.splitlines(), 1)}
        columns = "op kind name inputs attrs shape dtype site call example saved bytes out stats grad value gradvalue"
        self.nodes = {name: [] for name in columns.split()}
        self.data = {
            "format": "wayfare-run", "version": 1, "title": title, "wayfare": "0.1", "created": "2026-01-01T12:00:00",
            "strings": [], "files": [{"name": file, "code": lines}], "sites": [], "modules": [], "calls": [],
            "nodes": self.nodes, "stats": [], "values": [], "events": [], "memory": [], "batching": None, "plans": [],
        }  # fmt: skip
        self._sites = {}
        self._alive = 0

    def text(self, word):
        if word not in self._numbers:
            self._numbers[word] = len(self.data["strings"])
            self.data["strings"].append(word)
        return self._numbers[word]

    def site(self, line, function="<module>", file=0):
        key = (file, line, function)
        if key not in self._sites:
            self._sites[key] = len(self.data["sites"])
            self.data["sites"].append([file, line, self.text(function)])
        return self._sites[key]

    def module(self, path, kind, parent=-1):
        self.data["modules"].append([self.text(path), self.text(kind), parent])
        return len(self.data["modules"]) - 1

    def call(self, module, parent=-1, number=0):
        self.data["calls"].append([module, parent, number])
        return len(self.data["calls"]) - 1

    def stats(self, low=-1.0, high=1.0, nan=0):
        bell = [round(40 * math.exp(-(((i - 11.5) / 6) ** 2))) for i in range(24)]
        self.data["stats"].append([low, high, (low + high) / 2, (high - low) / 5, nan, 0, 3, bell, low, high])
        return len(self.data["stats"]) - 1

    def value(self, text, shape, whole=True):
        self.data["values"].append({"shape": shape, "text": text, "whole": whole})
        return len(self.data["values"]) - 1

    def add(self, op, inputs=(), shape=(), line=-1, call=-1, kind=0, name=None, example=-1, **more):
        """One value, and for an op its forward event; returns its number."""
        number = len(self.nodes["op"])
        size = 4 * math.prod(shape)
        self._alive += size
        row = {
            "op": self.text(op), "kind": kind, "name": -1 if name is None else self.text(name), "inputs": list(inputs),
            "attrs": -1, "shape": list(shape), "dtype": self.text("f32"), "site": -1 if line < 0 else self.site(line),
            "call": call, "example": example, "saved": size if kind == 0 else 0, "bytes": size, "out": 0,
            "stats": -1, "grad": -1, "value": -1, "gradvalue": -1,
        } | more  # fmt: skip
        for key, column in self.nodes.items():
            column.append(row[key])
        if kind == 0:
            self.event("f", number)
        return number

    def event(self, kind, *more):
        self.data["events"].append([kind, *more])
        self.data["memory"].append(self._alive)

    def backward(self):
        """Backward events for everything, newest first, and accumulation into the leaves."""
        for number in reversed(range(len(self.nodes["op"]))):
            kind = self.nodes["kind"][number]
            if kind == 2:
                continue
            self._alive -= self.nodes["bytes"][number] if kind == 0 else 0
            self.event("b" if kind == 0 else "a", number)
        return self.data


def small():
    """The ten-line program at the top of this file."""
    made = Document("logistic regression, one step")
    x = made.add("input", shape=(2, 2), kind=2, name="x", value=made.value([[0.5, -1.0], [2.0, 0.1]], [2, 2]))
    w = made.add("leaf", shape=(2,), kind=1, name="w", line=5, value=made.value([0.3, -0.2], [2]), stats=made.stats(),
                 grad=made.stats(-0.2, 0.1), gradvalue=made.value([-0.11, 0.07], [2]))  # fmt: skip
    b = made.add("leaf", kind=1, name="b", line=6)
    y = made.add("input", shape=(2,), kind=2, name="y")
    h = made.add("matmul", (x, w), (2,), 8, stats=made.stats(), value=made.value([0.35, 0.58], [2]), grad=made.stats())
    s = made.add("add", (h, b), (2,), 9, stats=made.stats())
    p = made.add("sigmoid", (s,), (2,), 9, stats=made.stats(0, 1))
    d = made.add("sub", (p, y), (2,), 10)
    q = made.add("pow", (d,), (2,), 10, attrs=made.text("exponent=2"))
    loss = made.add("mean", (q,), (), 10, stats=made.stats(0.2, 0.2), value=made.value(0.2137, []))
    over = made.add("gt", (loss,), (), 11)
    made.event("d", over, made.text("if"), made.text("True"), made.site(11), -1)
    return made.backward()


def recurrent(steps=37):
    """An encoder, a cell that runs `steps` times and a head."""
    made = Document(f"a recurrent model, {steps} steps")
    model = made.module("", "Model")
    embed = made.module("embed", "Embedding", model)
    cell, head = made.module("cell", "GRUCell", model), made.module("head", "Linear", model)
    top = made.call(model)
    tokens = made.add("input", shape=(8, steps), kind=2, name="tokens")
    weight = made.add("leaf", shape=(100, 16), kind=1, name="embed.weight")
    x = made.add("embedding", (tokens, weight), (8, steps, 16), 8, made.call(embed, top))
    wi = made.add("leaf", shape=(16, 48), kind=1, name="cell.weight_ih", stats=made.stats())
    wh = made.add("leaf", shape=(16, 48), kind=1, name="cell.weight_hh", stats=made.stats())
    h = made.add("zeros", (), (8, 16), 8, top)
    for step in range(steps):
        part = made.add("select", (x,), (8, 16), 9, top)
        inside = made.call(cell, top, step)
        a = made.add("matmul", (part, wi), (8, 48), 3, inside, stats=made.stats())
        b = made.add("matmul", (h, wh), (8, 48), 4, inside)
        gates = made.add("add", (a, b), (8, 48), 5, inside)
        z = made.add("sigmoid", (gates,), (8, 16), 6, inside)
        n = made.add("tanh", (gates,), (8, 16), 6, inside)
        old, new = made.add("mul", (h, z), (8, 16), 7, inside), made.add("mul", (n, z), (8, 16), 7, inside)
        h = made.add("add", (old, new), (8, 16), 7, inside, stats=made.stats())
    hw = made.add("leaf", shape=(16, 10), kind=1, name="head.weight")
    hb = made.add("leaf", shape=(10,), kind=1, name="head.bias")
    out = made.call(head, top)
    logits = made.add("add", (made.add("matmul", (h, hw), (8, 10), 10, out), hb), (8, 10), 10, out)
    made.add("cross_entropy", (logits, made.add("input", shape=(8,), kind=2, name="target")), (), 10)
    return made.backward()


def layered(layers=12):
    """A transformer-like encoder: many modules, equal layers."""
    made = Document(f"{layers} encoder layers")
    model = made.module("", "Classifier")
    encoder = made.module("encoder", "Encoder", model)
    top = made.call(model)
    stack = made.call(encoder, top)
    h = made.add("input", shape=(4, 32, 64), kind=2, name="tokens")

    def linear(path, parent, owner, source, sizes, line):
        module = made.module(path, "Linear", owner)
        call = made.call(module, parent)
        w = made.add("leaf", shape=sizes, kind=1, name=f"{path}.weight", stats=made.stats())
        b = made.add("leaf", shape=(sizes[1],), kind=1, name=f"{path}.bias")
        return made.add("linear", (source, w, b), (4, 32, sizes[1]), line, call, stats=made.stats(), grad=made.stats())

    for index in range(layers):
        path = f"encoder.layers.{index}"
        layer = made.module(path, "EncoderLayer", encoder)
        call = made.call(layer, stack)
        attention = made.module(f"{path}.attention", "Attention", layer)
        attending = made.call(attention, call)
        q, k, v = (linear(f"{path}.attention.{name}", attending, attention, h, (64, 64), 3) for name in "qkv")
        scores = made.add("matmul", (q, k), (4, 32, 32), 4, attending)
        scores = made.add("softmax", (scores,), (4, 32, 32), 5, attending)
        mixed = made.add("matmul", (scores, v), (4, 32, 64), 6, attending)
        mixed = linear(f"{path}.attention.out", attending, attention, mixed, (64, 64), 6)
        h = made.add("layer_norm", (made.add("add", (h, mixed), (4, 32, 64), 7, call),), (4, 32, 64), 7, call)
        up = linear(f"{path}.up", call, layer, h, (64, 256), 8)
        down = linear(f"{path}.down", call, layer, made.add("gelu", (up,), (4, 32, 256), 8, call), (256, 64), 8)
        h = made.add("layer_norm", (made.add("add", (h, down), (4, 32, 64), 9, call),), (4, 32, 64), 9, call)
    pooled = made.add("mean", (h,), (4, 64), 10, top)
    logits = linear("head", top, model, pooled, (64, 5), 10)
    made.add("cross_entropy", (logits,), (), 11)
    gelu = made.text("gelu")
    kernel = {"name": "gelu_kernel", "nodes": [n for n, op in enumerate(made.nodes["op"]) if op == gelu], "ops": [gelu]}
    made.data["plans"] = [{"function": "forward", "paths": 1, "hits": 12, "text": "1 path", "kernels": [kernel]}]
    return made.backward()


def chain(count, lines=7):
    """`count` ops in one row without any module, each line of a loop in its turn."""
    made = Document(f"a chain of {count}")
    last = made.add("leaf", shape=(4,), kind=1, name="w")
    for number in range(count):
        last = made.add(["mul", "add", "tanh"][number % 3], (last,), (4,), 3 + number % lines)
    return made.backward()


def tangle(count, seed=0):
    """`count` ops that repeat nowhere: nothing to fold by structure, only by cutting."""
    made = Document(f"a tangle of {count}")
    made.add("leaf", shape=(4,), kind=1, name="w")
    state = seed * 7919 + 12345
    for number in range(1, count):
        state = (state * 1103515245 + 12345) % 2**31
        near = max(0, number - 1 - state % 9)
        made.add(f"op{state % 13}", (number - 1, near), (4,), 1 + (state // 17) % 12)
    return made.backward()


def batched(examples=16):
    """A map over trees of different depth: leaves merge, inner nodes by depth."""
    made = Document(f"{examples} trees at once")
    w = made.add("leaf", shape=(8, 8), kind=1, name="compose.weight")
    calls = {name: [] for name in ("example", "name", "group", "shape", "site", "depth", "inputs")}
    groups, members = [], {}

    def put(example, name, group, shape, line, depth, inputs):
        row = (example, made.text(name), group, shape, made.site(line), depth, inputs)
        for column, cell in zip(calls.values(), row, strict=True):
            column.append(cell)

    for example in range(examples):
        below = []
        depth = 2 + example % 5
        for level in range(depth):
            name = "leaf" if level == 0 else "compose"
            for _ in range(2 if level == 0 else 1):
                key = (name, level)
                if key not in members:
                    members[key] = len(groups)
                    node = made.add(name, (w,), (examples, 8), 8 + level % 3)
                    groups.append({"name": made.text(name), "size": 0, "round": level, "rows": examples, "node": node})
                    made.event("g", members[key])
                groups[members[key]]["size"] += 1
                put(example, name, members[key], [8], 8 + level % 3, level, below[-2:])
                below = [*below, len(calls["group"]) - 1]
    groups.append({"name": made.text("readout"), "size": examples, "round": 9, "rows": examples, "node": 0})
    for example in range(examples):
        put(example, "readout", len(groups) - 1, [2], 10, 9, [])
    made.data["batching"] = {
        "examples": examples, "calls": calls, "groups": groups,
        "apart": [[0, 2, made.text("they wait for each other")]],
        "stats": {"calls": len(calls["group"]), "groups": len(groups)},
    }  # fmt: skip
    return made.backward()


def hostile(word):
    """Every name in the document is `word`."""
    made = Document(word, program=f"{word}\n" * 6, file=word)
    module = made.module(word, word)
    call = made.call(module)
    leaf = made.add("leaf", shape=(2,), kind=1, name=word)
    value = made.value([word, word], [2])
    node = made.add(word, (leaf,), (2,), 3, call, attrs=made.text(word), value=value, stats=made.stats())
    made.event("d", node, made.text(word), made.text(word), made.site(3), -1)
    kernel = {"name": word, "nodes": [node], "ops": [word]}
    made.data["plans"] = [{"function": word, "paths": 1, "hits": 1, "text": word, "kernels": [kernel]}]
    made.data["batching"] = {
        "examples": 2, "groups": [{"name": word, "size": 1}] * 2, "apart": [[0, 0, word]], "stats": {word: word},
        "calls": {
            "example": [0, 1], "name": [made.text(word)] * 2, "group": [0, 1], "shape": [[2], word], "site": [0, 0],
            "depth": [0, 1], "inputs": [[], []],
        },
    }  # fmt: skip
    made.data["diff"] = {"same": [], "added": [node], "removed": [], "changed": [[leaf, leaf, word]], "summary": [word]}
    return made.backward()
