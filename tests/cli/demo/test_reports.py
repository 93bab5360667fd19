"""Each demo writes a page with every section in it."""

import re

import pytest

from tests.see.report.parts import SECTIONS, Reader
from wayfare.cli.demo import command, regression, sequences, trees
from wayfare.cli.demo.corpus import NoSourcesError
from wayfare.cli.demo.results import REPORT, Outcome


@pytest.fixture(scope="module")
def pages(short_runs):
    """The page of each demo."""
    return {demo: (run, Reader((run.folder / REPORT).read_text(encoding="utf-8"))) for demo, run in short_runs.items()}


@pytest.mark.parametrize("demo", [sequences, trees])
def test_every_section_is_there(pages, demo):
    _, page = pages[demo]
    assert list(page.sections) == SECTIONS
    assert page.absent == []


def test_rows_of_numbers_are_not_batched(pages):
    assert pages[regression][1].absent == ["batching"]


@pytest.mark.parametrize(
    ("demo", "stages", "layers"),
    [
        (regression, ["rows", "labels", "training rows", "batch"], ["hidden", "squash", "output"]),
        (sequences, ["functions", "words", "numbers", "batch"], ["embedding", "dropout", "cell", "output"]),
        (trees, ["functions", "tree", "numbers", "batch"], ["embedding", "cell", "dropout", "output"]),
    ],
)
def test_the_data_flows_from_raw_to_loss(pages, demo, stages, layers):
    text = pages[demo][1].sections["flow"].partition("what comes out.")[2]
    at = -1
    for number, name in enumerate([*stages, *layers, "loss", "backward"], start=1):
        found = text.find(f"{number}{name}", at + 1)
        assert found > at, f"stage {number} is not {name}"
        at = found


def test_the_page_tells_what_the_terminal_tells(pages):
    run, page = pages[trees]
    assert f"{run.outcome.accuracy:.1%}" in page.sections["metrics"]
    assert f"{run.outcome.baseline:.1%}" in page.sections["metrics"]
    shown = re.search(r"embedding +\| Embedding +\| \[(\d+), 32\]", run.text)[1]
    assert f"f32[{shown},32]" in page.sections["prediction"]


def test_gradients_and_batching_are_of_the_model(pages):
    for demo, cell in ((sequences, "LSTMCell"), (trees, "ChildSumTreeLSTMCell")):
        _, page = pages[demo]
        assert "cell.weight_ih" in page.sections["training"]
        assert cell in page.sections["batching"] and cell in page.sections["prediction"]


def test_lengths_have_plans_of_their_own(pages):
    text = pages[sequences][1].sections["ways"]
    assert "one_sequence, 2 batches" in text and "2 shapes of arguments" in text


def test_the_list_of_files_begins_with_the_page(pages):
    for run, _ in pages.values():
        files = run.text[run.text.index("\nFiles") :]
        assert re.findall(r"^  (\S+)  ", files, re.MULTILINE)[0] == REPORT
        assert max(map(len, run.text.splitlines())) <= 80 or str(run.folder) in run.text


def test_all_demos_name_the_pages_of_this_run(monkeypatch, tmp_path, capsys):
    def pretend(page, results, epochs, seed):
        results.folder.mkdir(parents=True)
        (results.folder / REPORT).write_text("")  # as if it were of an earlier run, where this one fails
        if results.folder.name == "trees":
            raise NoSourcesError("There are no sources.")
        return Outcome(0.5, 0.5)

    for demo in command.DEMOS.values():
        monkeypatch.setattr(demo, "run", pretend)
    parser = command.argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--out", str(tmp_path)])) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert [line.strip() for line in last] == [str(tmp_path / name / REPORT) for name in ("regression", "sequences")]
