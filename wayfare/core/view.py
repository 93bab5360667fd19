"""Views: the base tensor whose memory a tensor shares, and the view ops from there."""

from __future__ import annotations

from typing import Any


class View:
    """The base of a view, and the chain of view ops that leads from it."""

    __slots__ = ("_attrs", "_before", "_op", "base", "base_edge")

    def __init__(self, source: Any, op: str, attrs: dict[str, Any]) -> None:
        view = source._view
        self._op, self._attrs = op, attrs
        if view is None:
            self.base: Any = source
            # The base's history when this view's was made; if it differs, the base has been written.
            self.base_edge = source._edge
            self._before: Any = None
        else:
            self.base, self.base_edge = view.base, view.base_edge
            self._before = (view._op, view._attrs, view._before)

    def of(self, base: Any) -> View:
        """An independent copy of this view with another base."""
        made = View.__new__(View)
        made._op, made._attrs, made._before, made.base_edge = self._op, self._attrs, self._before, self.base_edge
        made.base = base
        return made

    @property
    def path(self) -> tuple[Any, ...]:
        """The view ops with their attributes. Built when asked for, which is rare: stored, it would be five more
        objects per view for the garbage collector."""
        steps = []
        step: Any = (self._op, self._attrs, self._before)
        while step is not None:
            op, attrs, step = step
            steps.append((op, tuple(attrs.items())))
        return tuple(reversed(steps))
