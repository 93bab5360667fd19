"""pdb with its commands written down beforehand."""

import io
import sys

import pytest


@pytest.fixture
def prompt(monkeypatch, capsys):
    """`prompt("p x", "c")` before the code that stops: these are typed. `prompt.said()` is what pdb said."""
    return Prompt(monkeypatch, capsys)


class Prompt:
    """What is typed, and what is said."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)  # pytest has one of its own
        monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)

    def __call__(self, *commands):
        self._monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{command}\n" for command in commands)))

    def said(self):
        """All that was printed since the last time."""
        return self._capsys.readouterr().out

    def left(self):
        """The commands that nobody asked for."""
        return sys.stdin.read().splitlines()
