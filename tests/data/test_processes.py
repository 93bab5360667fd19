"""Whole programs with loaders: Ctrl-C, the end of the program, death of the parent, and seeds in fresh processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks as on POSIX")

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import os, sys, time
import wayfare as wf
from wayfare.data import DataLoader, Dataset, TensorDataset

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        time.sleep(0.01)
        return i

def say_workers():
    import multiprocessing
    print("workers", *(p.pid for p in multiprocessing.active_children()), flush=True)
"""


def start(body, **options):
    """Run a program in a session of its own."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, start_new_session=True, **options,
    )  # fmt: skip


def worker_pids(process):
    word, *pids = process.stdout.readline().split()
    assert word == "workers" and pids
    return [int(pid) for pid in pids]


def gone(pids):
    """Wait until these processes have ended."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not any(os.path.exists(f"/proc/{pid}") and "Z" not in state(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def finish(process):
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # nothing is left to run on when a test fails
        raise
    return process.returncode, out, err


@pytest.mark.parametrize("where", ["group", "parent"])
def test_ctrl_c_ends_all_and_only_the_parent_says_so(where):
    process = start("""
        for number, batch in enumerate(DataLoader(Slow(), 4, num_workers=2)):
            if number == 1:
                say_workers()
    """)
    pids = worker_pids(process)
    # From a terminal every process of the group gets it.
    os.killpg(process.pid, signal.SIGINT) if where == "group" else os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt") and "wayfare-data" not in err
    assert gone(pids)


def test_ctrl_c_can_be_caught_and_the_program_goes_on():
    process = start("""
        loader = DataLoader(Slow(), 4, num_workers=2)
        try:
            for number, batch in enumerate(loader):
                if number == 1:
                    say_workers()
        except KeyboardInterrupt:
            print("caught", flush=True)
        print(next(iter(loader)).tolist())
    """)
    pids = worker_pids(process)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == (0, "caught\n[0, 1, 2, 3]\n", "")
    assert gone(pids)


def test_ctrl_c_during_starts_and_ends_is_not_lost_and_leaves_no_zombie():
    process = start("""
        loader = DataLoader(TensorDataset(wf.arange(4)), 4, num_workers=2)
        wf.ones(1500, 1500).tanh()  # the engine's threads may get the signal too
        print("ready", flush=True)
        try:
            while True:
                for batch in loader:
                    break
        except KeyboardInterrupt:
            pass
        try:
            os.waitpid(-1, os.WNOHANG)
            print("a worker was forgotten")
        except ChildProcessError:
            print("all ended")
    """)
    process.stdout.readline()
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == (0, "all ended\n", "")


@pytest.mark.parametrize(
    "ending, persistent",
    [("", False), ("", True), ("sys.exit(0)", False), ("del it", True), ("1 / 0", False), ("wf.it = it", False)],
)
def test_the_end_of_the_program_is_quiet(ending, persistent):
    process = start(f"""
        loader = DataLoader(Slow(), 4, num_workers=2, persistent_workers={persistent})
        it = iter(loader)
        next(it)
        say_workers()
        {ending}
    """)
    pids = worker_pids(process)
    code, _, err = finish(process)
    if "/" in ending:
        assert code == 1 and err.count("Traceback") == 1 and err.rstrip().endswith("division by zero")
    else:
        assert (code, err) == (0, "")
    assert gone(pids)


def test_workers_end_when_the_parent_is_killed():
    process = start("""
        it = iter(DataLoader(Slow(), 4, num_workers=2))
        next(it)
        say_workers()
        time.sleep(60)
    """)
    pids = worker_pids(process)
    process.kill()
    process.wait()
    assert gone(pids)
    process.stdout.close(), process.stderr.close()


def test_a_seed_gives_the_same_batches_in_fresh_processes():
    body = """
        import hashlib, random, numpy as np
        class Noisy(Dataset):
            def __len__(self):
                return 30
            def __getitem__(self, i):
                return i, wf.randn(5), random.random(), np.random.rand()
        digest = hashlib.sha256()
        loader = DataLoader(Noisy(), 4, shuffle=True, seed=7, num_workers={workers})
        for _ in range(2):
            for batch in loader:
                for field in batch:
                    digest.update(field.numpy().tobytes())
        print(digest.hexdigest())
    """
    results = [finish(start(body.format(workers=n))) for n in (0, 2, 3)]
    assert results[0][0] == 0, results[0][2]
    assert len(set(results)) == 1 and len(results[0][1].strip()) == 64
