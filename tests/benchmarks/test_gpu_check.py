"""`tools/gpu_check.py`: a test that crashes, hangs or breaks its device leaves the others, and so does a whole part."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tools(monkeypatch):
    """The two files, loaded as when the command is run."""
    monkeypatch.syspath_prepend(str(TOOLS))
    found = []
    for name in ("gpu_tests", "gpu_check"):
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        found.append(module)
    return found


@pytest.fixture
def run(tools, tmp_path):
    """Write a file of tests and run it."""

    def run(text, seconds=120.0, each=10.0):
        file = tmp_path / "test_here.py"
        file.write_text("import os, time, pytest\n" + textwrap.dedent(text))
        record = tmp_path / "tests.jsonl"
        return tools[0].run_tests([str(file)], record, tmp_path / "tests.log", seconds, each)

    return run


def by_name(tests):
    return {name.rpartition("::")[2]: outcome for name, outcome in tests.outcomes.items()}


def test_every_test_gets_its_outcome(run):
    found = run("""
        def test_good(): pass
        def test_crash(): os.abort()
        def test_after(): pass
        def test_bad():
            assert 1 == 2
        @pytest.mark.skip(reason="no such card")
        def test_skipped(): pass
        def test_hang(): time.sleep(1000)
        @pytest.fixture
        def untidy():
            yield
            raise ValueError("left a mess")
        def test_teardown(untidy): pass
        def test_last(): pass
    """, each=4.0)  # fmt: skip
    assert by_name(found) == {
        "test_good": "passed", "test_crash": "crashed", "test_after": "passed", "test_bad": "failed",
        "test_skipped": "skipped", "test_hang": "hung", "test_teardown": "failed", "test_last": "passed",
    }  # fmt: skip
    assert found.summary() == "3 passed, 2 failed, 1 crashed, 1 hung, 1 skipped"
    assert not found.ok and not found.trouble
    told = found.markdown()
    assert "test_crash: crashed" in told and "SIGABRT" in told and "Fatal Python error: Aborted" in told
    assert "E       assert 1 == 2" in told and "ValueError: left a mess" in told
    assert "no end within 4 s" in told and "skipped 1 times: Skipped: no such card" in told


def test_a_broken_device_means_a_new_process(run):
    found = run("""
        BROKEN = []
        def test_breaks():
            BROKEN.append(1)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        def test_follows():
            assert not BROKEN
    """)
    assert by_name(found) == {"test_breaks": "failed", "test_follows": "passed"}


def test_all_is_well_only_if_all_was_run(run, tools, tmp_path):
    assert run("def test_good(): pass").ok
    late = run("""
        def test_good(): pass
        def test_slow(): time.sleep(1000)
        def test_never(): pass
    """, seconds=5.0, each=100.0)  # fmt: skip
    assert by_name(late) == {"test_good": "passed"}
    assert not late.ok and late.trouble == "The 5 s for tests were used up." and "2 not run" in late.summary()
    none = run("def helper(): pass")
    assert not none.ok and none.trouble.startswith("No test was found for: ")
    broken = run("import no_such_module")
    assert not broken.ok and "no_such_module" in broken.trouble


def test_a_part_that_fails_leaves_the_others(tools, tmp_path, monkeypatch, capsys):
    _, check = tools
    monkeypatch.setattr(check, "WAYFARE", "import os; os.abort()")
    monkeypatch.setattr(check, "TORCH", "import time; print('waiting', flush=True)")
    monkeypatch.setattr(check.Check, "build", lambda self: 1 / 0)
    nothing = tmp_path / "test_one.py"
    nothing.write_text("def test_one(): pass\n")
    out = tmp_path / "out"
    status = check.main(["--out", str(out), "--parts", "machine", "build", "tests", "--tests", str(nothing)])
    assert status == 1
    summary = (out / "summary.md").read_text()
    assert "- Wayfare: ended by SIGABRT" in summary and "waiting" in summary
    assert "ZeroDivisionError" in summary
    assert "1 passed, 0 failed" in summary
    assert summary.rstrip().endswith("- Wayfare cannot use the device\n- build: an error of this script")
    assert summary.strip() in capsys.readouterr().out.strip()


def test_the_suite_leaves_its_figures_even_if_it_is_cut_off(tools, tmp_path, monkeypatch):
    _, check = tools
    figures = (
        '{"environment": {"date": "d", "compared": "c", "under": "u", "suite": "s"}, "measurements": [], '
        '"skipped": [], '
        '"curves": {"rows": [{"title": "a row", "unit": "ms", "mine": "m", "best": {"m": 1.5}, "judged": [], '
        '"remarks": {}}]}}'
    )

    def cut_off(self, command, log, seconds):
        assert command[1:6] == ["-m", "benchmarks", "gpu", "--device", "cuda"] and "--quick" in command
        assert seconds == 240 + 120
        log.write_text("the last line\n")
        Path(command[command.index("--json") + 1]).write_text(figures)
        return "not done after 360 s"

    monkeypatch.setattr(check.Check, "process", cut_off)
    assert check.main(["--out", str(tmp_path), "--parts", "suite", "--quick"]) == 1
    summary = (tmp_path / "summary.md").read_text()
    assert "- suite: not done after 360 s" in summary and "the last line" in summary
    assert "| a row | 1.5 ms |  |  |  |" in (tmp_path / "table.md").read_text()


def test_a_command_that_takes_too_long_is_ended(tools, tmp_path):
    _, check = tools
    made = check.Check(check.parser().parse_args(["--out", str(tmp_path)]), tmp_path)
    sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]
    assert made.process(sleeping, tmp_path / "log", 1.0) == "not done after 1 s"
    assert "No such file" in made.process(["no_such_command"], tmp_path / "log", 1.0)


def test_packages_may_be_brought_along(tools, tmp_path):
    _, check = tools
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought_along/__init__.py", "answer = 4\n")
    check.unpack(wheels, target)
    made = check.Check(check.parser().parse_args(["--out", str(tmp_path)]), target)
    assert made.importable("brought_along") and not made.importable("no_such_package")
    assert made.snippet("import brought_along; print(brought_along.answer)", tmp_path / "log", 60) == ""
    assert (tmp_path / "log").read_text() == "4\n"


def test_the_command_runs_as_it_is_written_in_the_docs(tmp_path):
    done = subprocess.run([sys.executable, str(TOOLS / "gpu_check.py"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--wheels" in done.stdout and "table.md" in done.stdout
