"""Views: which memory a tensor looks into, and how."""

from __future__ import annotations

from typing import Any


class View:
    """How a tensor looks into another's memory: the base and the view ops that lead from it."""

    __slots__ = ("_attrs", "_before", "_op", "base", "base_edge")

    def __init__(self, source: Any, op: str, attrs: dict[str, Any]) -> None:
        view = source._view
        self._op, self._attrs = op, attrs
        if view is None:
            self.base: Any = source
            # The base's history when this view's own was made; another one means it has been written into.
            self.base_edge = source._edge
            self._before: Any = None
        else:
            self.base, self.base_edge = view.base, view.base_edge
            self._before = (view._op, view._attrs, view._before)

    def of(self, base: Any) -> View:
        """The same view of a base, with nothing in common with this one."""
        made = View.__new__(View)
        made._op, made._attrs, made._before, made.base_edge = self._op, self._attrs, self._before, self.base_edge
        made.base = base
        return made

    @property
    def path(self) -> tuple[Any, ...]:
        """The view ops, with their attributes. Few ask for it, and kept as it is it would be five objects a view, which
        the garbage collector would have to go through."""
        steps = []
        step: Any = (self._op, self._attrs, self._before)
        while step is not None:
            op, attrs, step = step
            steps.append((op, tuple(attrs.items())))
        return tuple(reversed(steps))
