"""Files that are damaged, of another kind, or made to do harm: a clear error, nothing run, memory bounded."""

import collections
import io
import json
import os
import pickle
import random
import re
import tracemalloc
import zipfile

import numpy as np
import pytest

import wayfare as wf
from tests.io.mutations import mutated
from wayfare.errors import FileFormatError
from wayfare.io import load, save
from wayfare.io.files import read


def file_bytes(entries, data=b"", length=None, pad=True):
    """A file with this header, a dict or the text itself."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    text += b" " * (-len(text) % 8 if pad else 0)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def structured(structure, tensors=None, data=b"", **metadata):
    text = structure if isinstance(structure, str) else json.dumps(structure)
    about = {"wayfare.format": "1", "wayfare.structure": text} | metadata
    return file_bytes({"__metadata__": {k: v for k, v in about.items() if v is not None}, **(tensors or {})}, data)


def deep(opening, closing, count=100_000):
    return opening * count + closing * count


FOUR = b"\0" * 4
MALFORMED = {
    "no bytes": (b"", "cut off"),
    "three bytes": (b"abc", "cut off"),
    "a length alone": ((500).to_bytes(8, "little"), "cut off"),
    "a huge length": (b"\xff" * 8 + b"{}", "its header has 18,446,744,073,709,551,615 bytes"),
    "a length one too long": (file_bytes({}, length=9), "cut off"),
    "a length too short": (file_bytes({"a": tensor()}, FOUR, length=8), "not JSON"),
    "an empty header": (file_bytes(b"", pad=False), "does not begin"),
    "a header that is a list": (file_bytes(b"[]"), "does not begin"),
    "a header after white space": (file_bytes(b" {}"), "does not begin"),
    "a header that is not text": (file_bytes(b"{\"\xff\xfe\": 1}"), "not JSON"),
    "a header cut off": (file_bytes(b"{\"a\": {\"dtype\""), "not JSON"),
    "two headers": (file_bytes(b"{}{}"), "not JSON"),
    "a name twice": (file_bytes(b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), FOUR), "names 'a' twice"),
    "a key twice": (file_bytes(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', FOUR), "twice"),
    "metadata twice": (file_bytes(b'{"__metadata__":{},"__metadata__":{}}'), "twice"),
    "deep lists": (file_bytes(b'{"a":' + deep(b"[", b"]") + b"}"), "nested too deeply"),
    "deep objects": (file_bytes(deep(b'{"a":', b"}").replace(b":}", b":1}")), "nested too deeply"),
    "NaN": (file_bytes(b'{"a": NaN}'), "NaN"),
    "a number of 10,000 digits": (file_bytes(b'{"a": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "metadata that is a list": (file_bytes({"__metadata__": []}), "not an object of texts"),
    "metadata of numbers": (file_bytes({"__metadata__": {"a": 1}}), "not an object of texts"),
    "an entry that is a number": (file_bytes({"a": 1}), "not described"),
    "an entry without a shape": (file_bytes({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, FOUR), "not described"),
    "an entry with more": (file_bytes({"a": tensor() | {"class": "os.system"}}, FOUR), "not described"),
    "an unknown dtype": (file_bytes({"a": tensor("Q4")}, FOUR), "unknown dtype, 'Q4'"),
    "a dtype that is a list": (file_bytes({"a": tensor(["F32"])}, FOUR), "unknown dtype"),
    "a dtype of other frameworks": (file_bytes({"a": tensor("U32")}, FOUR), "U32, which Wayfare has not"),
    "a negative size": (file_bytes({"a": tensor(shape=[-1])}, FOUR), "impossible shape"),
    "a fractional size": (file_bytes({"a": tensor(shape=[1.0])}, FOUR), "impossible shape"),
    "a size that is True": (file_bytes({"a": tensor(shape=[True])}, FOUR), "impossible shape"),
    "a shape that is text": (file_bytes({"a": tensor() | {"shape": "1"}}, FOUR), "impossible shape"),
    "a hundred dimensions": (file_bytes({"a": tensor(shape=[1] * 100)}, FOUR), "impossible shape"),
    "a size beyond 64 bits": (file_bytes({"a": tensor(shape=[2**80])}, FOUR), "impossible shape"),
    "a product beyond 64 bits": (file_bytes({"a": tensor(shape=[2**62, 2**62])}, FOUR), "too large"),
    "an empty tensor too large": (file_bytes({"a": tensor(shape=[2**62, 2**62, 0], offsets=(0, 0))}), "too large"),
    "a shape larger than its bytes": (file_bytes({"a": tensor(shape=[2])}, FOUR), "8 bytes, but data_offsets of 4"),
    "one offset": (file_bytes({"a": tensor(offsets=[4])}, FOUR), "impossible data_offsets"),
    "offsets swapped": (file_bytes({"a": tensor(offsets=[4, 0])}, FOUR), "impossible data_offsets"),
    "negative offsets": (file_bytes({"a": tensor(offsets=[-4, 0])}, FOUR), "impossible data_offsets"),
    "offsets beyond the file": (file_bytes({"a": tensor(offsets=[0, 4])}, b"\0" * 3), "cut off: tensor 'a' ends"),
    "offsets far beyond the file": (file_bytes({"a": tensor(shape=[2**50], offsets=[0, 2**52])}, FOUR), "cut off"),
    "overlap": (file_bytes({"a": tensor(), "b": tensor(offsets=[2, 6])}, b"\0" * 6), "'b' overlaps tensor 'a'"),
    "the same bytes twice": (file_bytes({"a": tensor(), "b": tensor()}, FOUR), "overlaps"),
    "a gap": (file_bytes({"a": tensor(), "b": tensor(offsets=[8, 12])}, b"\0" * 12), "leaves a gap after tensor 'a'"),
    "a gap at the start": (file_bytes({"a": tensor(offsets=[4, 8])}, b"\0" * 8), "leaves a gap after the header"),
    "bytes at the end": (file_bytes({"a": tensor()}, b"\0" * 5), "1 bytes after its last tensor"),
    "a bool that is 2": (file_bytes({"a": tensor("BOOL", [2], [0, 2])}, b"\1\2"), "neither True nor False"),
    "a structure that is not JSON": (structured("{"), "the structure of .* is not JSON"),
    "a structure with a key twice": (structured('{"dict":[],"dict":[]}'), "twice"),
    "a deep structure": (structured("[" * 5000 + "]" * 5000), "nested"),
    "a structure a little too deep": (structured("[" * 70 + "]" * 70), "nested more than 64 deep"),
    "an unknown kind": (structured({"object": "os.system"}), "the unknown kind 'object'"),
    "a class by name": (structured({"class": "wayfare.nn.Linear"}), "the unknown kind 'class'"),
    "two kinds at once": (structured({"tuple": [], "dict": []}), "not one kind"),
    "no kind": (structured({}), "not one kind"),
    "a dict that is text": (structured({"dict": "ab"}), "dict that is not given as a list"),
    "a dict with a key twice": (structured({"dict": [["a", 1], ["a", 2]]}), "dict that cannot be read"),
    "a dict with a key that is a list": (structured({"dict": [[[], 1]]}), "dict that cannot be read"),
    "a dict with half an item": (structured({"dict": [["a"]]}), "dict that cannot be read"),
    "a dtype that is none": (structured({"dtype": "__class__"}), "dtype that cannot be read"),
    "a size that is text": (structured({"size": ["a"]}), "size that cannot be read"),
    "an int that is none": (structured({"int": "xyz"}), "int that cannot be read"),
    "a float of three bytes": (structured({"float": "aabbcc"}), "float that cannot be read"),
    "bytes that are not base64": (structured({"bytes": "*"}), "bytes that cannot be read"),
    "a float beyond floats": (structured("[1e999]"), "no float holds"),
    "a tensor that is not there": (structured({"tensor": "a"}), "has no tensor 'a'"),
    "a tensor in two places": (structured([{"tensor": "a"}] * 2, {"a": tensor()}, FOUR), "uses twice the tensor 'a'"),
    "a tensor in no place": (structured([], {"a": tensor()}, FOUR), "has no place"),
    "no version": (structured([], **{"wayfare.format": None}), "no 'wayfare.format'"),
    "a version to come": (structured([], **{"wayfare.format": "2", "wayfare.version": "9.1"}), "has format '2'.*9.1"),
    "a version without a structure": (structured([], **{"wayfare.structure": None}), "no 'wayfare.structure'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_a_clear_error(tmp_path, name):
    data, sentence = MALFORMED[name]
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FileFormatError, match=sentence) as caught:
        load(tmp_path / "file")
    assert len(str(caught.value)) < 700


def test_the_well_formed_neighbours_of_these_files_load():
    def value(data):
        return read(io.BytesIO(data), len(data), "it")[0]

    assert value(file_bytes({})) == {}
    assert value(file_bytes({"a": tensor()}, FOUR))["a"].tolist() == [0]
    assert value(file_bytes({"b": tensor(offsets=[4, 8]), "a": tensor()}, b"\0" * 8)).keys() == {"b", "a"}
    assert value(file_bytes({"a": tensor("BOOL", [2], [0, 2])}, b"\1\0"))["a"].tolist() == [True, False]
    assert value(file_bytes({"a": tensor(shape=[2**40, 0], offsets=(0, 0))}))["a"].shape == (2**40, 0)
    assert value(structured({"tuple": [{"tensor": "a"}]}, {"a": tensor()}, FOUR))[0].tolist() == [0]
    assert value(file_bytes({"a": tensor()}, FOUR, length=None, pad=False)).keys() == {"a"}


def test_a_header_over_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.write((200_000_000).to_bytes(8, "little") + b"{")
        file.truncate(300_000_000)  # a hole: takes no room on the disk
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="over the limit of 100,000,000"):
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_hostile_claim_of_memory_is_refused_before_it_is_taken(tmp_path):
    (tmp_path / "file").write_bytes(file_bytes({"a": tensor(shape=[2**40], offsets=[0, 2**42])}, FOUR))
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="cut off"):
        load(tmp_path / "file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.fixture
def sample_files(tmp_path):
    """A plain file and a structured one, as bytes."""
    state = {"w": wf.arange(6.0).reshape(2, 3), "b": wf.tensor([True, False]), "n": wf.zeros(0, dtype=wf.int16)}
    buffers = []
    for value in (state, {"model": state, "more": [1, (2.5, None), {3: "text", "big": 2**90}, b"ab", wf.float16]}):
        save(value, tmp_path / "sample")
        buffers.append((tmp_path / "sample").read_bytes())
    return buffers


def test_thousands_of_mutations_load_or_are_refused_in_bounded_memory(sample_files):
    rng = random.Random(20)
    reasons = collections.Counter()
    tracemalloc.start()
    for round in range(6000):
        data = mutated(sample_files[round % 2], rng)
        try:
            read(io.BytesIO(data), len(data), "it")
            reasons["loaded"] += 1
        except FileFormatError as error:
            reasons[re.sub(r"'.*'|[\d,]+", "", error.sentence)[:40]] += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Changes that reach far into the checks, and some that change nothing that matters.
    assert len(reasons) > 20 and reasons["loaded"] > 50, reasons
    assert peak < 3_000_000


@pytest.mark.parametrize("which", [0, 1])
def test_every_truncation_is_refused(sample_files, which):
    data = sample_files[which]
    for length in range(len(data)):
        with pytest.raises(FileFormatError):
            read(io.BytesIO(data[:length]), length, "the file")


def test_a_file_that_shrinks_while_it_is_read_is_refused(sample_files):
    data = sample_files[0]
    with pytest.raises(FileFormatError, match="became shorter"):
        read(io.BytesIO(data[:-5]), len(data), "the file")


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrapped", [lambda trap: trap, lambda trap: {"a": [trap]}, lambda trap: [trap] * 3])
def test_a_pickle_is_refused_by_name_and_not_run(tmp_path, protocol, wrapped):
    mark = str(tmp_path / "executed")
    (tmp_path / "file.pt").write_bytes(pickle.dumps(wrapped(Trap(mark)), protocol=protocol))
    with pytest.raises(FileFormatError, match="is a pickle") as caught:
        load(tmp_path / "file.pt")
    assert "save_file(torch.load(" in caught.value.fix
    assert not os.path.exists(mark)


def test_a_zip_of_torch_save_is_refused_by_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Trap(str(tmp_path / "executed"))))
    with pytest.raises(FileFormatError, match=r"model\.pt' is a zip archive, as torch\.save writes it") as caught:
        load(tmp_path / "model.pt")
    assert "safetensors" in caught.value.fix and not os.path.exists(tmp_path / "executed")


@pytest.mark.parametrize("start, kind", [
    (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"\x1f\x8b\x08", "gzip"), (b"GGUF", "GGUF"), (b"\n<!DOCTYPE html>", "web page"),
    (b"<html>", "web page"), (b"\x08\x0a\x12\x07wayfare", "ONNX model"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
])  # fmt: skip
def test_other_formats_are_named(tmp_path, start, kind):
    (tmp_path / "file").write_bytes(start + b"\xff" * 40)
    with pytest.raises(FileFormatError, match=kind):
        load(tmp_path / "file")


def test_a_numpy_file_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(FileFormatError, match="NumPy file") as caught:
        load(tmp_path / "a.npy")
    assert "numpy.load" in caught.value.fix


def test_a_safetensors_file_that_begins_like_a_pickle_loads():
    for length in (0x0280, 0x0480):
        text = json.dumps({"a": tensor()}).encode().ljust(length)
        data = file_bytes(text, FOUR)
        assert data[:1] == b"\x80" and data[1] in (2, 4)
        assert read(io.BytesIO(data), len(data), "it")[0]["a"].tolist() == [0]


@pytest.mark.parametrize("bits", [0x3F80, 0x8000, 0x7F80, 0xFF81, 0x0001, 0x7FFF])
def test_every_bit_of_a_bfloat16_is_kept(bits):
    data = file_bytes({"a": tensor("BF16", [2, 1], [0, 4])}, bits.to_bytes(2, "little") * 2)
    back = read(io.BytesIO(data), len(data), "it")[0]["a"]
    assert back.dtype is wf.bfloat16 and back.shape == (2, 1)
    assert back.numpy().view(np.uint16).tolist() == [[bits]] * 2


def test_a_structure_of_very_many_values_is_refused_before_it_is_read(tmp_path):
    """Each of them is two characters in the file and a hundred bytes in memory."""
    structure = "[" + "[]," * (1 << 22) + "0]"
    header = json.dumps({"__metadata__": {"wayfare.format": "1", "wayfare.structure": structure}}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="has more than 4,194,304 values"):
            wf.load(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(header)
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="more than the 4,194,304 values that a file can hold"):
        wf.save([0] * (1 << 22), tmp_path / "b")
