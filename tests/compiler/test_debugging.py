"""A debugger in a compiled function: whoever follows the lines sees them run, at every call."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import wayfare as wf
from wayfare.compiler import function
from wayfare.core import callsite

SCRIPT = """
import wayfare as wf

w = wf.tensor([2.0, 3.0], requires_grad=True)

@{decorator}
def f(x):
    h = x * w
    k = h + 1
    return k.sum()

def train():
    for i in range(12):
        loss = f(wf.tensor([1.0, float(i)]))
        loss.backward()
    return loss

print("warm", train().item())
{stop}
last = train()
print("gradient", w.grad.tolist(), last.item())
"""
BREAK_LINE = 8  # k = h + 1
RESULT = "gradient [24.0, 132.0] 37.0"


DECORATORS = ["wf.compile", "wf.compile(check=False)", "wf.fused"]


def session(tmp_path, decorator, commands, *, from_the_start):
    """What pdb prints when these commands are piped into it: begun with the script, or after the first training."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(decorator=decorator, stop="" if from_the_start else "breakpoint()").lstrip("\n"))
    typed = "".join(f"{line}\n" for line in commands)
    pdb = ["-m", "pdb"] if from_the_start else []
    done = subprocess.run([sys.executable, *pdb, str(file)], input=typed, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_breakpoint_stops_at_every_call(tmp_path, decorator):
    said = session(tmp_path, decorator, [f"b {BREAK_LINE}", *["c"] * 25, "q"], from_the_start=True)
    assert said.count("-> k = h + 1") == 24, said
    assert RESULT in said


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_breakpoint_set_after_warming_up(tmp_path, decorator):
    said = session(tmp_path, decorator, [f"b {BREAK_LINE}", "c", "p h.tolist()", "c", "p h.tolist()", "cl 1", "c"],
                   from_the_start=False)  # fmt: skip
    assert said.count("-> k = h + 1") == 2 and "[2.0, 0.0]" in said and "[2.0, 3.0]" in said, said
    assert RESULT in said


def warm(function, *args, calls=12):
    for _ in range(calls):
        made = function(*args)
    return made


MAKERS = {"compile": lambda f: wf.compile(f, check=False), "fused": wf.fused}


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def counted(request, unchecked):
    """A compiled function whose calls run no Python any more, and how often its Python has run."""
    runs = []

    def plain(x):
        return (x * 2 + 1).tanh().sum()

    made = request.param(plain)
    x = wf.tensor([1.0, 2.0])
    code = plain.__code__

    def trace(frame, event, arg):
        if event == "call" and frame.f_code is code:
            runs.append(1)
        return None

    warm(made, x)
    return SimpleNamespace(call=lambda: made(x), runs=runs, trace=trace, want=plain(x).item())


def test_a_trace_function_sees_every_call(counted):
    before = sys.gettrace()
    sys.settrace(counted.trace)
    try:
        results = [counted.call().item() for _ in range(5)]
    finally:
        sys.settrace(before)
    assert len(counted.runs) == 5
    assert results == [counted.want] * 5


def profiled(counted, calls):
    """How often Python runs the function in some calls; a profiler is no debugger, so replays go on."""
    sys.setprofile(lambda frame, event, arg: counted.trace(frame, event, arg))
    try:
        for _ in range(calls):
            counted.call()
    finally:
        sys.setprofile(None)
    return len(counted.runs)


def test_without_a_debugger_it_is_replayed_again(counted):
    before = sys.gettrace()
    sys.settrace(counted.trace)
    try:
        counted.call()
    finally:
        sys.settrace(before)
    counted.runs.clear()
    assert profiled(counted, 5) == 0


def test_a_trace_function_of_another_thread_is_that_threads(counted):
    before = sys.gettrace()
    sys.settrace(counted.trace)
    try:
        thread = threading.Thread(target=lambda: profiled(counted, 4))
        thread.start()
        thread.join()
    finally:
        sys.settrace(before)
    assert len(counted.runs) == 0


def test_a_debugger_that_monitors(counted, monkeypatch):
    """From Python 3.12 on a debugger may use sys.monitoring and no trace function."""
    tools = {}
    monkeypatch.setattr(function, "MONITORS", True)
    monkeypatch.setattr(callsite, "_get_tool", lambda number: tools.get(number))
    assert profiled(counted, 3) == 0
    tools[0] = "debugpy"
    assert profiled(counted, 3) == 3
    tools.clear()
    counted.runs.clear()
    assert profiled(counted, 3) == 0


def test_a_compiled_module_is_followed(unchecked):
    net = wf.nn.Sequential(wf.nn.Linear(2, 2), wf.nn.Tanh())

    class Own(wf.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x) * 2

    module = wf.compile(Own(), check=False)
    x = wf.ones(1, 2)
    warm(module, x)
    seen = []

    def trace(frame, event, arg):
        if frame.f_code is Own.forward.__code__:
            seen.append(event)
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        module(x)
    finally:
        sys.settrace(before)
    assert seen == ["call"]
