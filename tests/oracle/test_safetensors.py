"""Files side by side: what Wayfare writes PyTorch's readers read, and the other way round, bit by bit."""

import io
import json
import random

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")
pytest.importorskip("safetensors", reason="the referee of files needs the safetensors library")

import safetensors
import torch
from safetensors import torch as theirs
from safetensors.numpy import save as their_save

import wayfare as wf
from tests.io.mutations import mutated
from wayfare.errors import FileFormatError
from wayfare.io import load, save
from wayfare.io.files import read

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def bits(array):
    return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()


def samples():
    """A state of every dtype and many layouts, as NumPy arrays by name."""
    rng = np.random.default_rng(4)
    state = {}
    for dtype in DTYPES:
        whole = (rng.standard_normal((4, 6)) * 50).astype(dtype)
        state |= {f"{dtype}.whole": whole, f"{dtype}.columns": whole[:, ::-2], f"{dtype}.turned": whole.T,
                  f"{dtype}.spread": np.broadcast_to(whole[:1], (3, 6)), f"{dtype}.scalar": whole[0, 0],
                  f"{dtype}.empty": whole[:0]}  # fmt: skip
    return {name: np.asarray(array) for name, array in state.items()}


def test_pytorch_reads_what_wayfare_writes(tmp_path):
    state = samples()
    save({name: wf.from_numpy(array) for name, array in state.items()}, tmp_path / "model.safetensors")
    back = theirs.load_file(tmp_path / "model.safetensors")
    assert back.keys() == state.keys()
    for name, array in state.items():
        assert bits(back[name].numpy()) == bits(array), name


def test_wayfare_reads_what_pytorch_writes(tmp_path):
    state = samples()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
    theirs.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "é"})
    back = load(tmp_path / "model.safetensors")
    assert back.keys() == state.keys()
    for name, array in state.items():
        assert bits(back[name].numpy()) == bits(array), name


def test_every_bfloat16_is_read_and_written(tmp_path):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    theirs.save_file({"all": every, "one": every[3].clone(), "none": every[:0].clone()}, tmp_path / "f")
    back = load(tmp_path / "f")
    assert back["all"].dtype is wf.bfloat16 and back["one"].shape == () and back["none"].shape == (0,)
    assert back["all"].numpy().tobytes() == every.view(torch.int16).numpy().tobytes()
    save(back, tmp_path / "ours")
    again = theirs.load_file(tmp_path / "ours")
    assert again["all"].dtype is torch.bfloat16 and torch.equal(again["all"].view(torch.int16), every.view(torch.int16))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_wayfare_has_not_are_named(tmp_path, dtype):
    theirs.save_file({"layer.w": torch.zeros(2, 3).to(getattr(torch, dtype))}, tmp_path / "f")
    with pytest.raises(FileFormatError, match=r"tensor 'layer\.w' .* has dtype \w+, which Wayfare has not"):
        load(tmp_path / "f")


def test_a_structured_file_is_a_sound_safetensors_file(tmp_path):
    state = {"model": {"w": wf.ones(2, 3).T, "é": wf.zeros(())}, "optimizer": {"state": {0: {"step": wf.tensor(2.0)}}},
             "name": "half \ud800", "big": 2**100}  # fmt: skip
    save(state, tmp_path / "f")
    with safetensors.safe_open(tmp_path / "f", "pt") as file:
        assert set(file.keys()) == {"model.w", "model.é", "optimizer.state.0.step"}
        assert file.get_tensor("model.w").tolist() == [[1.0, 1.0]] * 3
        assert json.loads(file.metadata()["wayfare.structure"])["dict"][0][0] == "model"


def test_files_of_torch_save_are_refused_with_the_two_lines_that_convert_them(tmp_path):
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "new.pt")
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("new.pt", "old.pt"):
        with pytest.raises(FileFormatError, match="torch.save") as caught:
            load(tmp_path / name)
        first, second = [part.strip("`.") for part in caught.value.fix.split(": ", 1)[1].split(" and ")]
        names = {"torch": torch}
        exec(first, names)
        exec(second.replace("'model.safetensors'", repr(str(tmp_path / "model.safetensors"))), names)
        assert load(tmp_path / "model.safetensors")["weight"].tolist() == model.weight.tolist()


def test_whatever_the_library_refuses_is_refused_and_what_is_read_is_the_same(tmp_path):
    rng = random.Random(8)
    save({"w": wf.arange(6.0).reshape(2, 3), "b": wf.tensor([1, 2], dtype=wf.int16), "n": wf.zeros(0)}, tmp_path / "f")
    original = (tmp_path / "f").read_bytes()
    both = stricter = 0
    for _ in range(4000):
        data = mutated(original, rng)
        try:
            expected = dict(safetensors.deserialize(data))
        except safetensors.SafetensorError:
            expected = None
        try:
            found = read(io.BytesIO(data), len(data), "it")[0]
        except FileFormatError:
            stricter += expected is not None
            continue
        assert expected is not None, data
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert expected[name]["shape"] == list(tensor.shape)
            assert bytes(expected[name]["data"]) == tensor.numpy().tobytes()
        both += 1
    assert both > 30 and stricter > 0


def test_the_reasons_for_writing_files_ourselves(tmp_path):
    """If these begin to fail the library has been mended, and could take over."""
    turned = np.arange(6.0).reshape(2, 3).T
    assert safetensors.deserialize(their_save({"a": turned}))[0][1]["data"] != turned.tobytes()
    entry = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = (b"{" + entry + b"," + entry + b"}").ljust(112)
    assert len(safetensors.deserialize(len(header).to_bytes(8, "little") + header + bytes(4))) == 1
