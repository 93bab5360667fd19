"""Signals: `wf.signal.windows`."""

from wayfare.signal import windows

__all__ = ["windows"]
