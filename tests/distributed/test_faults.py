"""Ranks that die, raise, differ or do not come: everything ends soon, with the rank named."""

import os
import signal
import time
from pathlib import Path

import pytest

import wayfare as wf
from tests.distributed.ranks import needs_mpi, run, start

pytestmark = needs_mpi
LIMIT = 10  # seconds from the death of a rank to the end of all


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def check_all_gone(folder, ranks):
    """No rank stays. mpirun ends when it has sent them signals: on a busy machine that is before they are gone."""
    pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(ranks)]
    began = time.monotonic()
    while left := [rank for rank, pid in enumerate(pids) if is_alive(pid)]:
        assert time.monotonic() - began < LIMIT, f"ranks {left} still run"
        time.sleep(0.01)


@pytest.mark.parametrize("when", [
    "kill-reduce", *(pytest.param(f"kill-{w}", marks=pytest.mark.long) for w in ("forward", "backward", "checkpoint")),
])  # fmt: skip
def test_a_killed_rank_ends_all_and_is_named(when, tmp_path):
    done = run(3, "fails.py", when, tmp_path / "run", limit=60)
    assert done.status != 0
    assert "rank 1" in done.err and "signal 9" in done.err
    check_all_gone(tmp_path, 3)
    files = list((tmp_path / "run").iterdir()) if when == "kill-checkpoint" else []
    checkpoint = wf.Checkpoint(tmp_path / "run")
    whole = {entry.path.name for entry in checkpoint.saved}
    assert {f.name for f in files if f.name.endswith(".safetensors") and not f.name.startswith(".")} == whole
    if when == "kill-checkpoint":
        assert checkpoint.saved[-1].number == 5, "the file that was being written does not count, the one before does"


def test_a_rank_killed_from_outside_ends_all_within_ten_seconds(tmp_path):
    process = start(3, "fails.py", "sleep", tmp_path / "run")
    try:
        wait_for(tmp_path / "ready", process)
        began = time.monotonic()
        os.kill(int((tmp_path / "pid-2").read_text()), signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT)
        assert time.monotonic() - began < LIMIT
        assert process.returncode != 0 and "rank 2" in err
        check_all_gone(tmp_path, 3)
    finally:
        process.kill()


def test_an_interrupt_ends_all(tmp_path):
    process = start(2, "fails.py", "sleep", tmp_path / "run")
    try:
        wait_for(tmp_path / "ready", process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        assert process.returncode != 0
        check_all_gone(tmp_path, 2)
    finally:
        process.kill()


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_a_rank_that_raises_shows_its_traceback_once(tmp_path):
    done = run(3, "fails.py", "raise", tmp_path / "run")
    assert done.status == 1
    assert done.err.count("ValueError: broken on purpose") == 1 and done.err.count("Traceback") == 1
    assert "rank 1 of 3 failed" in done.err and "runpy" not in done.err and "mpi4py" not in done.err


@pytest.mark.long
def test_a_rank_that_exits_ends_all_with_its_status(tmp_path):
    assert run(2, "fails.py", "exit", tmp_path / "run").status == 3


@pytest.mark.parametrize("what, call, ranks, debug", [
    ("leave", "barrier", 3, "0"), ("leave", "barrier", 2, "1"), ("leave-recv", "recv", 2, "0"),
    pytest.param("leave-ddp", "the all-reduce of gradients", 2, "0", marks=pytest.mark.long),
    pytest.param("leave-recv", "recv", 2, "1", marks=pytest.mark.long),
])  # fmt: skip
def test_a_rank_that_leaves_is_named_by_those_who_wait_for_it(what, call, ranks, debug, tmp_path):
    done = run(ranks, "fails.py", what, tmp_path / "run", WAYFARE_DISTRIBUTED_DEBUG=debug)
    assert done.status != 0 and f"distributed: {call} waits for rank 1, which has left" in done.err, done.err
    assert "time-out" not in done.err


def test_a_rank_that_refuses_an_argument_tells_the_others_in_debug_mode(tmp_path):
    done = run(3, "fails.py", "refused", tmp_path / "run", WAYFARE_DISTRIBUTED_DEBUG="1")
    assert done.status != 0 and "rank 1 refuses: all_reduce: op must be one of" in done.out
    for rank in (0, 2):
        assert f"rank {rank} calls all_reduce(f32[3], SUM) at fails.py:" in done.err, done.err
    assert "rank 1 calls all_reduce(refused: all_reduce: op must be one of" in done.err


@pytest.mark.long
def test_a_refused_argument_that_nobody_catches_ends_all_at_once(tmp_path):
    done = run(2, "fails.py", "refused", tmp_path / "run", "raise")
    assert done.status != 0 and done.err.count("Traceback") == 1 and "rank 1 of 2 failed" in done.err


@pytest.mark.parametrize("what, sent, wanted", [
    ("pair-shape", "f32[2,3]", "f32[3,2]"),
    *(pytest.param(*each, marks=pytest.mark.long) for each in (
        ("pair-dtype", "f32[2]", "i32[2]"), ("pair-long", "f32[4]", "f32[3]"), ("pair-short", "f32[3]", "f32[4]"),
        ("pair-objects", "objects", "f32[4]"))),
])  # fmt: skip
def test_a_message_that_is_received_as_something_else_is_an_error_on_both_ends(what, sent, wanted, tmp_path):
    done = run(2, "fails.py", what, tmp_path / "run", WAYFARE_DISTRIBUTED_DEBUG="1")
    assert done.status != 0
    assert "rank 0 of 2 failed" in done.err and "rank 1 of 2 failed" in done.err, done.err
    for part in (f"rank 0 sends {sent} at fails.py:", f"rank 1 receives {wanted} at fails.py:"):
        assert done.err.count(part) == 2, done.err


@pytest.mark.parametrize("what", [pytest.param("pair-long", marks=pytest.mark.long), "pair-short"])
def test_without_debug_mode_a_message_of_another_length_is_an_error_where_it_is_received(what, tmp_path):
    done = run(2, "fails.py", what, tmp_path / "run")
    assert done.status != 0 and f"a message is {what.removeprefix('pair-')}er than the tensor" in done.err, done.err


def test_calls_that_differ_are_an_error_that_names_both(tmp_path):
    done = run(2, "fails.py", "shape", tmp_path / "run", WAYFARE_DISTRIBUTED_DEBUG="1")
    assert done.status != 0
    for rank, other in ((0, 1), (1, 0)):
        assert f"rank {rank} of 2 failed" in done.err
        assert f"rank {rank} calls all_reduce(f32[{3 + rank}], SUM) at fails.py:" in done.err
        assert f"rank {other} calls all_reduce(f32[{3 + other}], SUM) at fails.py:" in done.err


@pytest.mark.long
@pytest.mark.parametrize("what, words", [
    ("dtype", ("all_reduce(f64[3], SUM)", "all_reduce(f32[3], SUM)")),
    ("order", ("broadcast(f32[3], src=0)", "all_reduce(f32[3], SUM)")),
    ("absent", ("all_reduce has waited 8 s, and rank 1 did not come",)),
    ("monitored", ("monitored_barrier has waited 1 s, and rank 1 did not come",)),
    ("model", ("the model of rank 1 is not that of rank 0: 'first.weight: f32[9,8]' and 'first.weight: f32[8,8]'",)),
])  # fmt: skip
def test_ranks_that_differ_are_named(what, words, tmp_path):
    done = run(2, "fails.py", what, tmp_path / "run", WAYFARE_DISTRIBUTED_DEBUG="1", limit=60)
    assert done.status != 0
    for word in words:
        assert word in done.err


@pytest.mark.long
def test_without_debug_mode_a_rank_that_does_not_come_is_a_time_out(tmp_path):
    done = run(2, "fails.py", "absent", tmp_path / "run", limit=60)
    assert done.status != 0 and "all_reduce has waited 8" in done.err and "WAYFARE_DISTRIBUTED_DEBUG=1" in done.err


@pytest.mark.parametrize("what, call", [("absent-group", "new_group"), ("absent-ddp", "DistributedDataParallel")])
def test_making_a_group_that_a_rank_does_not_come_to_is_a_time_out(what, call, tmp_path):
    done = run(2, "fails.py", what, tmp_path / "run", limit=15)
    assert done.status != 0 and f"distributed: {call} has waited 1" in done.err


def test_ranks_with_different_programs_are_noticed(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
        "sys.modules['__main__'].__file__ = __file__ + rank\n"
        "open(__file__, 'w').write('x = ' + rank)\n"
        "import wayfare.distributed as dist\n"
        "dist.init_process_group('mpi')\n"
    )
    done = run(2, program)
    assert done.status != 0 and "the program of rank 1 is not that of rank 0" in done.err
