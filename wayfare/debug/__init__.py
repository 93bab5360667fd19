"""Seeing what a program does: recording a run, stopping where it happens, finding what is held."""

from wayfare.debug.graphs import view
from wayfare.debug.here import here
from wayfare.debug.leaks import leaks
from wayfare.debug.record import record
from wayfare.debug.run import Run, load
from wayfare.debug.stops import break_if, break_on
from wayfare.debug.watch import watch

__all__ = ["Run", "break_if", "break_on", "here", "leaks", "load", "record", "view", "watch"]
