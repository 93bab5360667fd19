"""The project itself: what a stranger who installs or clones it relies on."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import wayfare as wf
from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[1]
NOT_OURS = {".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project_files():
    """The files git tracks or would track, or, in a copy without git, all that are not caches."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        listed = subprocess.run(
            [git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = list(ROOT.rglob("*"))
    return [path for path in paths if path.is_file() and not NOT_OURS.intersection(path.parts)]


# Names of somebody's machine, never of the user's. The pattern does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.*\])}])/(?:home|Users|root|work|tmp/venv|opt/wheels)/[\w.]", re.ASCII)


def machine_paths(text):
    """The lines of a text that name a folder of somebody's machine."""
    return [number for number, line in enumerate(text.splitlines(), start=1) if MACHINE_PATH.search(line)]


def test_no_file_names_a_folder_of_somebodys_machine():
    files = project_files()
    assert ROOT / "pyproject.toml" in files
    found = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{line}" for line in machine_paths(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["home/ann", "root/x", "Users/ann", "work/main", "tmp/venv/bin"])
def test_a_folder_of_a_machine_is_found(folder):
    assert machine_paths(f"ok\nsee /{folder}/notes\n") == [2]
    assert machine_paths(f"docs/{folder}/notes, https://example.org/{folder}") == []


def test_version_is_stated_once():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "wayfare/core/version.py"
    stated = (ROOT / "wayfare" / "core" / "version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{wf.__version__}"' in stated


def test_installed_version_is_the_version_of_the_source():
    try:
        installed = metadata.version("wayfare")
    except metadata.PackageNotFoundError:
        pytest.skip("wayfare runs from its source tree here and is not installed")
    assert installed == wf.__version__


def test_changelog_opens_with_the_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0].startswith(wf.__version__)


def test_package_is_typed():
    assert (ROOT / "wayfare" / "py.typed").is_file()


def run_wayfare(*command):
    """Run a command and return the finished process."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_module_runs_as_a_command():
    done = run_wayfare(sys.executable, "-m", "wayfare", "--version")
    assert (done.returncode, done.stdout) == (0, f"wayfare {wf.__version__}\n")


def test_console_command_is_installed():
    assert PROJECT["project"]["scripts"] == {"wayfare": "wayfare.cli.main:main"}
    command = Path(sys.executable).with_name("wayfare")
    if not command.exists():
        pytest.skip("wayfare runs from its source tree here and is not installed")
    done = run_wayfare(str(command), "--version")
    assert (done.returncode, done.stdout) == (0, f"wayfare {wf.__version__}\n")


def test_package_imports_nothing_heavy():
    """Torch is the referee and never a dependency; LLVM is loaded when a kernel is wanted."""
    code = "import sys, wayfare; print(sorted({'torch', 'jax', 'llvmlite'} & set(sys.modules)))"
    done = run_wayfare(sys.executable, "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_dependencies_are_imported_by_the_package():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "wayfare").rglob("*.py")]
    for requirement in PROJECT["project"]["dependencies"]:
        name = re.match(r"[\w-]+", requirement)[0].replace("-", "_")
        used = re.compile(rf"^\s*(?:import|from) {name}\b|import_module\(\"{name}\b", re.MULTILINE)
        assert any(used.search(source) for source in sources), f"{name} is required and never imported"


def test_ci_runs_make_test_with_the_referee():
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert "make test" in lines
    assert os.access(script, os.X_OK)
    # The referee is named in two places, because the script also shows what it installs: they agree.
    (torch,) = [name for name in PROJECT["project"]["optional-dependencies"]["referee"] if "torch" in name]
    assert any(f'"{torch}"' in line and '"expecttest"' in line for line in lines)


TARGETS = ["help", "demo", "test", "test-all", "test-core", "test-long", "lint", "bench", "docs", "clean"]


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_target(target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:.*## \S", makefile, re.MULTILINE)


def test_public_names_exist_once():
    assert len(set(wf.__all__)) == len(wf.__all__)
    missing = [name for name in wf.__all__ if not hasattr(wf, name)]
    assert not missing


def test_public_callables_are_documented():
    bare = [
        name for name in wf.__all__
        if callable(getattr(wf, name)) and not (inspect.getdoc(getattr(wf, name)) or "").strip()
    ]  # fmt: skip
    assert not bare


def test_api_pages_are_what_the_docstrings_say():
    done = run_wayfare(sys.executable, "tools/make_api_docs.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_is_on_the_page():
    source = (ROOT / "wayfare" / "core" / "config.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "profiling.md").read_text(encoding="utf-8")
    named = set(re.findall(r"WAYFARE_\w+", source))
    assert len(named) >= 5 and not [name for name in named if f"| `{name}` |" not in page]


def test_type_checkers_know_the_names_that_are_loaded_late():
    source = (ROOT / "wayfare" / "__init__.py").read_text(encoding="utf-8")
    _, _, block = source.partition("if _typing.TYPE_CHECKING:\n")
    known = set(re.findall(r"\w+", " ".join(line for line in block.split("\n\n")[0].splitlines() if "import" in line)))
    early = {"errors", "linalg", "signal", "special", "testing"}
    late = {*wf._LAZY_MODULES, *wf._LAZY_NAMES} - early
    assert late <= known and late <= set(wf.__all__)


def test_the_list_of_long_tests_names_what_is_there():
    missing = [name for name in LONG if not list((ROOT / "tests").glob(f"{name.rstrip('/')}*"))]
    assert not missing, f"tests/conftest.py: LONG names what is not there: {missing}"
