"""The demo of trees learns, shows every call of its cell, and leaves files that load."""

import json
import re

import pytest

import wayfare as wf
from wayfare.cli.demo import trees
from wayfare.cli.demo.syntax import Tree


@pytest.fixture(scope="module")
def some_trees(all_trees):
    """A third of the trees: enough to learn something from."""
    return all_trees[::3]


@pytest.fixture(scope="module")
def shown(run_demo, some_trees):
    """One run on fewer trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "read_trees", lambda: some_trees)
        return run_demo(trees, epochs=4)


@pytest.fixture(scope="module")
def corpus(some_trees):
    return trees.prepare(some_trees, seed=0)


def test_beats_the_baseline(shown):
    assert shown.outcome.accuracy > shown.outcome.baseline + 0.1
    printed = re.search(r"accuracy ([\d.]+), always answering 'get' ([\d.]+)", shown.text)
    assert printed.groups() == (f"{shown.outcome.accuracy:.3f}", f"{shown.outcome.baseline:.3f}")


def test_shows_five_stages_and_fits_the_page(shown):
    assert re.findall(r"^Stage (\d) · (.+)$", shown.text, re.MULTILINE) == [
        ("1", "Trees"),
        ("2", "Preparation"),
        ("3", "One cell for every node"),
        ("4", "Training and metrics"),
        ("5", "A prediction, layer by layer"),
    ]
    assert max(map(len, shown.text.splitlines())) <= 80
    assert "\x1b" not in shown.text
    for part in ("macro mean", "● loss", "val. loss", "ChildSumTreeLSTMCell", "<- the truth"):
        assert part in shown.text


def test_the_cell_is_called_once_a_node(shown, corpus):
    stage = shown.text[shown.text.index("Stage 5") :]
    nodes = int(re.search(r"embedding \| Embedding +\| \[(\d+), 32\]", stage)[1])
    assert stage.count("| cell ") == nodes
    calls = int(re.search(r"ChildSumTreeLSTMCell .* (\d+)$", shown.text, re.MULTILINE)[1])
    assert calls == int(re.search(r"(\d+) nodes, +\d+ deep", shown.text)[1])
    cells = int(re.search(r"calls the cell ([\d,]+) times", shown.text)[1].replace(",", ""))
    assert cells == sum(named.tree.size for named in corpus.train)


def test_prints_how_the_calls_were_batched(shown, corpus):
    found = re.findall(r"^  (last batch|all held out) +([\d,]+) calls ran as ([\d,]+) groups", shown.text, re.MULTILINE)
    assert [name for name, *_ in found] == ["last batch", "all held out"]
    calls, groups = (int(number.replace(",", "")) for number in found[1][1:])
    assert calls >= sum(named.tree.size for named in corpus.held_out)
    assert groups < calls / 10


def test_files_load_into_a_model_that_answers_the_same(shown, corpus):
    kept = json.loads((shown.folder / "kinds.json").read_text(encoding="utf-8"))
    assert kept == {"kinds": corpus.kinds.words, "classes": corpus.classes}
    model = trees.Climber(corpus.kinds, len(corpus.classes))
    model.load_state_dict(wf.load(shown.folder / "model.safetensors"))
    scores = wf.train.evaluate(
        model, [corpus.labelled(corpus.held_out)], step=trees.step, metrics=[wf.metrics.Accuracy()]
    )
    assert scores["accuracy"] == pytest.approx(shown.outcome.accuracy)
    assert len(wf.train.History.load(shown.folder / "history.jsonl")) == 4


def test_the_order_of_children_does_not_matter_but_the_shape_does(corpus):
    model = trees.Climber(corpus.kinds, 3).eval()
    name, call = Tree("Name self"), Tree("Call")
    one, two = (model(Tree("Return", children)) for children in ((name, call), (call, name)))
    wf.testing.assert_close(one, two)
    assert not wf.allclose(one, model(Tree("Return", (Tree("Call", (name,)),))))
