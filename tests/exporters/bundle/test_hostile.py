"""Files of programs that are cut off, damaged, or made to do harm: a sentence, and never more memory than allowed."""

import copy
import random
import tracemalloc
import warnings

import pytest

import wayfare as wf
from tests.exporters.bundle.models import doubled, make_net, packed, unpacked
from tests.mutations import damaged
from wayfare.core.op import REGISTRY
from wayfare.errors import FileFormatError, WayfareError
from wayfare.io.header import header_bytes

LIMIT = 1 << 20
HOSTILE = [
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 1.5, 1e308, "", "x", "add", "__import__",
    "os.system", [], {}, [[]], [-1], [0, 0], [2**40], [10**9, 10**9], "float64", "int64", {"size": ["symbol", 0]},
    {"size": ["symbol", 99]}, {"size": ["**", ["symbol", 0], 4]}, {"size": ["//", 1, 0]}, {"number": ["/", 1, 0]},
    {"float": "nan"}, {"dtype": "float64"}, {"dtype": "object"}, {"repeated": [1, 10**9]}, {"repeated": [2, 3]},
]  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "net.wf"
    make_net(path)
    return path


def _places(value, path=()):
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _places(part, (*path, key))


def _at(document, path):
    for key in path:
        document = document[key]
    return document


def _mutated(document, places, rng):
    """The graph with one to three changes: something hostile, a number a little off, a part elsewhere, another op."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice(places)
        try:
            around, how = _at(document, path[:-1]), rng.random()
            if how < 0.35:
                around[path[-1]] = copy.deepcopy(rng.choice(HOSTILE))
            elif how < 0.55 and type(around[path[-1]]) is int:
                around[path[-1]] = rng.choice((around[path[-1]] + 1, around[path[-1]] - 1, 0, 1, 2, 3, 100))
            elif how < 0.65:
                del around[path[-1]]
            elif how < 0.85:
                around[path[-1]] = copy.deepcopy(_at(document, rng.choice(places)))
            else:
                rng.choice(document["block"]["nodes"])["op"] = rng.choice(sorted(REGISTRY))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    return document


def _try(path):
    """Load, and run if it loads: nothing but sentences may come of it."""
    try:
        program = wf.load_program(path, compiled=False, limit=LIMIT)
    except WayfareError:
        return "refused"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(wf.randint(0, 7, (3, 8)), wf.ones(5))
    except WayfareError:
        return "failed"
    return "ran"


def test_thousands_of_mutated_graphs(file, tmp_path):
    document, arrays = unpacked(file)
    places = list(_places(document))
    rng = random.Random(8)
    path, outcomes = tmp_path / "m.wf", {"refused": 0, "failed": 0, "ran": 0}
    for _ in range(1000):
        path.write_bytes(packed(_mutated(document, places, rng), arrays))
        outcomes[_try(path)] += 1
    # Some changes do no harm (a path, an unused shape); most are found out before anything runs.
    assert outcomes["refused"] > 800 and outcomes["ran"] > 5


def test_thousands_of_damaged_files(file, tmp_path):
    raw = file.read_bytes()
    rng = random.Random(9)
    path, refused = tmp_path / "m.wf", 0
    for number in range(1200):
        # The header is where damage can do most.
        path.write_bytes(damaged(raw, rng, within=6000 if number % 2 else None))
        refused += _try(path) == "refused"
    assert refused > 600


def test_memory_stays_bounded(file, tmp_path):
    document, arrays = unpacked(file)
    places = list(_places(document))
    rng = random.Random(10)
    path = tmp_path / "m.wf"
    _try(file)
    tracemalloc.start()
    try:
        for _ in range(40):
            path.write_bytes(packed(_mutated(document, places, rng), arrays))
            tracemalloc.reset_peak()
            _try(path)
            assert tracemalloc.get_traced_memory()[1] < 50 * LIMIT
    finally:
        tracemalloc.stop()


def _walk(block):
    for node in block["nodes"]:
        yield node
        for inner in node.get("blocks", []):
            yield from _walk(inner)


def _node(document, op):
    return next(n for n in _walk(document["block"]) if n.get("op") == op)


def _changes():
    """Single changes with the sentence that each must be answered with."""
    yield "no op 'os.system'", lambda d: _node(d, "conv_bias").update(op="os.system")
    yield "random_normal draws random numbers", lambda d: _node(d, "conv_bias").update(op="random_normal")
    yield "takes 3 inputs, not 4", lambda d: _node(d, "conv_bias")["in"].append(0)
    yield "has the attributes .* not", lambda d: _node(d, "conv_bias")["attrs"].update(out=1)
    yield "none of it can be less than 1", lambda d: _node(d, "conv_bias")["attrs"].update(stride=[0])
    yield "none of it can be less than 0", lambda d: _node(d, "conv_bias")["attrs"].update(padding=[-1])
    yield r"max_pool would need [\d,]+ bytes", lambda d: _node(d, "max_pool")["attrs"].update(stride=[2**40])
    yield "has '1.5' for dim", lambda d: _node(d, "sort")["attrs"].update(dim=1.5)
    yield "has '9' for dim, and its input", lambda d: _node(d, "sort")["attrs"].update(dim=9)
    yield "used where it is not known", lambda d: _node(d, "sort").update({"in": [10**6]})
    yield "used where it is not known", lambda d: _node(d, "sort").update({"in": [-1]})
    yield "a number has 31 digits", lambda d: _node(d, "sort")["attrs"].update(dim=10**30)
    yield "more than the", lambda d: d["inputs"][0].__setitem__(2, [2**20, 2**20])
    yield "a shape is", lambda d: d["inputs"][0].__setitem__(2, [-1])
    yield "a power that is too large", lambda d: d["inputs"][0].__setitem__(2, [["**", ["symbol", 0], 99]])
    yield "the formula .* gives no number", lambda d: d["inputs"][0].__setitem__(2, [["//", 1, 0]])
    yield "a dtype is 'object'", lambda d: d["inputs"][0].__setitem__(1, "object")
    yield "there is no tensor", lambda d: d["constants"].__setitem__(0, "elsewhere")
    yield "there is no tensor", lambda d: d["constants"].__setitem__(0, d["constants"][1])
    yield "has no place in its graph", lambda d: d["constants"].pop()
    yield "version 99, and this Wayfare reads 1", lambda d: d.update(version=99)
    yield "of the kind 'exec'", lambda d: (_node(d, "sort").update(kind="exec"), _node(d, "sort").pop("op"))
    yield "results have the form", lambda d: d.update(structure={"call": ["os.system"]})
    yield "layer_norm does not take int64", lambda d: _node(d, "layer_norm")["in"].__setitem__(0, 0)


@pytest.mark.parametrize("number", range(len(list(_changes()))))
def test_what_is_wrong_is_said(file, tmp_path, number):
    sentence, change = list(_changes())[number]
    document, arrays = unpacked(file)
    change(document)
    (tmp_path / "m.wf").write_bytes(packed(document, arrays))
    with pytest.raises(FileFormatError, match=sentence):
        wf.load_program(tmp_path / "m.wf", limit=1 << 24)


def test_a_value_of_a_block_is_not_known_outside_it(tmp_path):
    path = tmp_path / "a.wf"
    wf.export(doubled, (wf.ones(3),), path)
    document, arrays = unpacked(path)
    count = len(document["inputs"]) + len(document["constants"])
    loop = next(n for n in document["block"]["nodes"] if n.get("kind") == "loop")
    before = document["block"]["nodes"].index(loop)
    inner = count + sum(len(n["made"]) for n in document["block"]["nodes"][:before])
    document["block"]["out"] = [inner] * 2
    path.write_bytes(packed(document, arrays))
    with pytest.raises(FileFormatError, match=f"value {inner} is used where it is not known"):
        wf.load_program(path)


@pytest.mark.parametrize("change", [
    {"trips": None, "asks": False}, {"carried": -1}, {"carried": 10**9}, {"entry": 1}, {"trips": "many"}, {"more": 1},
])  # fmt: skip
def test_loops_that_are_none(tmp_path, change):
    path = tmp_path / "a.wf"
    wf.export(doubled, (wf.ones(3),), path)
    document, arrays = unpacked(path)
    loop = next(n for n in document["block"]["nodes"] if n.get("kind") == "loop")
    loop["attrs"].update(change)
    path.write_bytes(packed(document, arrays))
    with pytest.raises(FileFormatError, match="a loop of its graph|another number of values"):
        wf.load_program(path)


def test_depth_is_bounded(file, tmp_path):
    document, arrays = unpacked(file)
    for deep in (lambda n: [n], lambda n: {"list": [n]}):
        nested = "tensor"
        for _ in range(200):
            nested = deep(nested)
        (tmp_path / "m.wf").write_bytes(packed({**document, "structure": nested}, arrays))
        with pytest.raises(FileFormatError):
            wf.load_program(tmp_path / "m.wf")
    header, _ = header_bytes({}, {"wayfare.program": "[" * 100_000 + "]" * 100_000})
    (tmp_path / "m.wf").write_bytes(header)
    with pytest.raises(FileFormatError, match="nested too deeply"):
        wf.load_program(tmp_path / "m.wf")
