"""Every exception that Wayfare raises: one sentence with the op, the shapes, the user's line and how to fix it.

Each class is also the built-in exception that PyTorch raises in its place, so `except RuntimeError` keeps working.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from wayfare.core.callsite import Site, user_frame
from wayfare.core.config import settings
from wayfare.core.expression import drawn


class WayfareError(Exception):
    """Base of all errors; adds the user's line and, inside a model, the layer's path to the sentence."""

    # Is it about shapes or dtypes? Then a note shows the user's expression with the shape under each operand.
    about_operands = False
    # Is it about an op of a device, and was it found later, when a value was read?
    late = False

    def __init__(self, sentence: str, *, fix: str = "", deferred: bool = False) -> None:
        """`deferred`: it may be raised later, or never: the user's frame is not kept, and its expression not drawn."""
        frame = user_frame(2)
        site = None if frame is None else Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        self.sentence = sentence
        self.fix = fix
        self.site = "" if site is None else f" ({site})"
        # The outermost module that the error has passed, the path from there to the layer, and the layer's repr.
        self.module: Any = None
        self.path = ""
        self.layer = ""
        self.example = ""
        self.expression = ""
        super().__init__(self._text())
        if deferred:
            return
        if self.about_operands:
            self._show(drawn(frame))
        if frame is not None and settings.traceback != "full":
            # The traceback ends at the user's line, so that a debugger stops there and not inside the library.
            self.__traceback__ = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)

    def came_from(self, module: Any, layer: str, path: str) -> None:
        """Add a module that the error passes: the layer where it happened (`layer`), or the path to it (`path`)."""
        self.module = module
        self.layer = layer or self.layer
        self.path = f"{path}.{self.path}".strip(".")
        self.args = (self._text(),)

    def happened_in(self, what: str, site: Any) -> None:
        """Add the example in which it happened, and the call site if it is another than the current one."""
        self.example = f", in {what}" if what else ""
        if site is not None:
            if self.site != f" ({site})":
                self._show("")
            self.site = f" ({site})"
        self.args = (self._text(),)

    def failed_on(self, op: str, specs: Sequence[Any]) -> None:
        """Add which op failed and on what, so that more operands of the user's expression can be shown."""
        if self.about_operands:
            self._show(drawn(user_frame(2), op, specs) or self.expression)

    def _show(self, expression: str) -> None:
        """Set the note with the expression, which a traceback shows below the sentence."""
        notes = [note for note in getattr(self, "__notes__", []) if note != self.expression]
        self.expression = expression
        self.__notes__ = [expression, *notes] if expression else notes

    def _text(self) -> str:
        where = f", in {self.path} = {self.layer}" if self.path else f", in {self.layer}" if self.layer else ""
        return self.sentence.rstrip(".") + where + self.example + self.site + "." + (" " + self.fix if self.fix else "")


def is_late(error: BaseException) -> bool:
    """Is this about an op of a device that ran before? Then it is told once: nothing may be tried again instead."""
    return isinstance(error, WayfareError) and error.late


class ShapeError(WayfareError, RuntimeError):
    """Shapes that do not fit together."""

    about_operands = True


class DTypeError(WayfareError, RuntimeError):
    """An element type that an op cannot take."""

    about_operands = True


class ArgumentError(WayfareError, ValueError):
    """An argument whose value makes no sense."""


class OperationError(WayfareError, RuntimeError):
    """An operation whose values or arguments PyTorch rejects with a RuntimeError."""


class ArgumentTypeError(WayfareError, TypeError):
    """An argument of the wrong kind."""


class IndexRangeError(WayfareError, IndexError):
    """An index or a dimension outside its range."""

    about_operands = True


class MissingKeyError(WayfareError, KeyError):
    """A name that a dictionary of modules or parameters does not have."""

    __str__ = Exception.__str__  # a KeyError shows its text as a literal


# Where PyTorch raises another class than one would expect, these are both, so that either `except` catches them.


class MismatchError(ShapeError, OperationError, ValueError):
    """Sizes that differ where they must be equal, or numbers that do not fit: PyTorch has a ValueError there."""


class RefusedArgumentError(ArgumentError, RuntimeError):
    """An argument whose value makes no sense, where PyTorch has a RuntimeError."""


class WrongKindError(ArgumentTypeError, ValueError, RuntimeError):
    """Something of the wrong kind (no tensor, no number), where PyTorch has a ValueError or a RuntimeError."""


class NoSuchDimensionError(ShapeError, OperationError, ArgumentError, IndexError):
    """A dimension or an element that what is given does not have: PyTorch has an IndexError there."""


class NotSupportedError(DTypeError, OperationError, NotImplementedError):
    """An element type that an op cannot take, where PyTorch has a NotImplementedError."""


class NoSuchDTypeError(DTypeError, ArgumentTypeError):
    """Something that is no element type of Wayfare's."""


class NotWrittenError(OperationError, NotImplementedError):
    """A method that a subclass must write and has not."""


class MissingEntryError(MissingKeyError, ArgumentError, ArgumentTypeError):
    """An entry that a dictionary of the user's must have."""


class RequirementError(ShapeError, ArgumentError, AssertionError):
    """Sizes or arguments that a layer or a dataset cannot be made or called with: PyTorch asserts them."""


class GraphError(WayfareError, RuntimeError):
    """Something that the graph cannot do: a second backward, a missing gradient, a value that was overwritten."""


class InPlaceError(GraphError):
    """A write in place that would make a gradient wrong."""


class AnomalyError(WayfareError, RuntimeError):
    """A NaN or infinity found by anomaly mode."""


class CheckError(WayfareError, RuntimeError):
    """A compiled call that did something else than its Python does."""


class OutOfMemoryError(WayfareError, RuntimeError, MemoryError):
    """Something that the machine has no memory for."""


class LinAlgError(WayfareError, RuntimeError):
    """A matrix that a decomposition cannot take: singular, not positive definite, not square."""


class ExportError(WayfareError, RuntimeError):
    """A function that cannot be exported, or whose file gives other results than Python."""


class FileFormatError(WayfareError, ValueError):
    """A file that is not what it should be: of another kind, damaged, or made to do harm."""


class FileAccessError(WayfareError, OSError):
    """A file or folder that the system does not let be read or written; `errno` says why."""


class MissingFileError(FileAccessError, FileNotFoundError):
    """A file or folder that is not there."""


class NotReadyError(WayfareError, AttributeError):
    """A module used before its __init__ has run."""


class DistributedError(WayfareError, RuntimeError):
    """Processes that cannot be joined, that do different things, or that do not answer."""


class LoopError(WayfareError):
    """A loop that breaks a rule of the loop language, or a formula that cannot be written as one."""


# Tracebacks show the public name of an error: wayfare.errors.ShapeError.
for _class in list(vars().values()):
    if isinstance(_class, type) and issubclass(_class, WayfareError):
        _class.__module__ = "wayfare.errors"
