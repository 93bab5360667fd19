"""The writer of docs/api: what it says about a class."""

import importlib.util
from pathlib import Path

import pytest

import wayfare as wf

PATH = Path(__file__).resolve().parents[1] / "tools" / "make_api_docs.py"


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("make_api_docs", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Hidden(wf.nn.Module):
    """A base without a place in the pages."""

    size = 3

    def shared(self):
        """What several have."""

    def overridden(self):
        """The old way."""


class Shown(Hidden):
    """A class to be shown."""

    def __init__(self, width: "int", *, activation=wf.relu) -> None:
        """Not a member."""
        super().__init__()

    def overridden(self):
        """The new way. More of it."""

    @property
    def half(self):
        """Half of it."""

    def silent(self):
        return self

    copy = dict.copy


def test_a_class_shows_how_it_is_made(writer):
    heading = writer.entry("wf.Shown", Shown).splitlines()[0]
    assert heading == "### class `wf.Shown(width: int, *, activation=relu)`"


def test_a_class_lists_its_own_members_and_those_of_hidden_bases(writer):
    own, public = writer.own_and_public_bases(Shown)
    # This test's classes are of another package than Module, which is public wherever it stands.
    assert own == [Shown, Hidden] and public == [wf.nn.Module]
    rows = [line for line in writer.entry("wf.Shown", Shown).splitlines() if line.startswith("| `")]
    assert rows == ["| `half` | Half of it. |", "| `overridden` | The new way. |", "| `shared` | What several have. |"]


def test_public_bases_are_only_named(writer):
    text = writer.entry("wayfare.nn.Linear", wf.nn.Linear)
    assert "### class `wayfare.nn.Linear(in_features: int, out_features: int, bias: bool = True" in text
    assert "| `forward` |" in text and "load_state_dict" not in text
    assert text.rstrip().endswith("and all of `wayfare.nn.Module`")
    assert "| `load_state_dict` |" in writer.entry("wayfare.nn.Module", wf.nn.Module)


def test_the_nearest_public_base_is_enough(writer):
    own, public = writer.own_and_public_bases(wf.nn.GRU)
    assert public == [wf.nn.RNNBase] and wf.nn.Module in wf.nn.GRU.__mro__
    assert object not in own
