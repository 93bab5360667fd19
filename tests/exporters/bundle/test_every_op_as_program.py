"""Every op of the registry as a program of one step, and with attributes that are a little or very wrong."""

import copy
import random

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.bundle.models import packed
from wayfare.api.testing.every_op import samples_of
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.errors import FileFormatError, WayfareError
from wayfare.exporters.bundle.json_values import Bad, Numbers, encoded

NAMES = [name for name, op in sorted(REGISTRY.items()) if not op.random]
ODD = [0, 1, 2, 3, 5, -1, -2, 100, 2**20, 2**31, 2**40, -(2**31), 0.5, None, "x", True, [], [[0]], {"dtype": []}]


def _listed(made):
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _described(specs):
    return [[s.dtype.name, [int(n) for n in s.shape]] for s in specs]


def _document(op, sample):
    specs = [spec_of(x) for x in sample.inputs]
    made = _listed(op.infer(*specs, **sample.attrs))
    attrs = {name: encoded(value) for name, value in sample.attrs.items()}
    node = {"op": op.name, "in": list(range(len(specs))), "attrs": attrs, "made": _described(made)}
    return {
        "version": 1, "function": op.name, "size_names": [], "sizes": [], "symbols": [], "constants": [],
        "inputs": [[f"input_{i}", *d] for i, d in enumerate(_described(specs))],
        "outputs": [f"output_{i}" for i in range(len(made))], "structure": {"tuple": ["tensor"] * len(made)},
        "block": {"nodes": [node], "out": [len(specs) + i for i in range(len(made))]},
    }  # fmt: skip


def _usable(op):
    return [s for s in samples_of(op) if s.attrs.get("key") is None]


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_the_op_gives(name, tmp_path):
    op = REGISTRY[name]
    for sample in _usable(op):
        (tmp_path / "a.wf").write_bytes(packed(_document(op, sample), {}))
        program = wf.load_program(tmp_path / "a.wf", compiled=False)
        made = program(*[wf.tensor(np.array(x)) for x in sample.inputs])
        for got, want in zip(made, _listed(op.forward(*sample.inputs, **sample.attrs)), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-14)


def _places(value, path=()):
    if path:
        yield path
    for key, part in enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        yield from _places(part, (*path, key))


def _spoilt(op, sample, document, rng):
    """Other attributes or inputs; the shapes say what would come of it, if anything would."""
    document = copy.deepcopy(document)
    (node,) = document["block"]["nodes"]
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [*_places(node["attrs"]), *[("in", i) for i in range(len(node["in"]))]]
        if not places:
            break
        path = rng.choice(places)
        if path[0] == "in":
            node["in"][path[1]] = rng.randrange(len(sample.inputs))
            continue
        around = node["attrs"]
        for key in path[:-1]:
            around = around[key]
        value = around[path[-1]]
        if isinstance(value, list) and rng.random() < 0.7:
            around[path[-1]] = rng.choice((value + value, value[::-1], [0] * len(value), value[:-1]))
        else:
            around[path[-1]] = copy.deepcopy(rng.choice(ODD))
    try:
        attrs = {name: Numbers([]).value(value) for name, value in node["attrs"].items()}
        node["made"] = _described(_listed(op.infer(*[spec_of(sample.inputs[i]) for i in node["in"]], **attrs)))
    except (Exception, Bad):
        pass
    return document


def test_wrong_attributes_end_in_a_sentence(tmp_path):
    rng = random.Random(3)
    path, refused, count = tmp_path / "a.wf", 0, 0
    for name in NAMES:
        op = REGISTRY[name]
        samples = _usable(op)
        for sample in rng.sample(samples, min(2, len(samples))):
            document = _document(op, sample)
            for _ in range(3):
                path.write_bytes(packed(_spoilt(op, sample, document, rng), {}))
                count += 1
                try:
                    program = wf.load_program(path, compiled=False, limit=1 << 22)
                except FileFormatError:
                    refused += 1
                    continue
                try:
                    program(*[wf.tensor(np.array(x)) for x in sample.inputs])
                except WayfareError:
                    continue
    assert count > 1500 and refused > 200
