"""Threads: the same bits however many share a loop, from any thread, after a fork, and until the very end."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.loop.expr import apply, load, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import thread_pool, work_split
from wayfare.core.config import settings
from wayfare.core.counters import counted

pytestmark = pytest.mark.skipif(not native.available(), reason="llvmlite does not work here")
ROOT = Path(wf.__file__).parents[1]
X = load(0, "f32")
TANH = elementwise("tanh_in_threads", ["f32"], apply("tanh", X) * X)
SUMS = Loop("sums_in_threads", (Operand("f32"),), (Operand("f32", True),), (Stage((), (Reduction("sum", X),)),),
            ((0, reduction(0, "f32")),))  # fmt: skip


@pytest.fixture(autouse=True)
def threads_as_before():
    before = settings.num_threads
    yield
    settings.num_threads = before


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("layout", [lambda a: a, lambda a: a.T, lambda a: a[:, ::-2], lambda a: a[::3]])
def test_results_do_not_depend_on_the_number_of_threads(layout):
    x = layout(numbers(400, 1000))
    kernel, made = native.build(TANH), []
    for threads in (1, 2, 3, 4, 7):
        wf.set_num_threads(threads)
        with counted() as counts:
            made.append(kernel([x])[0].tobytes())
        assert counts.kernels_split == (threads > 1)
    assert len(set(made)) == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_in_threads_are_the_same_too(axis):
    x, made = numbers(600, 700), []
    for threads in (1, 2, 5):
        wf.set_num_threads(threads)
        made.append(native.build(SUMS).rows([x], axis)[0].tobytes())
    assert len(set(made)) == 1


def test_small_loops_are_not_split():
    wf.set_num_threads(4)
    with counted() as counts:
        native.build(TANH)([numbers(100)])
    assert counts.kernels_run == 1 and counts.kernels_split == 0


def test_more_threads_than_elements():
    wf.set_num_threads(64)
    before, work_split._SPLIT = work_split._SPLIT, -1
    try:
        kernel = native.Kernel(TANH)
        for size in (1, 2, 17, 63, 65):
            x = numbers(size)
            np.testing.assert_allclose(kernel([x])[0], np.tanh(x) * x, 1e-5)
    finally:
        work_split._SPLIT = before


def test_many_threads_call_kernels_at_once():
    wf.set_num_threads(3)
    arrays = [numbers(50_000 + 100 * k) for k in range(8)]
    wanted = [native.build(TANH)([x])[0] for x in arrays]
    wrong = []

    def work(k):
        for turn in range(60):
            (got,) = native.build(TANH)([arrays[k]])
            if got.tobytes() != wanted[k].tobytes():
                wrong.append((k, turn))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong and not any(worker.is_alive() for worker in workers)


def test_threads_build_and_run_new_kernels_at_once():
    wf.set_num_threads(2)
    x, results = numbers(1000), {}

    def work(k):
        for number in range(6):
            loop = elementwise(f"new_{number}", ["f32"], X * float(1000 + number))
            results[k, number] = native.build(loop)([x])[0]

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    for (_, number), got in results.items():
        np.testing.assert_array_equal(got, x * np.float32(1000 + number))
    assert len(results) == 24


def test_the_number_of_threads_goes_up_and_down():
    x = numbers(300, 1000)
    want = native.build(TANH)([x])[0]
    for threads in (1, 5, 2, 1, 3, 8, 1, 2):
        wf.set_num_threads(threads)
        for _ in range(3):
            np.testing.assert_array_equal(native.build(TANH)([x])[0], want)
    assert thread_pool._pool.helpers <= 63


def test_helpers_that_cannot_be_started_are_done_without(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    wf.set_num_threads(90)
    x = numbers(300, 1000)
    np.testing.assert_allclose(native.Kernel(TANH)([x])[0], np.tanh(x) * x, 1e-5)


# -- processes ----------------------------------------------------------------------------------------------------

BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import wayfare as wf
from wayfare.codegen.runtime import kernel as native
from wayfare.core.counters import COUNTERS
from wayfare.codegen.loop.expr import apply, load
from wayfare.codegen.loop.language import elementwise
wf.set_num_threads(3)
X = load(0, "f32")
kernel = native.build(elementwise("tanh_in_threads", ["f32"], apply("tanh", X) * X))
x = np.linspace(-3, 3, 400_000, dtype=np.float32)
want = kernel([x])[0].copy()
assert COUNTERS.kernels_split == 1
"""


def run(script, tmp_path):
    env = os.environ | {"WAYFARE_CACHE": str(tmp_path / "kernels"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "faulthandler", "-c", BEGIN + script]
    return subprocess.run(command, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes(tmp_path):
    done = run("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
stop = False
def busy():
    while not stop:
        kernel([x])
        native.Kernel(elementwise("fresh", ["f32"], X * float(np.random.rand())))([x[:10]])
threading.Thread(target=busy, daemon=True).start()
time.sleep(0.1)
for turn in range(6):
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        same = all(np.array_equal(kernel([x])[0], want) for _ in range(5))
        fresh = native.build(elementwise(f"in_child_{turn}", ["f32"], X + 1.0))([x])[0]
        os._exit(0 if same and np.array_equal(fresh, x + 1) else 3)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert np.array_equal(kernel([x])[0], want)
stop = True
print("fine")
""", tmp_path)  # fmt: skip
    assert done.stdout == "fine\n" and done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is something else there")
def test_ctrl_c_during_a_long_loop_stops_the_program_after_it(tmp_path):
    done = run("""
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    while time.monotonic() < begin + 30:
        kernel([x])
except KeyboardInterrupt:
    assert np.array_equal(kernel([x])[0], want)
    print("stopped")
""", tmp_path)  # fmt: skip
    assert done.stdout == "stopped\n" and done.returncode == 0, done.stderr


ENDS = {
    "right after a loop": "kernel([x])",
    "with a daemon thread in a loop": """
def forever():
    while True: kernel([x])
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.02)
""",
    "by sys.exit in another thread's loop": """
def some():
    for _ in range(20): kernel([x])
threading.Thread(target=some).start()
sys.exit(0)
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_the_interpreter_ends_without_a_crash(how, tmp_path):
    for _ in range(5):
        done = run(ENDS[how], tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_error_ends_the_program_as_ever(tmp_path):
    done = run("kernel([x]); raise ValueError('mine')", tmp_path)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: mine")


CROWDED = """
import ctypes, threading, time
import wayfare as wf
from wayfare.codegen.runtime import thread_pool

wf.set_num_threads(2)
thread_pool.prepare()
thread_pool.threads()
time.sleep(1)  # the helper is there
caller, came, who, slow = threading.get_ident(), threading.Event(), [], True

def work(_block):
    who.append(threading.get_ident())
    if who[-1] != caller:
        came.set()
        time.sleep(0.05)  # as if another program had its processor
    elif slow:
        came.wait(10)

function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)
address = ctypes.cast(function, ctypes.c_void_p).value
blocks = (ctypes.c_int64 * 2)()

def run():
    who.clear()
    came.clear()
    thread_pool.run(address, ctypes.addressof(blocks), 2, 8)
    return set(who)

alone = 0.02
for turn in range(5):
    assert len(run()) == 2 and len(who) == 2 and thread_pool.times_crowded() == turn + 1
    if turn < 4:
        time.sleep(alone + 0.02)
        alone *= 2
slow = False
assert run() == {caller} and len(who) == 2  # for a while it does without
time.sleep(alone + 0.02)
slow = True
assert len(run()) == 2  # and then tries again
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no helpers on Windows")
def test_where_helpers_get_no_processor_the_caller_does_without_them_for_a_while():
    done = subprocess.run([sys.executable, "-c", CROWDED], cwd=ROOT, timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
