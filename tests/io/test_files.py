"""wf.save and wf.load: every value comes back as it was, bit by bit, and what cannot is refused by its place."""

import collections
import enum
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, FileAccessError, MissingFileError, WayfareError
from wayfare.io import load, save

DTYPES = [wf.bool, wf.uint8, wf.int8, wf.int16, wf.int32, wf.int64, wf.float16, wf.float32, wf.float64]


def round_trip(value, folder):
    path = folder / "file.safetensors"
    save(value, path)
    assert os.listdir(folder) == ["file.safetensors"]
    return load(path)


def same(a, b):
    """Equal in type and in every bit."""
    if isinstance(a, wf.Tensor):
        return (isinstance(b, wf.Tensor) and a.dtype is b.dtype and a.shape == b.shape
                and a.detach().numpy().tobytes() == b.numpy().tobytes())  # fmt: skip
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def random_bits(dtype, *shape):
    """An array with every bit pattern, NaNs with payloads among them."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.random.default_rng(3).integers(0, 2 if dtype is wf.bool else 256, count, dtype=np.uint8)
    return raw.view(dtype.name).reshape(shape)


LAYOUTS = {
    "whole": lambda a: a,
    "transposed": lambda a: a.T,
    "fortran": np.asfortranarray,
    "sliced": lambda a: a[1:5:2, 1:],
    "reversed": lambda a: a[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], (7, *a.shape)),
    "zero dimensions": lambda a: a[2, 3],
    "empty": lambda a: a[:0],
    "empty inside": lambda a: np.zeros((2, 0, 3), a.dtype),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_a_tensor_comes_back_bit_by_bit(tmp_path, dtype, layout):
    array = np.asarray(LAYOUTS[layout](random_bits(dtype, 6, 5)))
    for source in (wf.from_numpy(array), array, array.astype(array.dtype.newbyteorder(">"))):
        (back,) = round_trip({"x": source}, tmp_path).values()
        assert back.dtype is dtype and back.shape == array.shape
        assert back.numpy().tobytes() == array.tobytes()
        assert same(round_trip([source], tmp_path)[0], back)


def test_tensors_that_share_memory_come_back_apart(tmp_path):
    base = wf.arange(6.0)
    back = round_trip({"base": base, "again": base, "view": base[2:4], "row": base.view(2, 3)[1]}, tmp_path)
    assert back["view"].tolist() == [2, 3] and back["row"].tolist() == [3, 4, 5]
    back["base"].fill_(9)
    assert back["again"].tolist() == [0, 1, 2, 3, 4, 5] and back["view"].tolist() == [2, 3]


def test_what_needs_gradients_comes_back_as_plain_values_that_can_be_written(tmp_path):
    w = wf.randn(3, requires_grad=True)
    back = round_trip({"w": w, "y": w * 2, "deep": [w]}, tmp_path)
    assert not any(t.requires_grad for t in (back["w"], back["y"], back["deep"][0]))
    assert same(w, back["w"]) and same((w * 2).detach(), back["y"])
    back["w"].add_(1)
    assert not same(w, back["w"])


def test_saving_does_not_touch_what_is_saved(tmp_path):
    state = {"a": wf.arange(4.0), "b": [1, (2, wf.ones(2))]}
    version = state["a"]._version
    round_trip(state, tmp_path)
    assert state["a"].tolist() == [0, 1, 2, 3] and state["a"]._version == version and list(state) == ["a", "b"]


VALUES = [
    0, -1, True, False, None, 2**53, 2**53 + 1, -(2**53) - 1, 2**64, -(7**3000), 10**5000,
    0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, 1e16, math.inf, -math.inf, math.nan, -math.nan,
    struct.unpack("<d", struct.pack("<Q", 0x7FF0DEADBEEF0001))[0],
    "", "text", "é 漢 🜁 \0 \" \\ \n", "\ud800 alone", b"", bytes(range(256)),
    wf.float32, wf.bool, wf.Size([2, 3]), wf.Size([]), (), [], {}, (1,), [[]], ((), [()], {}),
    {"b": 1, "a": 2}, {0: "zero", "0": "text", -5: None, 2**70: ()}, {"tensor": "x"}, {"dict": []}, [{"tuple": [1]}],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_exactly(tmp_path, value):
    assert same(value, round_trip(value, tmp_path))
    assert same([value, {"k": (value,)}], round_trip([value, {"k": (value,)}], tmp_path))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(nested)
def test_any_nesting_comes_back(tmp_path_factory, value):
    assert same(value, round_trip(value, tmp_path_factory.mktemp("any")))


def test_numpy_numbers_and_special_dicts_come_back_as_pythons(tmp_path):
    state = [np.float32(0.1), np.float64(0.1), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.str_("s"),
             collections.OrderedDict(a=1), collections.Counter("aab"), collections.defaultdict(list, x=[1])]
    wanted = [float(np.float32(0.1)), 0.1, -3, 2**64 - 1, True, "s", {"a": 1}, {"a": 2, "b": 1}, {"x": [1]}]
    assert same(wanted, round_trip(state, tmp_path))


def test_a_flat_dict_of_tensors_keeps_its_names_and_their_order(tmp_path):
    names = ["z.weight", "a", "", "name with \" and é", "b~2", "0"]
    state = {name: wf.full((2,), float(i), dtype=DTYPES[3 + i]) for i, name in enumerate(names)}
    assert same(state, round_trip(state, tmp_path))
    header = (tmp_path / "file.safetensors").read_bytes()
    assert b"wayfare" not in header


@pytest.mark.parametrize("name", ["__metadata__", "half \ud800"])
def test_names_that_a_file_cannot_have_are_kept_in_the_structure(tmp_path, name):
    state = {name: wf.ones(2), "tensor": wf.zeros(1)}
    assert same(state, round_trip(state, tmp_path))


def test_nested_names_that_run_together_stay_apart(tmp_path):
    state = {"a.b": wf.zeros(1), "a": {"b": wf.ones(1), "b~2": wf.full((1,), 2.0)}, 0: [wf.full((1,), 3.0)]}
    assert same(state, round_trip(state, tmp_path))


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


class Model:
    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    "value, place, why, fix",
    [
        ({"optimizer": {"fn": len}}, 'state["optimizer"]["fn"]', "builtin_function", "Code is never saved"),
        ([1, (2, {3: lambda: 0})], "state[1][1][3]", "a function", "Code is never saved"),
        (Model(), "state", "a Model", "state_dict()"),
        ({"m": Model()}, 'state["m"]', "a Model", "state_dict()"),
        ({"s": {1}}, 'state["s"]', "a set", "sorted"),
        ([Point(1, 2)], "state[0]", "a Point", "_asdict"),
        ([Colour.RED], "state[0]", "a Colour", "name"),
        ([1j], "state[0]", "a complex", "It holds"),
        ([np.longdouble(1)], "state[0]", "longdouble", "It holds"),
        ([np.zeros(2, np.uint16)], "state[0]", "NumPy array of uint16", "float32"),
        ([np.zeros(2, object)], "state[0]", "NumPy array of object", "float32"),
        ([np.ma.masked_array([1.0], [True])], "state[0]", "MaskedArray", "float32"),
        ({"a": {1.5: 2}}, 'state["a"]', "the key 1.5, a float", "str or int"),
        ({True: 2}, "state", "the key True, a bool", "str or int"),
        ({"é": wf.device("cpu")}, 'state["é"]', "a Device", "It holds"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_named_by_its_place_before_any_file_is_touched(tmp_path, value, place, why, fix):
    path = tmp_path / "file"
    save([1], path)
    before = os.stat(path)
    with pytest.raises(ArgumentTypeError) as caught:
        save(value, path)
    assert caught.value.sentence.startswith(f"save: {place} ")
    assert why in caught.value.sentence and fix in caught.value.fix
    assert os.stat(path) == before and os.listdir(tmp_path) == ["file"]
    with pytest.raises(ArgumentTypeError):
        save(value, tmp_path / "new")
    assert os.listdir(tmp_path) == ["file"]


def test_all_that_cannot_be_kept_is_listed(tmp_path):
    with pytest.raises(ArgumentTypeError) as caught:
        save({"a": len, "b": [{1}], "ok": 1}, tmp_path / "f")
    assert 'state["a"]' in str(caught.value) and 'state["b"][0]' in str(caught.value)
    with pytest.raises(ArgumentTypeError, match="and 95 more"):
        save([len] * 100, tmp_path / "f")


def test_a_container_inside_itself_and_one_too_deep_are_refused(tmp_path):
    loop = {"a": [1]}
    loop["a"].append(loop)
    with pytest.raises(ArgumentTypeError, match=r'state\["a"\]\[1\] contains itself'):
        save(loop, tmp_path / "f")
    shared = [1, 2]
    assert load_of([shared, shared], tmp_path) == [[1, 2], [1, 2]]
    deep = []
    for _ in range(63):
        deep = [deep]
    assert load_of(deep, tmp_path) == deep
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(ArgumentTypeError, match="nested more than 64 deep"):
        save(deep, tmp_path / "f")


def load_of(value, folder):
    save(value, folder / "f")
    return load(folder / "f")


def test_a_structure_too_large_for_a_header_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("wayfare.io.header.MAX_HEADER", 1000)
    with pytest.raises(ArgumentError, match="as text, over the 1,000"):
        save(list(range(1000)), tmp_path / "f")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["f", Path("f")])
def test_paths_can_be_text_or_path_objects(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    save([1], path)
    assert load(path) == [1]


@pytest.mark.parametrize("path", [3, None, b"f", "", "a\0b", open])
def test_what_is_no_path_is_refused(path):
    with pytest.raises((ArgumentTypeError, ArgumentError), match="path"):
        save([1], path)
    with pytest.raises((ArgumentTypeError, ArgumentError), match="path"):
        load(path)


def test_swapped_arguments_are_noticed():
    with pytest.raises(ArgumentTypeError, match=r"wf\.save\(value, path\)"):
        save("file", {"w": wf.ones(1)})


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file") as caught:
        load(tmp_path / "none")
    assert isinstance(caught.value, MissingFileError) and caught.value.errno == 2
    assert "test_files.py:" in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"does not exist .*test_files\.py:.*os\.makedirs"):
        save([1], tmp_path / "no" / "f")
    with pytest.raises(FileAccessError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(OSError, match="is a folder"):
        save([1], tmp_path)


def test_devices_and_pipes_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(FileAccessError, match="device or pipe"):
            load(path)
        with pytest.raises(FileAccessError, match="device or pipe"):
            save([1], path)


def test_arguments_of_pytorchs_load_are_understood(tmp_path):
    save({"w": wf.ones(1)}, tmp_path / "f")
    assert same(load(tmp_path / "f", map_location="cpu", weights_only=True)["w"], wf.ones(1))
    assert same(load(tmp_path / "f", weights_only=False)["w"], wf.ones(1))
    with pytest.raises(WayfareError, match="cuda"):
        load(tmp_path / "f", map_location="cuda")


def test_a_ragged_tensor_is_refused_with_its_parts(tmp_path):
    r = wf.Ragged([[1, 2], [3]])
    with pytest.raises(ArgumentTypeError, match="is a Ragged.*Save r.values and r.offsets"):
        save({"r": r}, tmp_path / "file.safetensors")
    values, offsets = round_trip((r.values, r.offsets), tmp_path)
    assert wf.Ragged.from_parts(values, offsets).tolist() == [[1, 2], [3]]
