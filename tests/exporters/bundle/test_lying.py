"""Programs whose sizes are others when they run than the file says: a sentence, and no byte that is not theirs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.bundle.models import packed
from wayfare.api.testing.every_op import samples_of
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.errors import OperationError

ROOT = Path(__file__).resolve().parents[3]
# So many lying programs are tried; WAYFARE_LYING_PROGRAMS=20000 is the long run.
COUNT = int(os.environ.get("WAYFARE_LYING_PROGRAMS", "700"))
CHUNK = 2000  # of them in one test, so that several processes share a long run


class Made:
    """A file step by step: inputs, numbers that claim to be something else, ops."""

    def __init__(self, **inputs):
        self._inputs = [[name, *described] for name, described in inputs.items()]
        self._nodes, self._sizes, self._symbols = [], [], []
        self._count = len(inputs)

    def _add(self, node):
        self._nodes.append(node)
        self._count += len(node["made"])
        return self._count - 1

    def number(self, claimed, real):
        """A size that the file says to be one number, and that is another."""
        made = self._add({"kind": "number", "in": [], "attrs": {"value": real}, "made": [["int64", []]]})
        return self.read(made, -1, claimed)

    def read(self, value, axis, claimed):
        """A size that is read off a value."""
        self._symbols.append([value, axis])
        self._sizes.append(claimed)
        return {"size": ["symbol", len(self._sizes) - 1]}

    def op(self, name, inputs, made, **attrs):
        return self._add({"op": name, "in": inputs, "attrs": attrs, "made": [made]})

    def loop(self, trips, block, collected):
        attrs = {"trips": trips, "asks": False, "entry": False, "carried": 0}
        counter = self._count
        nodes = block(counter)
        inner = {"takes": [["int64", []]], "nodes": nodes, "out": [counter + sum(len(n["made"]) for n in nodes)]}
        self._count = counter + 1 + sum(len(n["made"]) for n in nodes)
        return self._add({"kind": "loop", "in": [], "attrs": attrs, "blocks": [inner], "made": [collected]})

    def load(self, folder, *results, **options):
        document = {
            "version": 1, "function": "f", "size_names": [f"n{i}" for i in range(len(self._sizes))],
            "sizes": self._sizes, "symbols": self._symbols, "constants": [], "inputs": self._inputs,
            "outputs": [f"out{i}" for i in range(len(results))], "structure": {"tuple": ["tensor"] * len(results)},
            "block": {"nodes": self._nodes, "out": list(results)},
        }  # fmt: skip
        (folder / "lying.wf").write_bytes(packed(document, {}))
        return wf.load_program(folder / "lying.wf", **{"compiled": False} | options)


def windows(**other):
    return {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]} | other


def test_col2im_reads_no_foreign_memory(tmp_path):
    f = Made(x=["float32", [1, 4, 9]])
    far = f.number(4, 100)
    y = f.op("col2im", [0], ["float32", [1, 1, 4, 4]], sizes=[4, far], **windows())
    with pytest.raises(OperationError, match=r"program: col2im cannot be called with .*do not fit 297 windows"):
        f.load(tmp_path, y)(wf.ones(1, 4, 9))


def test_unfold_does_not_step_back(tmp_path):
    f = Made(x=["float32", [8]])
    y = f.op("unfold", [0], ["float32", [7, 2]], dim=0, size=2, step=f.number(1, -1000))
    with pytest.raises(OperationError, match="unfold has '-1000' for step, and none of it can be less than 1"):
        f.load(tmp_path, y)(wf.ones(8))


@pytest.mark.parametrize("op", ["conv", "im2col", "max_pool"])
def test_windows_are_not_divided_by_nothing(tmp_path, op):
    f = Made(x=["float32", [1, 1, 64, 64]], w=["float32", [1, 1, 2, 2]])
    how = windows(stride=[1, f.number(1, 0)])
    if op == "conv":
        del how["kernel"]
        y = f.op("conv", [0, 1], ["float32", [1, 1, 63, 63]], groups=1, **how)
    elif op == "im2col":
        y = f.op("im2col", [0], ["float32", [1, 4, 63 * 63]], **how)
    else:
        f._nodes.append({"op": "max_pool", "in": [0], "attrs": how | {"counts": [63, 63]},
                         "made": [["float32", [1, 1, 63, 63]], ["int64", [1, 1, 63, 63]]]})  # fmt: skip
        y = f._count
    with pytest.raises(OperationError, match=r"for stride, and none of it can be less than 1"):
        f.load(tmp_path, y)(wf.ones(1, 1, 64, 64), wf.ones(1, 1, 2, 2))


@pytest.mark.parametrize("name, shape, attrs", [
    ("conv", [(1, 1, 64, 64), (1, 1, 3, 3)], {"stride": (1, 0), "padding": (0, 0), "dilation": (1, 1), "groups": 1}),
    ("conv_input", [(1, 1, 64, 64), (2, 1, 3, 3)], {"sizes": (66, 66), "stride": (1, 1), "padding": (0, 0),
                                                    "dilation": (1, 1), "groups": 1}),
    ("conv_weight", [(4, 8, 32, 32), (3, 8, 30, 30)], {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0),
                                                       "dilation": (1, 1), "groups": 1}),
    ("col2im", [(1, 4, 9)], {"sizes": (60, 60), "kernel": (2, 2), "stride": (1, 1), "padding": (0, 0),
                             "dilation": (1, 1)}),
    ("unfold", [(8,)], {"dim": 0, "size": 2, "step": -1}),
    ("unfold", [(8,)], {"dim": 0, "size": 20, "step": 1}),
    ("fold_back", [(3, 3)], {"shape": (4,), "dim": 0, "step": 9}),
    ("as_strided", [(8,)], {"size": (2, 2), "stride": (2**60, 1), "offset": 0, "layout": (1,)}),
    ("as_strided", [(8,)], {"size": (2,), "stride": (1,), "offset": -4, "layout": (1,)}),
    ("searchsorted", [(1, 3), (2, 3)], {"right": False, "dtype": wf.int64}),
])  # fmt: skip
def test_ops_look_at_their_own_arguments(name, shape, attrs):
    """Whoever calls them: memory is not for the shape rule alone to guard."""
    arrays = [np.ones(s, np.float32) for s in shape]
    with pytest.raises((ValueError, ZeroDivisionError, wf.errors.WayfareError)):
        REGISTRY[name].forward(*arrays, **attrs)


def test_the_limit_holds_for_what_is_really_made(tmp_path):
    f = Made(x=["float32", [1]])
    y = f.op("expand", [0], ["float32", [2]], shape=[f.number(2, 10**9)])
    z = f.op("clone", [y], ["float32", [2]])
    with pytest.raises(OperationError, match=r"expand would make a value of shape \[1000000000\], over the 1,048,576"):
        f.load(tmp_path, z, limit=1 << 20)(wf.ones(1))


def test_the_limit_holds_for_all_values_together(tmp_path):
    f = Made(x=["float32", [100_000]])
    made = [f.op("exp", [0], ["float32", [100_000]]) for _ in range(8)]
    with pytest.raises(OperationError, match="its values take 1,200,000 bytes, over the 1,048,576 allowed"):
        f.load(tmp_path, *made, limit=1 << 20)(wf.ones(100_000))
    # What nobody needs any more does not count, nor does a view of what is counted already.
    f = Made(x=["float32", [100_000]])
    y = 0
    for _ in range(20):
        y = f.op("exp", [y], ["float32", [100_000]])
        y = f.op("reshape", [y], ["float32", [1000, 100]], shape=[1000, 100])
        y = f.op("reshape", [y], ["float32", [100_000]], shape=[100_000])
    f.load(tmp_path, y, limit=1 << 20)(wf.ones(100_000))


def test_the_limit_holds_for_what_a_loop_collects(tmp_path):
    f = Made(x=["float32", [1000]])

    def block(counter):
        return [{"op": "exp", "in": [0], "attrs": {}, "made": [["float32", [1000]]]}]

    y = f.loop(1 << 20, block, ["float32", [1, 1000]])
    with pytest.raises(OperationError, match="over the 1,048,576 allowed"):
        f.load(tmp_path, y, limit=1 << 20)(wf.ones(1000))


def test_strides_see_nothing_beside_an_input(tmp_path):
    """The caller gives four numbers of a larger tensor: the others are none of the file's business."""
    f = Made(x=["float32", [4]])
    y = f.op("as_strided", [0], ["float32", [4]], size=[4], stride=[1], offset=f.number(0, 4), layout=[1])
    program = f.load(tmp_path, y)
    secret = wf.arange(100.0)
    try:
        (seen,) = program(secret[:4])
    except wf.errors.WayfareError:
        return
    assert seen.tolist() == [0.0] * 4


@pytest.mark.parametrize("compiled", [False, True])
def test_a_size_that_is_given_as_a_number_is_taken_anew_at_each_call(tmp_path, compiled):
    f = Made(x=["float32", [1]], n=["int64", []])
    y = f.op("expand", [0], ["float32", [3]], shape=[f.read(1, -1, 3)])
    z = f.op("exp", [y], ["float32", [3]])
    program = f.load(tmp_path, z, compiled=compiled)
    for n in (3, 3, 3, 3, 5, 3, 5, 0, 2):
        assert program(wf.ones(1), wf.tensor(n))[0].shape == (n,)
    with pytest.raises(OperationError, match="expand has .* for shape, and none of it can be less than 0"):
        program(wf.ones(1), wf.tensor(-1))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_signature_of_a_record_takes_its_samples_and_no_others(name):
    op = REGISTRY[name]
    for sample in samples_of(op):
        specs = [spec_of(x) for x in sample.inputs]

        def problem(specs, attrs):
            return op.signature.problem(op.name, op.family, op.kinds, specs, attrs)

        assert problem(specs, sample.attrs) == ""
        assert "has the attributes" in problem(specs, {**sample.attrs, "out_of_nowhere": 1})
        if op.signature.most < 100:
            assert "inputs, not" in problem([*specs, spec_of(np.ones(1))], sample.attrs)
        for key in sample.attrs:
            assert key in problem(specs, {**sample.attrs, key: {"no": "value"}})


@pytest.mark.skipif(os.name != "posix", reason="the walls are pages of POSIX")
@pytest.mark.timeout(60 + CHUNK // 10)
@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_lying_programs_inside_walls(first):
    """Every op, with attributes and shapes that are others at run time: no process ends, no byte beside is read."""
    count = min(CHUNK, COUNT - first)
    command = [sys.executable, "-m", "tests.exporters.bundle.lying", "7", str(first), str(count)]
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = {name: int(number) for name, number in re.findall(r"'(\w+)': (\d+)", done.stdout)}
    assert sum(outcomes.values()) == count
    # Most lies are found out when the program runs; some do no harm.
    assert outcomes["failed"] > count // 4 and outcomes["ran"] > count // 4
