"""The programs in examples/ run, learn, and do the same with batching as one example after the other."""

import functools
import importlib.util
import re
from pathlib import Path

import pytest

from wayfare.cli.demo import corpus, syntax, words

FOLDER = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture
def program(name, monkeypatch):
    """The program as a module; its data comes from fewer files, and is read once however often it runs."""
    files = corpus.source_files()[::3]
    for module in (syntax, words):
        monkeypatch.setattr(module, "source_files", lambda: files)
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for reader in {"read_trees", "read_sentences"} & vars(module).keys():
        setattr(module, reader, functools.cache(getattr(module, reader)))
    if hasattr(module, "source_files"):
        module.source_files = lambda: files
    return module


def losses_of(text):
    return [float(loss) for loss in re.findall(r"^step +\d+ +loss ([\d.]+)", text, re.MULTILINE)]


def test_there_is_one_for_every_shape_of_data():
    assert PROGRAMS == ["adaptive", "beam_search", "graphs", "sequences", "trees"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_learns_the_same_with_and_without_batching(program, capsys):
    program.main(["--steps", "4", "--batch", "8"])
    batched = capsys.readouterr().out
    program.main(["--steps", "4", "--batch", "8", "--loop"])
    looped = capsys.readouterr().out
    assert len(losses_of(batched)) == 2
    assert losses_of(batched) == pytest.approx(losses_of(looped), rel=2e-3)
    assert "groups" in batched and "groups" not in looped


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_on_batching_names_it(name):
    assert f"examples/{name}.py" in (FOLDER.parent / "docs" / "batching.md").read_text(encoding="utf-8")
