"""What goes wrong with files and memory has the type that says so, and names the caller's line."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import FileAccessError, FileFormatError, MissingFileError, OutOfMemoryError

ROOT = Path(__file__).resolve().parents[2]
HERE = os.path.basename(__file__)


def _python(code, **variables):
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's here")
def test_a_tensor_larger_than_the_memory(tmp_path):
    size = 20 << 30
    header = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with open(tmp_path / "a.st", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    done = _python(
        "import resource, wayfare as wf\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        f"try: wf.load({str(tmp_path / 'a.st')!r})\n"
        "except wf.errors.OutOfMemoryError as error: print(error)"
    )
    assert done.stdout.startswith("load: not enough memory for the tensors of "), done.stderr


@pytest.mark.parametrize("make", [
    lambda n: wf.randn(n), lambda n: wf.rand(n), lambda n: wf.randint(0, 5, (n,)), lambda n: wf.randperm(n),
    lambda n: wf.normal(0.0, 1.0, (n,)), lambda n: wf.zeros(n), lambda n: wf.tril_indices(n, 3),
    lambda n: wf.rand(10**10, n), lambda n: wf.ones(1).expand(n // 10**6, 10**6).contiguous(),
])  # fmt: skip
def test_more_numbers_than_can_be_counted(make):
    with pytest.raises(OutOfMemoryError):
        make(10**20)


@pytest.mark.parametrize("ask", [lambda c: c.save(epoch=1), lambda c: c.latest, lambda c: c.restore(), repr])
def test_a_folder_whose_name_is_too_long(tmp_path, ask):
    checkpoint = wf.Checkpoint(tmp_path / ("a" * 300), m=wf.nn.Linear(2, 2))
    with pytest.raises(FileAccessError, match="Checkpoint: cannot .*name too long"):
        ask(checkpoint)


def test_a_folder_that_is_not_there_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFileError, match="does not exist"):
        wf.save({"a": 1}, "nodir/../c.st")
    with wf.debug.record() as run:
        wf.ones(2) * 2
    for write in (lambda path: run.save(path + ".json"), lambda path: wf.export(wf.relu, (wf.ones(2),), path + ".wf")):
        with pytest.raises(MissingFileError, match="does not exist"):
            write("nodir/../c")
    assert os.listdir(tmp_path) == []
    os.makedirs("there")
    wf.save({"a": 1}, "there/../c.st")
    assert wf.load("c.st") == {"a": 1}


def test_bools_of_any_bytes_can_be_read_again(tmp_path):
    odd = wf.from_numpy(np.array([0, 1, 2, 255], np.uint8).view(bool))
    wf.save({"a": odd}, tmp_path / "a.st")
    assert wf.load(tmp_path / "a.st")["a"].tolist() == [False, True, True, True]


@pytest.mark.parametrize("header", ['{"a":1,"a":2}', '{"a":NaN}', '{"a":', '{"__metadata__":{"a":"b","a":"c"}}'])
def test_the_line_is_the_callers(tmp_path, header):
    (tmp_path / "a.st").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(FileFormatError, match=HERE):
        wf.load(tmp_path / "a.st")


@pytest.mark.parametrize(("name", "text"), [
    ("WAYFARE_NUM_THREADS", "abc"), ("WAYFARE_NUM_THREADS", "0"), ("WAYFARE_NUM_THREADS", "-2"),
    ("WAYFARE_POOL_LIMIT", "1GB"), ("WAYFARE_CACHE_LIMIT", "x"), ("WAYFARE_STATISTICS_THRESHOLD", "1.5"),
])  # fmt: skip
def test_settings_that_are_no_numbers_are_named_once(name, text):
    done = _python("import wayfare as wf; wf.ones(3) + 1", **{name: text})
    assert done.returncode == 0
    assert done.stderr.count(f"{name}={text!r} is not") == 1, done.stderr
    assert _python("import wayfare as wf", **{name: "3"}).stderr == ""
    assert _python("import wayfare as wf", **{name: ""}).stderr == ""
