"""What several suites need: a treebank of a few sentences, and rounds that take no time."""

import pytest

from benchmarks import corpora, harness, quiet
from benchmarks.harness import Options

TREEBANK = """\
(3 (2 It) (4 (3 (2 's) (4 (2 a) (4 (3 lovely) (2 film)))) (2 .)))
(1 (2 (2 The) (2 film)) (1 (1 drags) (2 .)))
(4 (2 (2 A) (2 film)) (3 (2 (2 of) (4 beauty)) (2 .)))
(2 (2 (2 The) (2 film)) (2 (2 ends) (2 .)))
(0 (2 (2 This) (2 film)) (0 (2 (2 is) (0 dull)) (2 .)))
(2 fine)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file with the trees of the five sentences (a word alone is none), in the folder of the treebank."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "sst").mkdir()
    (folder / "sst" / "train.txt").write_text(TREEBANK, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WAYFARE_BENCHMARK_DATA", str(folder))
        told = corpora.write(folder / "trees.json")
    assert told.startswith("5 sentences of the Stanford Sentiment Treebank")
    return str(folder / "trees.json")


@pytest.fixture
def one_round(monkeypatch):
    """Every side has one round of one step, on a machine however busy."""
    monkeypatch.setattr(Options, "rounds", property(lambda self: 1))
    monkeypatch.setattr(harness, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(quiet, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(quiet, "SETTLE_SECONDS", 0.0)
