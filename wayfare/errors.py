"""Every exception Wayfare raises: one sentence that names the op, the shapes, the user's line and the way out.

Each class is also the built-in exception that PyTorch raises in its place, so `except RuntimeError` keeps working.
"""

from __future__ import annotations

from wayfare.site import current_site


class WayfareError(Exception):
    """Base of all errors; adds the user's own line to the sentence."""

    def __init__(self, sentence: str, *, fix: str = "") -> None:
        site = current_site()
        where = f" ({site})" if site is not None else ""
        self.sentence = sentence
        self.fix = fix
        text = sentence.rstrip(".") + where + "."
        super().__init__(text + (" " + fix if fix else ""))


class ShapeError(WayfareError, RuntimeError):
    """Shapes that do not fit together."""


class DTypeError(WayfareError, RuntimeError):
    """An element type that an op cannot take."""


class ArgumentError(WayfareError, ValueError):
    """An argument whose value makes no sense."""


class OperationError(WayfareError, RuntimeError):
    """An operation whose values or arguments PyTorch rejects with a RuntimeError."""


class ArgumentTypeError(WayfareError, TypeError):
    """An argument of the wrong kind."""


class IndexRangeError(WayfareError, IndexError):
    """An index or a dimension outside its range."""


class GraphError(WayfareError, RuntimeError):
    """Something asked of the graph that it cannot give: a second backward, a missing gradient, a stale value."""


class InPlaceError(GraphError):
    """A write in place that would make a gradient wrong."""


class AnomalyError(WayfareError, RuntimeError):
    """A NaN or infinity found by anomaly mode."""


class LinAlgError(WayfareError, RuntimeError):
    """A matrix that a decomposition cannot take: singular, not positive definite, not square."""
