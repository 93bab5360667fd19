"""Seeing what a program does: recording a run, stopping where it happens, finding what is held."""

from wayfare.see.debug.graphs import view
from wayfare.see.debug.here import here
from wayfare.see.debug.leaks import leaks
from wayfare.see.debug.record import record
from wayfare.see.debug.run import Run, load
from wayfare.see.debug.stops import break_if, break_on
from wayfare.see.debug.watch import watch

__all__ = ["Run", "break_if", "break_on", "here", "leaks", "load", "record", "view", "watch"]
