"""Ctrl-C is never lost: no Python of ours runs where Python throws an exception away, at the death of an object."""

import gc
import signal
import subprocess
import sys
import textwrap
import weakref
from types import FunctionType, MethodType
from typing import Any

import pytest

import wayfare as wf
from wayfare.codegen.loop import expr

# A model that was known by identity has gone: once in its life.
RARE = {"EntryCache.watch.<locals>.<lambda>"}


def python_callbacks() -> dict[str, str]:
    """The functions in Python of this package that are called when something goes."""
    found: dict[str, str] = {}
    for thing in gc.get_objects():
        callback: Any = thing.__callback__ if isinstance(thing, weakref.ref) else None
        if isinstance(callback, MethodType):
            callback = callback.__func__
        if isinstance(callback, FunctionType) and callback.__module__.startswith("wayfare"):
            found[callback.__qualname__] = callback.__module__
    return found


@pytest.mark.usefixtures("all_objects_are_listed")
def test_what_is_called_when_an_array_goes_is_written_in_c():
    model = wf.nn.Sequential(wf.nn.Linear(4, 8), wf.nn.Tanh(), wf.nn.Linear(8, 2))
    optimizer = wf.optim.Adam(model.parameters())

    @wf.compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    kept: list[Any] = [step(wf.randn(3, 4)) for _ in range(4)]
    kept += wf.map(lambda x: model(x).sum(), [wf.randn(n, 4) for n in (1, 2, 3)])
    kept.append(wf.ones(200_000).add_(1))
    with wf.debug.record():
        kept.append(model(wf.randn(3, 4)).sum())
        with wf.profile() as profile:
            kept.append(model(wf.randn(3, 4)).sum())
        assert set(python_callbacks()) <= RARE
    kept.append(profile)


def test_expressions_are_found_again_while_they_live_and_no_longer():
    first = expr.load(77, "f32") + expr.const(0.123456789, "f32")
    assert first is expr.load(77, "f32") + expr.const(0.123456789, "f32")
    size = len(expr._TABLE)
    second = first * expr.const(0.987654321, "f32")
    assert len(expr._TABLE) == size + 2
    del second
    assert len(expr._TABLE) == size


SCRIPT = textwrap.dedent("""
    import signal, sys
    import wayfare as wf

    got = 0
    for turn in range(40):
        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0003 * turn)
        try:
            for _ in range(100_000):
                wf.ones(4).add_(1)
        except KeyboardInterrupt:
            got += 1
    sys.exit(0 if got == 40 else 1)
""")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_an_interrupt_among_writes_arrives():
    text = SCRIPT.replace("got = 0", "signal.signal(signal.SIGALRM, signal.default_int_handler)\ngot = 0")
    done = subprocess.run([sys.executable, "-c", text], timeout=100, capture_output=True, text=True)
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr
