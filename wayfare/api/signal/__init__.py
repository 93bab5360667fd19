"""Signals: `wf.signal.windows`."""

from wayfare.api.signal import windows

__all__ = ["windows"]
