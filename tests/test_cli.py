"""The console command: what it prints, and what it returns."""

import json
import os
import subprocess
import sys

import pytest

from wayfare.cli import doctor
from wayfare.cli import main as cli


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"wayfare {cli.__version__}\n"


def test_no_command_shows_the_commands(capsys):
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "doctor" in shown
    assert "cache" in shown


def test_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["fly"])
    assert ended.value.code == 2
    assert "fly" in capsys.readouterr().err


def test_doctor_fits_eighty_columns_and_is_aligned(capsys):
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    entries = [line for line in lines if line.startswith("  ") and line[2] != " "]
    starts = {len(line) - len(line[2:].split("  ", 1)[1].lstrip()) for line in entries}
    assert len(starts) == 1


def test_doctor_says_what_a_bug_report_needs(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "machine", "computing", "gpu"]
    assert report["versions"]["wayfare"] == cli.__version__
    assert set(report["versions"]) == {"wayfare", "python", "numpy", "scipy", "rich", "llvmlite", "cupy"}
    assert {"system", "cpu", "cpu features", "memory"} == set(report["machine"])
    assert {"blas", "processors", "thread settings", "llvm", "devices"} <= set(report["computing"])
    assert all(found for entries in report.values() for found in entries.values())


def test_doctor_reports_settings_of_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("WAYFARE_EXAMPLE", "1")
    computing = doctor.examine()["computing"]
    assert "OMP_NUM_THREADS=3" in computing["thread settings"]
    assert "WAYFARE_EXAMPLE=1" in computing["wayfare settings"]


def test_doctor_says_whether_llvm_is_there(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "llvmlite")
    report = doctor.examine()
    assert report["versions"]["llvmlite"] == "not installed"
    assert report["computing"]["llvm"] == "absent"


def test_doctor_says_when_llvm_does_not_load(monkeypatch):
    def broken(name):
        raise OSError("libLLVM.so is missing")

    monkeypatch.setattr(doctor, "_installed", lambda name: True)
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(doctor, "import_module", broken)
    assert doctor.examine()["computing"]["llvm"] == "present, but it does not load: libLLVM.so is missing"


def test_doctor_says_why_there_is_no_gpu(monkeypatch):
    def broken(name):
        raise RuntimeError("the driver is older than the library")

    if not doctor.wf.cuda.is_available():
        assert doctor.examine()["computing"]["devices"] == "cpu"
        assert doctor.examine()["gpu"]["state"].startswith("not there: device: 'cuda' needs CuPy, which cannot be")
        assert doctor.examine()["gpu"]["state"].endswith('Install it with pip install "wayfare[cuda]".')
    monkeypatch.setattr(doctor.wf, "device", broken)
    assert doctor.examine()["gpu"]["state"] == "present, but it does not work: the driver is older than the library"


def test_doctor_names_the_cache_and_the_threads(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.settings, "cache_folder", tmp_path)
    monkeypatch.setattr(doctor.settings, "num_threads", 3)
    computing = doctor.examine()["computing"]
    assert computing["kernel cache"] == str(tmp_path) and computing["threads"] == "3"
    monkeypatch.setattr(doctor.settings, "cache_folder", None)
    assert doctor.examine()["computing"]["kernel cache"] == "off"


def test_doctor_works_where_the_system_tells_nothing(monkeypatch):
    """Other systems have no /proc: names come from the platform, features from NumPy."""
    monkeypatch.setattr(doctor, "_text_of", lambda path: "")
    monkeypatch.delattr(doctor.os, "sched_getaffinity", raising=False)
    report = doctor.examine()
    assert report["machine"]["cpu"]
    assert report["machine"]["cpu features"]
    assert report["computing"]["processors"] == str(doctor.os.cpu_count())


def test_long_entries_wrap_under_themselves():
    text = doctor.as_text({"section": {"name": "word " * 40, "other": "x"}})
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  name   word")
    assert lines[2].startswith("         word")


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--epochs", "0", "0 is not at least 1"),
        ("--epochs", "-1", "-1 is not at least 1"),
        ("--epochs", "many", "'many' is not a whole number"),
        ("--epochs", "1.5", "'1.5' is not a whole number"),
        ("--seed", "lucky", "'lucky' is not a whole number"),
        ("--seed", str(2**64), f"{2**64} does not fit into 64 bits"),
    ],
)
def test_demo_says_what_is_wrong_with_an_option(option, text, why, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", option, text])
    assert ended.value.code == 2
    assert f"argument {option}: {why}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"),
    [("demo", "Train small networks"), ("doctor", "Describe this"), ("cache", "Show or clear")],
)
def test_help_of_a_command_says_what_it_does(command, text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert text in capsys.readouterr().out


def test_demo_runs_as_a_command(capsys, tmp_path):
    assert cli.main(["demo", "regression", "--epochs", "1", "--out", str(tmp_path)]) == 0
    assert "Stage 5" in capsys.readouterr().out


def test_an_interrupt_ends_quietly(monkeypatch):
    def interrupted(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.demo_command, "run", interrupted)
    assert cli.main(["demo"]) == 130


def test_demo_runs_on_a_stream_that_knows_only_ascii(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "wayfare", "demo", "regression", "--epochs", "1", "--out", str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"Stage 5 ? Update" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close otherwise there")
def test_a_reader_that_leaves_is_no_error():
    """As in `wayfare doctor | head -0`: the reader is gone before the first line is written."""
    running = subprocess.Popen(
        [sys.executable, "-m", "wayfare", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running.stdout.close()
    assert running.stderr.read() == ""
    running.stderr.close()
    assert running.wait() == 141
