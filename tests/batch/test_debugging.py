"""Looking into a map: prints, a debugger at a breakpoint, and tracers that read everything at every line."""

import io
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest

import wayfare as wf

SCRIPT = """
import wayfare as wf

w = wf.tensor([2.0, 3.0], requires_grad=True)

def f(x, i):
    h = x * w
    if i == 1:
        breakpoint()
    k = h + 1
    m = k.sum()
    return m

xs = [wf.tensor([1.0, float(i)]) for i in range(4)]
losses = wf.map(f, xs, range(4))
sum(losses).backward()
print("losses", [round(float(x), 1) for x in losses])
print("gradient", w.grad.tolist())
"""


def session(tmp_path, *commands):
    """What a debugger prints when these commands are piped into it."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    typed = "".join(f"{line}\n" for line in commands)
    done = subprocess.run([sys.executable, str(file)], input=typed, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("commands", [
    ("c",), ("p h", "c"), ("n", "p h", "c"), ("p h", "n", "p k", "n", "p m", "n", "c"), ("p h.sum()", "pp h", "c"),
    ("p h.tolist()", "c"), ("p float(h[0])", "n", "c"), ("s", "n", "n", "c"), ("u", "d", "p h", "c"),
])  # fmt: skip
def test_a_debugger_loses_no_example(tmp_path, commands):
    said = session(tmp_path, *commands)
    assert "losses [4.0, 7.0, 10.0, 13.0]" in said
    assert "gradient [4.0, 6.0]" in said


def test_next_goes_to_the_next_line_after_a_look(tmp_path):
    # Since Python 3.13 breakpoint() stops at its own line, before at the next one.
    first = ("n",) if sys.version_info >= (3, 13) else ()
    said = session(tmp_path, "p h", *first, "n", "p k", "n", "p m", "c")
    assert "tensor([2., 3.]" in said and "tensor([3., 4.]" in said and "tensor(7." in said
    assert "-> m = k.sum()" in said and "-> return m" in said
    stops = [line for line in said.splitlines() if line.startswith("> ") or "(Pdb) > " in line]
    assert stops and all("script.py" in line for line in stops), stops


def test_what_is_printed_is_not_torn_apart():
    w = wf.tensor([2.0], requires_grad=True)

    def show(x, i):
        h = x * w
        print("h =", h, end=" ")
        print(f"of {i}: {h.sum():.1f}")
        return h

    text = io.StringIO()
    with redirect_stdout(text):
        wf.map(show, [wf.tensor([float(i)]) for i in range(3)], range(3))
    lines = text.getvalue().splitlines()
    assert [line.rpartition("of ")[2] for line in lines] == ["0: 0.0", "1: 2.0", "2: 4.0"]
    assert all(line.startswith("h = tensor([") for line in lines)


@pytest.mark.parametrize("look", [repr, str, lambda t: f"{t}", lambda t: f"{t.sum():.2f}", "{}".format])
def test_looking_lets_no_other_example_run(look):
    order = []
    w = wf.tensor([2.0], requires_grad=True)

    def f(x, i):
        h = x * w
        order.append(("in", i))
        look(h)
        order.append(("out", i))
        return h.sum().item()

    assert wf.map(f, [wf.tensor([float(i)]) for i in range(3)], range(3)) == [0.0, 2.0, 4.0]
    assert order == [(way, i) for i in range(3) for way in ("in", "out")]


def test_a_tracer_that_reads_all_locals():
    w = wf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    seen = []

    def f(x):
        h = x @ w
        while h.sum() < 50:
            h = h @ w
        return h.max()

    def look(frame, event, arg):
        if frame.f_code is f.__code__ and event == "line":
            seen.append((frame.f_lineno - f.__code__.co_firstlineno, {k: repr(v) for k, v in frame.f_locals.items()}))
        return look

    xs = [wf.tensor([1.0, float(i)]) for i in range(3)]
    want = [f(x).item() for x in xs]
    before = sys.gettrace()
    sys.settrace(look)
    try:
        found = wf.map(f, xs)
    finally:
        sys.settrace(before)
    np.testing.assert_allclose([t.item() for t in found], want)
    # One after the other: each example begins at its first line once the one before has come to its last.
    lines = [line for line, _ in seen]
    assert lines.count(1) == 3 and lines.count(4) == 3
    assert lines[0] == 1 and lines[-1] == 4


def test_the_collector_stays_on():
    import gc

    def f(x):
        assert gc.isenabled()
        return x * 2

    before = gc.get_threshold()
    wf.map(f, [wf.ones(2), wf.ones(2)])
    assert gc.isenabled() and gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError):
        wf.map(lambda x: x * (1 / 0), [wf.ones(2)] * 3)
    assert gc.get_threshold() == before
