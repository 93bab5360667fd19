"""An exception that happened in a worker process, to be raised again in its parent."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from wayfare.core.errors import WayfareError


@dataclass(frozen=True)
class Failure:
    """An exception in a worker: its class, pickled, and what happened, as text."""

    kind: bytes | None
    name: str
    message: str
    trace: str
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Take down an exception."""
        try:
            kind = pickle.dumps(type(error))
        except Exception:  # a class inside a function, for instance
            kind = None
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        notes = tuple([str(note) for note in getattr(error, "__notes__", ())])
        return Failure(kind, type(error).__name__, message, "".join(traceback.format_exception(error)), notes)

    def raised_again(self, text: str) -> BaseException:
        """The exception to raise in the parent, with this text: of the same class if that can be, else a
        RuntimeError."""
        try:
            kind = pickle.loads(self.kind) if self.kind is not None else RuntimeError
            # Raised from an iterator, these two would only end the loop.
            if not issubclass(kind, BaseException) or issubclass(kind, StopIteration | StopAsyncIteration):
                return RuntimeError(text)
            if issubclass(kind, WayfareError):
                # Its own way of being made would add a line of the parent's to the sentence.
                sentence: WayfareError = kind.__new__(kind)
                sentence.args, sentence.sentence, sentence.fix = (text,), self.message, ""
                return sentence
            error: BaseException = kind(_Verbatim(text))
            return error if text in str(error) else RuntimeError(text)
        except Exception:  # a class that wants other arguments, or that this process does not have
            return RuntimeError(text)


class _Verbatim(str):
    """Text that looks the same in the message of a KeyError, which shows what it was given by repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
