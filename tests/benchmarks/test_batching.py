"""The suite `batching`: its works agree on every side, decide by their data and not narrowly, and report what is so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import agreement, contest, corpora
from benchmarks import batching as suite
from benchmarks.harness import BenchmarkError, Options, Skipped
from benchmarks.worker import Worker
from benchmarks.works import Unavailable, examples, graphs, recorded, resolve, sequences, trees
from wayfare.cli.demo import syntax

SMALL = {"count": 3, "hidden": 6}
WORKS = {row.name: (row.work, row.parameters, row.data) for row in suite.ROWS}
SENTENCES = 5


def results(module, mode, name, data):
    work, parameters, with_data = WORKS[name]
    given = {**parameters, **({"data": data} if with_data else {}), **SMALL}
    return resolve(work)(module, mode, **given).results()


# -- works -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKS)
def test_map_computes_what_the_loop_does(name, data):
    assert agreement.difference(results(wf, "map", name, data), results(wf, "loop", name, data)) is None


@pytest.mark.parametrize("name", WORKS)
def test_pytorch_computes_the_same(name, data):
    torch = pytest.importorskip("torch", reason="the other side is PyTorch")
    assert agreement.difference(results(wf, "loop", name, data), results(torch, "loop", name, data)) is None


def test_packed_sequences_give_the_same(data):
    found = results(wf, "packed", "classifier", data)
    assert agreement.difference(found, results(wf, "loop", "classifier", data)) is None


@pytest.mark.parametrize("name", [row.name for row in suite.ROWS if suite.DYNET in row.more])
def test_dynet_computes_the_same(name, data, tmp_path):
    work, parameters, _ = WORKS[name]
    path = tmp_path / "results.npz"
    try:
        with suite.DYNET.worker(Options()) as worker:
            given = {**parameters, **SMALL, "data": data, "mode": "map"}
            worker.call("answers.save", of=work, path=str(path), parameters=given)
    except Skipped as reason:
        pytest.skip(str(reason))
    with np.load(path) as stored:
        found = [stored[name] for name in stored.files]
    assert agreement.difference(found, results(wf, "loop", name, data)) is None


def test_a_library_without_map_is_named(data):
    bare = SimpleNamespace(**{**vars(wf), "__name__": "bare"})
    del bare.map
    with pytest.raises(Unavailable, match=r"^bare has no map\(\)\.$"):
        sequences.halting(bare, "map", **SMALL).step()


def test_the_halting_model_turns_differently_often_and_never_stops_narrowly(monkeypatch):
    """Rounding must not decide, or the sides would do different work."""
    seen = []
    less = wf.Tensor.__lt__
    monkeypatch.setattr(wf.Tensor, "__lt__", lambda self, limit: seen.append(float(self.detach())) or less(self, limit))
    sequences.halting(wf, "loop").results()
    halts = np.array(seen)
    turns = np.diff(np.flatnonzero(halts >= 1))
    assert np.abs(halts - 1).min() > 1e-4
    assert len(set(turns)) > 6


def test_the_parser_acts_by_its_scores(monkeypatch, data):
    margins, actions = [], []
    best = wf.Tensor.argmax

    def spying(scores):
        first, second = scores.detach().numpy()
        margins.append(abs(first - second))
        actions.append(int(second > first))
        return best(scores)

    monkeypatch.setattr(wf.Tensor, "argmax", spying)
    trees.parser(wf, "loop", data, count=5, hidden=16).results()
    assert set(actions) == {0, 1}
    assert min(margins) > 1e-4


def test_rare_words_are_spelt(monkeypatch, data):
    spelt = results(wf, "loop", "tagger", data)[0]
    monkeypatch.setattr(examples, "RARE", 2)
    assert not np.allclose(spelt, results(wf, "loop", "tagger", data)[0], rtol=1e-3)


def test_statistics_of_the_last_step():
    sequences.halting(wf, "map", **SMALL).step()
    found = recorded.last(wf)
    assert found["nodes"] >= found["groups"] > 0
    assert set(found) == set(recorded.NAMES)
    with pytest.raises(Unavailable, match="keeps no statistics"):
        recorded.last(SimpleNamespace(__name__="bare"))


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_treebank_is_read():
    line = "(3 (2 one\xa0half) (4 (2 so) (4 good)))"
    assert corpora.parsed(line) == [3, [2, "one\xa0half"], [4, [2, "so"], [4, "good"]]]


def test_trees_come_back_as_they_were_written(data):
    corpus = examples.read(data)
    assert len(corpus.trees) == SENTENCES
    tree = max(corpus.trees, key=lambda tree: len(tree.leaves))
    assert [leaf.label for leaf in tree.leaves] == [2, 2, 2, 3, 2, 2]
    assert (tree.label, tree.actions) == (3, [0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1])
    film = tree.leaves[4].word
    assert len(corpus.letters[film]) == len("film") and not corpus.rare[film]
    assert corpus.rare[tree.leaves[3].word]


def test_without_the_treebank_there_are_syntax_trees(monkeypatch, tmp_path):
    monkeypatch.setenv("WAYFARE_BENCHMARK_DATA", str(tmp_path))
    few = syntax.source_files()[:120]  # all of them take seconds
    monkeypatch.setattr(syntax, "source_files", lambda: few)
    told = corpora.write(tmp_path / "trees.json", count=20)
    assert "standard library" in told and told.startswith("20 ")
    corpus = examples.read(str(tmp_path / "trees.json"))
    assert len(corpus.trees) == 20
    assert len({leaf.label for tree in corpus.trees for leaf in tree.leaves}) > 2


def test_batches_hold_about_the_same_work():
    sizes = list(np.random.default_rng(0).integers(1, 100, 256))
    batches = examples.balanced(sizes, int, 64)
    assert sorted(size for batch in batches for size in batch) == sorted(sizes)
    totals = [sum(batch) for batch in batches]
    assert max(totals) < 1.02 * min(totals)
    assert [len(batch) for batch in examples.balanced(sizes, int, 256)] == [256]


def test_graphs_are_whole_and_no_node_has_more_than_four_neighbours():
    for graph in examples.graphs(8, graphs.KINDS)[0]:
        assert {len(near) for near in graph.neighbours} <= {1, 2, 3, 4}
        for node, near in enumerate(graph.neighbours):
            assert all(node in graph.neighbours[other] for other in near)
        reached, waiting = {0}, [0]
        while waiting:
            new = set(graph.neighbours[waiting.pop()]) - reached
            reached |= new
            waiting += new
        assert len(reached) == len(graph.kinds)


# -- the suite ---------------------------------------------------------------------------------------------------------


def test_pytorch_is_judged_by_its_faster_way():
    seconds = {suite.TORCH: [0.5, 0.4], suite.TORCH_SINGLE: [0.3, 0.2], suite.MAP: [0.01, 0.02]}
    outcome = contest.Outcome(seconds, {}, {suite.MAP})
    row, limit = suite.ROWS[0], suite.ROWS[0].limits[0]
    against = outcome.fastest(list(limit.against))
    assert against is suite.TORCH_SINGLE
    judged = suite.measured(row, outcome, against, limit)
    assert judged.work == "~Tree-LSTM, library cell, over PyTorch per example, 1 thread"
    assert judged.ratio_of_best == pytest.approx(0.05) and judged.met is True and judged.aim_met is False


def test_a_side_of_one_thread_gets_one(monkeypatch):
    asked = []
    monkeypatch.setattr("benchmarks.sides.Worker", lambda module, threads, *_, **__: asked.append(threads))
    suite.SingleThread("x", "json", "loop").worker(Options(threads=4))
    suite.Side("x", "json", "loop").worker(Options(threads=4))
    assert asked == [1, 4]


def test_dynet_may_live_in_another_python(monkeypatch):
    monkeypatch.setenv("WAYFARE_BENCHMARK_DYNET", sys.executable)
    asked = []
    monkeypatch.setattr(suite, "Worker", lambda *given: asked.append(given))
    suite.DYNET.worker(Options(threads=2))
    assert asked == [("dynet", 2, None, sys.executable, ("--dynet-autobatch", "1", "--dynet-mem", "1024"))]
    monkeypatch.delenv("WAYFARE_BENCHMARK_DYNET")
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Skipped, match="dynet cannot be imported"):
        suite.DYNET.worker(Options())


def test_another_python_without_dynet_is_an_error_with_its_reason(monkeypatch):
    monkeypatch.setenv("WAYFARE_BENCHMARK_DYNET", sys.executable)
    monkeypatch.setattr(suite, "Worker", lambda module, *rest: Worker("no_such_library", *rest))
    with suite.DYNET.worker(Options()) as worker, pytest.raises(BenchmarkError) as caught:
        worker.call("threads.used")
    assert contest.short(caught.value) == "ModuleNotFoundError: No module named 'no_such_library'"


def test_the_whole_suite_runs(monkeypatch, tmp_path, data, one_round):
    """Every part once, small, in real processes; each ends as a figure or as a reason."""
    pytest.importorskip("torch", reason="the peer is PyTorch")
    monkeypatch.setattr(suite, "SMALLER", SMALL)
    monkeypatch.setattr(suite, "COUNTS", (1, 2))
    monkeypatch.setenv("WAYFARE_BENCHMARK_DATA", str(Path(data).parent))
    # Each side is two new processes, and PyTorch takes seconds to start in one.
    monkeypatch.setattr(suite, "ROWS", [row for row in suite.ROWS if row.name == "tree, library cell"])
    monkeypatch.setattr(suite, "COLUMNS", [suite.TORCH_SINGLE, suite.DYNET, suite.MAP])
    target = tmp_path / "figures.json"
    assert command.main(["batching", "--quick", "--threads", "1", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    assert {"PyTorch 1 thread", "Wayfare map"} <= set(figures["curves"]["seconds, tree, library cell"])
    curve = figures["curves"]["examples a step"]
    assert set(curve["seconds an example"]["Wayfare map"]) == {"1", "2"}
    assert curve["recorded"]["2"]["nodes"] > curve["recorded"]["1"]["nodes"] > 0
    assert {row["part"] for row in figures["measurements"]} == {"steps", "curve"}
    assert all("dynet" in skip["reason"].lower() for skip in figures["skipped"])
