"""`wayfare demo`: which demos run, what happens when one cannot, and where files go."""

import re

import pytest

from wayfare.cli import main
from wayfare.cli.demo import command, corpus
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import Outcome


@pytest.fixture
def ran(monkeypatch):
    """The demos replaced by ones that only note how they were called."""
    calls = []

    def pretend(name):
        def run(page, results, epochs, seed):
            calls.append((name, str(results.folder), epochs, seed))
            page.say(f"this is {name}")
            return Outcome(0.75, 0.5)

        return run

    for name, demo in command.DEMOS.items():
        monkeypatch.setattr(demo, "run", pretend(name))
    return calls


def test_without_a_name_all_run_with_their_own_epochs(ran, capsys):
    assert main.main(["demo"]) == 0
    assert ran == [(name, f"wayfare-demo/{name}", demo.EPOCHS, 0) for name, demo in command.DEMOS.items()]
    table = capsys.readouterr().out.split("All demos")[1]
    assert re.findall(r"\| (\w+) +\| +75.0% \| +50.0% \|", table) == ["regression", "sequences", "trees"]


def test_options_go_to_each(ran, capsys):
    assert main.main(["demo", "all", "--epochs", "3", "--seed", "7", "--out", "here"]) == 0
    assert ran == [(name, f"here/{name}", 3, 7) for name in command.DEMOS]


@pytest.mark.parametrize("name", command.DEMOS)
def test_one_runs_alone(name, ran, capsys):
    assert main.main(["demo", name]) == 0
    assert [call[0] for call in ran] == [name]
    assert capsys.readouterr().out == f"this is {name}\n"


def test_an_unknown_demo_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["demo", "flight"])
    assert ended.value.code == 2
    assert "'flight'" in capsys.readouterr().err


def test_without_sources_the_others_run(monkeypatch, tmp_path, capsys):
    nothing = tmp_path / "nothing"
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(nothing))
    out = tmp_path / "out"
    assert main.main(["demo", "--epochs", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("There are no Python sources in") == 2
    assert "Stage 5 · Update" in shown
    assert [path.name for path in out.iterdir()] == ["regression"]
    assert main.main(["demo", "trees", "--out", str(out)]) == 1


def test_a_folder_that_cannot_be_written_is_said(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main.main(["demo", "regression", "--epochs", "1", "--out", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("wayfare demo: cannot write to ") and said.count("\n") == 1


def test_an_interrupt_while_training_ends_the_command(monkeypatch, tmp_path, capsys):
    def interrupted(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.regression.wf.optim.AdamW, "step", interrupted)
    assert main.main(["demo", "regression", "--out", str(tmp_path)]) == main.INTERRUPTED


def test_page_keeps_to_its_width(capsys):
    page = Page()
    page.say("word " * 40)
    page.entries({"a": "x" * 100, "bb": "y"})
    page.bars({"one": 3, "two": 0, "three": 1000})
    page.chances({"a": 0.25, "b": 0.75}, truth="a")
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert lines[-2:] == ["  b   75.0%  " + "#" * 22, "  a   25.0%  ########  <- the truth"]
    assert "    two   0" in lines and "    one  # 3" in lines
