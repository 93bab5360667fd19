"""Types as users see them: mypy in strict mode over a user's script and over the examples."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")


@pytest.mark.parametrize("files", [[SCRIPT], sorted((ROOT / "examples").glob("*.py"))], ids=["script", "examples"])
def test_a_type_checker_agrees(files):
    pytest.importorskip("mypy")
    # The cache is the one of `make lint`, which has read the package already.
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", *map(str, files)], cwd=ROOT,
                          env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:map")
def test_the_script_runs(capsys):
    runpy.run_path(str(SCRIPT))
    assert "scaled" in capsys.readouterr().out
