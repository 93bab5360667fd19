"""Programs whose sizes are others when they run than the file says.

`python -m tests.exporters.bundle.lying SEED FIRST COUNT` runs so many of them, each op in turn, with walls around all
memory; it must come to its end.

Every attribute and shape may be a formula of sizes, and a size may be a number that the program itself makes: it is not
known when the file is read.
"""

import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

import wayfare as wf
from tests.exporters.bundle.models import packed
from tests.guarded_memory import GuardedMemory, shows_pattern
from wayfare.api.testing.every_op import samples_of
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.errors import WayfareError
from wayfare.exporters.bundle.json_values import encoded

LIMIT = 1 << 20
# In addition to the values themselves, an op may need workspace: in another dtype, sorted, padded.
ROOM = 24
LIES = [
    0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 1000, 4099, 70_001, -1, -2, -3, -7, -100, 2**20, 2**31 - 1, 2**31, 2**32,
    2**32 + 1, 2**40, 2**59, 2**61, -(2**31), -(2**32), -(2**61),
]  # fmt: skip
# Whatever draws random numbers has no place in a program.
_ALL = [op for _, op in sorted(REGISTRY.items()) if not op.random and op.name != "dropout"]
# Those with more that can be lied about more often.
NAMES = [op.name for op in _ALL for _ in range(3 if op.signature.attrs or op.signature.inputs > 2 else 1)]


def listed(made):
    return list(made) if isinstance(made, (tuple, list)) else [made]


def described(specs):
    return [[s.dtype.name, [int(n) for n in s.shape]] for s in specs]


class Lying:
    """A program of one op, with steps before it that make sizes and inputs of other shapes."""

    def __init__(self, op, sample, rng):
        self.rng = rng
        single = rng.random() < 0.5
        self.inputs = [_odd(x, single, rng) for x in sample.inputs]
        specs = [spec_of(x) for x in self.inputs]
        made = listed(op.infer(*specs, **sample.attrs))
        self.sizes, self._before, self._count = [], [], len(specs)
        self._symbols = []
        given = [self._other_shape(i, spec) if rng.random() < 0.3 else i for i, spec in enumerate(specs)]
        attrs = {name: encoded(value) for name, value in sample.attrs.items() if value is not None or name != "key"}
        places = [p for p in _int_places(attrs)]
        for path in rng.sample(places, min(len(places), rng.choice((0, 1, 1, 1, 2, 2, 3, 9)))):
            around = attrs
            for key in path[:-1]:
                around = around[key]
            around[path[-1]] = self._lie(around[path[-1]])
        node = {"op": op.name, "in": given, "attrs": attrs, "made": described(made)}
        self.document = {
            "version": 1, "function": op.name, "size_names": [f"n{i}" for i in range(len(self.sizes))],
            "sizes": self.sizes, "symbols": self._symbols, "constants": [],
            "inputs": [[f"input_{i}", *d] for i, d in enumerate(described(specs))],
            "outputs": [f"output_{i}" for i in range(len(made))], "structure": {"tuple": ["tensor"] * len(made)},
            "block": {"nodes": [*self._before, node], "out": [self._count + i for i in range(len(made))]},
        }  # fmt: skip

    def _lie(self, honest, truth=None):
        """A formula that is this number in the example and another one when the program runs."""
        if truth is None:
            truth = self.rng.choice((honest - 1, honest + 1, honest * 2, -honest, *self.rng.sample(LIES, 4)))
        self._before.append({"kind": "number", "in": [], "attrs": {"value": truth if honest >= 0 else -truth},
                             "made": [["int64", []]]})  # fmt: skip
        self._symbols.append([self._count, -1])
        self._count += 1
        self.sizes.append(abs(honest))
        symbol = ["symbol", len(self.sizes) - 1]
        return {"size": symbol if honest >= 0 else ["neg", symbol]}

    def _other_shape(self, number, spec):
        """An input that has another shape than the file says: padded or cut."""
        if not spec.ndim or spec.dtype is wf.bool:
            return number
        amounts = [[0, 0] for _ in spec.shape]
        pair = self.rng.choice(amounts)
        pair[1] = self._lie(0, self.rng.choice((1, 2, -1, -2, 5, 60, 3000, self.rng.choice(LIES))))
        self._before.append({"op": "pad", "in": [number], "attrs": {"amounts": amounts, "value": 0},
                             "made": described([spec])})  # fmt: skip
        self._count += 1
        return self._count - 1


def _odd(x, single, rng):
    """The array, perhaps in float32, perhaps with whole numbers that are far out of range."""
    if x.dtype == np.float64 and single:
        return x.astype(np.float32)
    if x.dtype.kind == "i" and x.size and rng.random() < 0.3:
        x = np.array(x)
        x.reshape(-1)[rng.randrange(x.size)] = rng.choice([n for n in LIES if abs(n) < 2**31])
    return np.array(x)


def _int_places(value, path=()):
    if isinstance(value, int) and not isinstance(value, bool):
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _int_places(part, (*path, key))


def one(number, seed, path, memory):
    """Make and run program `number`; what became of it."""
    rng = random.Random(f"{seed} {number}")
    op = REGISTRY[NAMES[number % len(NAMES)]]
    samples = [s for s in samples_of(op) if s.attrs.get("key") is None]
    program = Lying(op, rng.choice(samples), rng)
    path.write_bytes(packed(program.document, {}))
    memory.reset()
    before = memory.live
    try:
        loaded = wf.load_program(path, compiled=rng.random() < 0.04, limit=LIMIT)
    except WayfareError:
        return "refused", op.name, 0
    try:
        for _ in range(2):
            results = loaded(*[wf.tensor(np.array(x)) for x in program.inputs])
    except WayfareError as error:
        if "shape rule says" in str(error):
            raise SystemExit(f"{error}\n{program.document}") from None
        return "failed", op.name, memory.most - before
    if any(shows_pattern(t.numpy()) for t in results):
        raise SystemExit(f"{op.name} gives memory that nobody wrote to: {program.document}")
    return "ran", op.name, memory.most - before


def main(seed, first, count):
    from wayfare.core import buffer_pool

    buffer_pool._make = lambda size: None  # all memory from NumPy
    memory, outcomes = GuardedMemory(), {"refused": 0, "failed": 0, "ran": 0}
    memory.start()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            print(number, NAMES[number % len(NAMES)], file=sys.stderr, flush=True)
            signal.alarm(60)  # a program that never ends ends the process too
            outcome, name, most = one(number, seed, Path(folder) / "a.wf", memory)
            outcomes[outcome] += 1
            if most > ROOM * LIMIT:
                raise SystemExit(f"{name} took {most:,} bytes under a limit of {LIMIT:,} (program {number})")
            if memory.damaged:
                raise SystemExit(f"{name} wrote beside its memory (program {number})")
    print(outcomes)


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # No ordinary end: NumPy would free its arrays when the memory that gave them is gone.
    sys.stdout.flush()
    os._exit(code)
