"""The suite `seeing`: every way of looking on runs on every work, and what a peer does not have is said."""

from types import SimpleNamespace

import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import seeing
from benchmarks.works import Unavailable, seen


@pytest.mark.parametrize("how", seeing.LOOKING)
def test_every_way_of_looking_runs(how):
    assert seen.ratio(wf, "small_ops", how, rounds=1) > 0


@pytest.mark.parametrize("model", seeing.MODELS)
def test_every_work_runs(model):
    seen.MODELS[model](wf).step()


def test_keeping_a_run_says_seconds_and_size():
    found = seen.seconds_to_keep(wf, 100)
    assert found.keys() == {"record", "save", "megabytes"} and found["megabytes"] > 0


def test_what_a_peer_has_not_is_left_out():
    with pytest.raises(Unavailable, match="peer has no record"):
        seen.ratio(SimpleNamespace(__name__="peer", **{name: getattr(wf, name) for name in ("ones", "from_numpy")}),
                   "small_ops", "record", rounds=1)  # fmt: skip


def test_the_suite_is_found():
    assert command.suites()["seeing"] is seeing
