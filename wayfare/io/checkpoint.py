"""`wf.Checkpoint`: a folder of files from which a run goes on as if it had never stopped."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, FileAccessError, FileFormatError, MissingFileError
from wayfare.io.files import checked_header, open_for_reading, path_text, read, write
from wayfare.io.header import strict_json
from wayfare.io.parts import RandomNumbers, Stateful, as_part, restore_all
from wayfare.io.structure import plan

__all__ = ["Checkpoint", "SavedCheckpoint"]

_NAME = re.compile(r"checkpoint-(\d{8,})\.safetensors", re.ASCII)
_ABOUT_KEY = "wayfare.checkpoint"
_RANDOM, _EXTRA = "random", "extra"
# Numbers of files and their order: what a file may say, so that the next one still has a name.
_LARGEST = 10**15


class SavedCheckpoint(NamedTuple):
    """One file of a Checkpoint: its path, its step or epoch, its metric, and its place in the order of saving."""

    path: Path
    number: int
    metric: float | None
    order: int


class Checkpoint:
    """Saves and restores the parts of a run: `wf.Checkpoint("run", model=model, optimizer=opt, keep=3)`.

    Parts are objects with `state_dict` and `load_state_dict`, and tensors, generators, lists and dicts, which are put
    back in place. The states of Wayfare's, Python's and NumPy's random numbers are kept too. The last `keep` files
    stay (None: all), and with `best="min"` or `"max"` the one whose `metric`, given to `save`, is the best.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int | None = 3, best: Literal["min", "max"] | None = None,
        metric: str = "loss", **parts: Any,
    ) -> None:  # fmt: skip
        self._folder = Path(path_text("Checkpoint", folder))
        if keep is not None and (type(keep) is not int or keep < 1):
            raise ArgumentError(f"Checkpoint: keep must be 1 or more, or None for all, it is {keep!r}")
        if best not in (None, "min", "max"):
            raise ArgumentError(f"Checkpoint: best must be 'min', 'max' or None, it is {best!r}")
        for name in (_RANDOM, _EXTRA):
            if name in parts:
                raise ArgumentError(f"Checkpoint: a part cannot be named {name!r}, which the file uses itself")
        self._keep, self._best, self._metric = keep, best, metric
        self._parts: dict[str, Stateful] = {name: as_part(name, value) for name, value in parts.items()}
        self._parts[_RANDOM] = RandomNumbers()
        # What a file said of itself, by its path, as long as it is the same file.
        self._seen: dict[Path, tuple[tuple[int, int, int], SavedCheckpoint]] = {}

    def with_part(self, old: Any, new: Any) -> Checkpoint:
        """The same folder and parts, with `new` in the place of the part `old`, if there is one."""
        made = copy.copy(self)
        made._parts = {name: new if part is old else part for name, part in self._parts.items()}
        return made

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._folder

    @property
    def saved(self) -> list[SavedCheckpoint]:
        """The files that are whole, in the order they were saved."""
        return self._scan()[0]

    @property
    def latest(self) -> Path | None:
        """The file saved last, or None. A damaged one does not count."""
        saved = self.saved
        return saved[-1].path if saved else None

    @property
    def best(self) -> Path | None:
        """The file with the best metric, or None."""
        best = self._best_of(self.saved)
        return None if best is None else best.path

    def save(self, **extra: Any) -> Path:
        """Write all parts and `extra` to one file and give its path; then delete the files that need not stay.

        `step` or else `epoch`, if given, numbers the file; without them it counts on. `extra` may hold whatever
        `wf.save` takes, and `restore` gives it back.
        """
        saved = self.saved
        number = self._number(extra, saved)
        metric = self._metric_value(extra)
        states = {name: part.state_dict() for name, part in self._parts.items()}
        planned = plan({**states, _EXTRA: extra}, "checkpoint", plain=False)
        order = max((entry.order for entry in saved), default=-1) + 1
        # A float as hexadecimal text has all its bits, and NaN and infinity too.
        about = {"number": number, "order": order, "metric": None if metric is None else metric.hex()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused("make", error) from None
        path = self._folder / f"checkpoint-{number:08d}.safetensors"
        write(planned, str(path), {_ABOUT_KEY: json.dumps(about)}, follow=False)
        self._delete_old()
        return path

    def restore(self, which: str | os.PathLike[str] | int = "latest") -> dict[str, Any]:
        """Put a saved state back into all parts, or into none if one does not fit, and return what `extra` was.

        `which` is "latest", "best", a number of a step or epoch, or a path. A newest file that is damaged is passed
        over with a warning for the one before it.
        """
        if which == "latest":
            return self._restore_latest()
        if which == "best":
            path = self.best
        elif isinstance(which, int):
            path = next((entry.path for entry in self.saved if entry.number == which), None)
        else:
            path = Path(path_text("restore", which))
        if path is None:
            wanted = "with a metric" if which == "best" else f"numbered {which}"
            raise MissingFileError(f"restore: there is no checkpoint {wanted} in {str(self._folder)!r}",
                                   fix=f"There are {[entry.number for entry in self.saved]}.")  # fmt: skip
        return self._put_back(path, self._read(path))

    def __repr__(self) -> str:
        parts = ", ".join(name for name in self._parts if name != _RANDOM)
        return f"Checkpoint({str(self._folder)!r}, parts: {parts or 'none'}, saved: {len(self.saved)})"

    def _restore_latest(self) -> dict[str, Any]:
        saved, damaged = self._scan()
        for entry in reversed(saved):
            try:
                state = self._read(entry.path)
            except FileFormatError as error:
                damaged[entry.path] = error.sentence
                continue
            self._warn_of(damaged, entry)
            return self._put_back(entry.path, state)
        if damaged:
            raise FileFormatError("restore: all checkpoints are damaged: " + "; ".join(damaged.values()))
        raise MissingFileError(f"restore: there is no checkpoint in {str(self._folder)!r}",
                               fix="For a fresh start ask first whether `latest` is None.")  # fmt: skip

    def _warn_of(self, damaged: dict[Path, str], taken: SavedCheckpoint) -> None:
        """Name the damaged files that may be newer than the one taken."""
        for path, sentence in damaged.items():
            if path.name > taken.path.name:
                warnings.warn(f"{sentence}; going on from {taken.path.name} instead", stacklevel=4)

    def _put_back(self, path: Path, state: dict[str, Any]) -> dict[str, Any]:
        extra: dict[str, Any] = state.pop(_EXTRA)
        restore_all(self._parts, state, repr(str(path)))
        return extra

    def _read(self, path: Path) -> dict[str, Any]:
        """The whole state in a file."""
        with open_for_reading(str(path)) as file:
            state, texts = read(file, os.fstat(file.fileno()).st_size, repr(str(path)))
        if _ABOUT_KEY not in texts or not isinstance(state, dict) or not isinstance(state.get(_EXTRA), dict):
            raise FileFormatError(f"restore: {str(path)!r} was not written by a Checkpoint",
                                  fix="Read it with wf.load.")  # fmt: skip
        return state

    def _scan(self) -> tuple[list[SavedCheckpoint], dict[Path, str]]:
        """The whole files in the order of saving, and the damaged ones with what is wrong, by their headers."""
        whole, damaged = [], {}
        try:
            names = os.listdir(self._folder) if self._folder.is_dir() else []
        except OSError as error:
            raise self._refused("look into", error) from None
        for name in sorted(filter(_NAME.fullmatch, names)):
            path = self._folder / name
            try:
                whole.append(self._about(path))
            except MissingFileError:
                continue  # another process has just deleted it
            except (FileFormatError, FileAccessError) as error:
                damaged[path] = error.sentence
        return sorted(whole, key=lambda entry: entry.order), damaged

    def _refused(self, what: str, error: OSError) -> FileAccessError:
        sentence = f"Checkpoint: cannot {what} the folder {str(self._folder)!r}: {error.strerror}"
        refused = FileAccessError(sentence)
        refused.errno = error.errno
        return refused

    def _about(self, path: Path) -> SavedCheckpoint:
        """What a file says of itself."""
        with open_for_reading(str(path)) as file:
            found = os.fstat(file.fileno())
            identity = (found.st_ino, found.st_size, found.st_mtime_ns)
            if path in self._seen and self._seen[path][0] == identity:
                return self._seen[path][1]
            texts = checked_header(file, found.st_size, repr(str(path))).metadata
        about = strict_json(texts.get(_ABOUT_KEY, "null"), f"the metadata of {str(path)!r}")
        try:
            number, order, metric = about["number"], about["order"], about["metric"]
            if not all(type(n) is int and 0 <= n < _LARGEST for n in (number, order)):
                raise TypeError
            entry = SavedCheckpoint(path, number, None if metric is None else float.fromhex(metric), order)
        except (TypeError, KeyError, ValueError, OverflowError):
            raise FileFormatError(f"restore: {str(path)!r} was not written by a Checkpoint") from None
        self._seen[path] = identity, entry
        return entry

    def _number(self, extra: dict[str, Any], saved: list[SavedCheckpoint]) -> int:
        name = next((name for name in ("step", "epoch") if name in extra), None)
        if name is None:
            return saved[-1].number + 1 if saved else 0
        number = extra[name]
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise ArgumentTypeError(f"Checkpoint.save: {name} must be an int, not {type(number).__name__}")
        if not 0 <= int(number) < _LARGEST:
            raise ArgumentError(f"Checkpoint.save: {name} must be 0 or more and below {_LARGEST:,}"
                                + (f", it is {number}" if int(number) < 0 else ""))  # fmt: skip
        return int(number)

    def _metric_value(self, extra: dict[str, Any]) -> float | None:
        if self._best is None:
            return None
        value: Any = extra.get(self._metric)
        if isinstance(value, wf.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, wf.Tensor):
            raise ArgumentError(
                f"Checkpoint.save: best={self._best!r} needs the number {self._metric!r}, and was given "
                f"{'none' if self._metric not in extra else type(value).__name__}",
                fix=f"Call save({self._metric}=...).",
            )
        return float(value)

    def _best_of(self, saved: list[SavedCheckpoint]) -> SavedCheckpoint | None:
        """The first of the best; one whose metric is NaN never is."""
        scored = [(entry.metric, entry) for entry in saved if entry.metric is not None and not math.isnan(entry.metric)]
        if not scored or self._best is None:
            return None
        choose = min if self._best == "min" else max
        return choose(scored, key=lambda pair: pair[0])[1]

    def _delete_old(self) -> None:
        """Delete what need not stay. Damaged files are left for their owner to look at."""
        if self._keep is None:
            return
        saved = self.saved
        stay = {entry.path for entry in saved[-self._keep :]}
        best = self._best_of(saved)
        for entry in saved:
            if entry.path not in stay and entry is not best:
                try:
                    entry.path.unlink(missing_ok=True)
                except OSError as error:
                    warnings.warn(f"Checkpoint: cannot delete {str(entry.path)!r}: {error.strerror}", stacklevel=3)
                self._seen.pop(entry.path, None)
