"""What the tests of the demos share: running one, and the library read once for all of them."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from wayfare.cli.demo import regression, sequences, trees
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import Results
from wayfare.core.config import settings


@pytest.fixture(scope="session")
def environment():
    """What a process that runs a demo needs. BLAS keeps to one thread, for tests run side by side."""
    return {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONIOENCODING": "utf-8",
        "OPENBLAS_NUM_THREADS": "1", "WAYFARE_CACHE": str(settings.cache_folder),
    }  # fmt: skip


@pytest.fixture(scope="session")
def run_demo(tmp_path_factory):
    """Run a demo in a folder of its own; gives its text, its outcome and the folder."""

    def run(demo, **options):
        folder = tmp_path_factory.mktemp(demo.__name__.rpartition(".")[2])
        stream = io.StringIO()
        outcome = demo.run(Page(stream), Results(folder), **options)
        return SimpleNamespace(text=stream.getvalue(), outcome=outcome, folder=folder)

    return run


@pytest.fixture(scope="session")
def all_sentences():
    return sequences.read_sentences()


@pytest.fixture(scope="session")
def all_trees():
    return trees.read_trees()


@pytest.fixture(scope="session")
def short_runs(run_demo, all_sentences, all_trees):
    """Each demo, run for one epoch on a part of its data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "read_sentences", lambda: all_sentences[::4])
        patch.setattr(trees, "read_trees", lambda: all_trees[::6])
        return {demo: run_demo(demo, epochs=1) for demo in (regression, sequences, trees)}
