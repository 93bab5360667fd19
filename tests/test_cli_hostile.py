"""The console command where the system does not play along: one sentence on standard error, and a status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wayfare as wf
from wayfare.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "import wayfare as wf\n\ndef f(x):\n    return x * 2\n\ncalls = (wf.ones(3),)\n"


def _shell(line, folder, **variables):
    """A command of a shell, where `wayfare` is the command; its status and what it said on standard error."""
    line = line.replace("wayfare ", f"{sys.executable} -m wayfare ", 1)
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ship_this.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("ship_this", None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    wf.export(lambda x: x * 2, (wf.ones(3),), folder / "a.wf")
    with wf.debug.record() as run:
        wf.ones(2) * 2
    run.save(folder / "run.json")
    return folder


def _is_one_sentence(said, *words):
    assert "Traceback" not in said and "Exception ignored" not in said, said
    assert said.startswith("wayfare") and said.count("\n") == 1, said
    for word in words:
        assert word in said, said


COMMANDS = ["doctor", "inspect a.wf", "view --no-browser run.json", "cache --folder", "--version"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_behind_the_output(files, command):
    status, said = _shell(f"wayfare {command} >/dev/full", files)
    assert status == 1
    _is_one_sentence(said, "No space left on device")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_closed(files, command):
    status, said = _shell(f"wayfare {command} >&-", files)
    assert status == 1
    _is_one_sentence(said, "standard output is closed")


def test_everything_closed(files):
    assert _shell("wayfare doctor >&- 2>&-", files) == (1, "")


def test_errors_without_an_error_stream_do_not_go_into_the_output(files):
    line = f"{sys.executable} -m wayfare inspect nothing 2>&-"
    done = subprocess.run(["sh", "-c", line], cwd=files, env=os.environ | {"PYTHONPATH": str(ROOT)},
                          stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="there is no such file here")
def test_a_file_that_cannot_be_read(capsys):
    assert main(["inspect", "/proc/self/mem"]) == 1
    _is_one_sentence(capsys.readouterr().err, "cannot read '/proc/self/mem'")
    with pytest.raises(wf.errors.FileAccessError, match="cannot read"):
        wf.load("/proc/self/mem")


def test_a_working_directory_that_is_gone(tmp_path):
    (tmp_path / "gone").mkdir()
    for command in ("export json:dumps --out a.wf --input x=float32[2]", "inspect a.wf", "view --no-browser run.json"):
        line = f"cd gone && rmdir ../gone && wayfare {command}"
        (tmp_path / "gone").mkdir(exist_ok=True)
        status, said = _shell(line, tmp_path)
        assert status == 1
        _is_one_sentence(said)


@pytest.mark.parametrize(("arguments", "words"), [
    (["./ship_this.py:f"], "'./ship_this.py' is not the name of a module"),
    (["ship_this.py:f"], "'ship_this.py' is not the name of a module"),
    ([".ship_this:f"], "'.ship_this' is not the name of a module"),
    (["ship this:f"], "'ship this' is not the name of a module"),
    (["ship_this:f", "--input", "x=int64[2]<0"], "from 1 to"),
    (["ship_this:f", "--input", "x=int64[2]<99999999999999999999"], "from 1 to"),
    (["ship_this:f", "--input", "x=uint8[2]<300"], "from 1 to 256"),
    (["ship_this:f", "--input", "x=float32[2]<3"], "float32 is drawn without a bound"),
    (["ship_this:f", "--input", "x=float32[99999999999999999999]"], "not enough memory"),
    (["ship_this:f", "--input", "x=float32[1000000,1000000]"], "not enough memory"),
    (["ship_this:f", "--input", "x=int64[1000000,1000000]"], "not enough memory"),
    (["ship_this:f", "--input", "x=float32[" + "1," * 70 + "]"], "dimensions"),
    (["ship_this:f", "--input", "x=float32[²]"], "is not a size"),
    (["ship_this:f", "--input", "x=float32[2]", "--input", "x=float32[3]"], "given twice"),
    (["ship_this:f", "--input", "x=float32[2]", "--examples", "ship_this:calls"], "--input and --examples"),
])  # fmt: skip
def test_what_cannot_be_exported_is_a_sentence(folder, capsys, arguments, words):
    assert main(["export", *arguments, "--out", "a.wf"]) == 1
    _is_one_sentence(capsys.readouterr().err, words)
    assert not (folder / "a.wf").exists()


def test_a_path_with_control_characters(tmp_path, capsys):
    with wf.debug.record() as run:
        wf.ones(2) * 2
    name = tmp_path / "new\nline\x1b[31m.json"
    run.save(name)
    assert main(["view", "--no-browser", str(name)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and shown.count("\n") == 1 and "new\\nline\\x1b[31m.html" in shown


def test_a_cache_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    status, said = _shell("wayfare cache --clear", tmp_path, WAYFARE_CACHE=str(tmp_path / "file"))
    assert status == 1
    _is_one_sentence(said, "is no folder")
