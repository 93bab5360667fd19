"""`SummaryWriter`: scalars, histograms, texts and pictures as events that TensorBoard shows."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError, NotReadyError
from wayfare.see.tensorboard.records import RecordFile
from wayfare.see.tensorboard.values import histogram, number_of, picture, png
from wayfare.see.tensorboard.wire import number, real, single, text

__all__ = ["SummaryWriter"]

# The fields of the messages: Event, Summary.Value, and what is in them.
_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE = 1
_TAG, _SCALAR, _IMAGE, _HISTOGRAM, _TENSOR, _METADATA = 1, 2, 4, 5, 8, 9
_OF_STRINGS = 7  # the type of a tensor
_NUMBERS = itertools.count()  # two files of one second and one process have different names

_INSTEAD = {
    "add_graph": "look at the graph with wf.debug.record(), or embedded in wf.report(…)",
    "add_hparams": "write them with add_text, as a table",
    "add_figure": "save it as a picture and use add_image",
    "add_images": "call add_image for each",
}


class SummaryWriter:
    """Writes an event file into a folder (by default one of its own below `runs/`), to be shown by TensorBoard.

    Every event is a whole record in the file as soon as its method returns, so a crash loses nothing. Use it as a
    context manager or call `close()`.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, comment: str = "", purge_step: int | None = None,
        max_queue: int = 10, flush_secs: int = 120, filename_suffix: str = "",
    ) -> None:  # fmt: skip
        if log_dir is not None and not isinstance(log_dir, (str, os.PathLike)):
            raise ArgumentTypeError(f"SummaryWriter: log_dir must be a folder's path, not {type(log_dir).__name__}")
        # max_queue and flush_secs are taken for PyTorch's sake: nothing waits in a queue here.
        host = socket.gethostname()
        folder = Path(log_dir or Path("runs", f"{time.strftime('%b%d_%H-%M-%S')}_{host}{comment}"))
        name = f"events.out.tfevents.{int(time.time())}.{host}.{os.getpid()}.{next(_NUMBERS)}{filename_suffix}"
        self.path = folder / name
        self.log_dir = str(folder)
        self._file = RecordFile(self.path)
        self._others: dict[str, SummaryWriter] = {}
        self._closed = False
        self._file.append(real(_TIME, time.time()) + text(_VERSION, "brain.Event:2"))
        if purge_step is not None:
            # A session that starts at this step: TensorBoard forgets what an earlier one wrote from there on.
            self._file.append(real(_TIME, time.time()) + number(_STEP, purge_step) + text(7, number(1, 1)))

    def get_logdir(self) -> str:
        """The folder."""
        return self.log_dir

    def _write(self, value: bytes, step: Any, walltime: float | None) -> None:
        if self._closed:
            raise ArgumentError("SummaryWriter: it is closed", fix="Make another one for the same folder.")
        if step is not None and not hasattr(step, "__index__"):
            raise ArgumentTypeError(f"SummaryWriter: global_step must be a whole number, not {step!r}")
        when = real(_TIME, time.time() if walltime is None else walltime)
        at = b"" if step is None else number(_STEP, step.__index__())
        self._file.append(when + at + text(_SUMMARY, text(_VALUE, value)))

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: float | None = None,
        new_style: bool = False, double_precision: bool = False,
    ) -> None:  # fmt: skip
        """A point of a curve."""
        # Both styles look the same in TensorBoard; the old one is read by every version of it.
        value = single(_SCALAR, number_of(scalar_value, "add_scalar"))
        self._write(_tag(tag) + value, global_step, walltime)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:  # fmt: skip
        """Points of several curves in one picture: each is a run of its own, in a folder below."""
        _tag(main_tag)
        if not isinstance(tag_scalar_dict, Mapping):
            raise ArgumentTypeError("add_scalars: takes numbers by name, a dictionary, not "
                                    f"{type(tag_scalar_dict).__name__}")  # fmt: skip
        for tag, value in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, f"{main_tag}_{tag}".replace("/", "_"))
            if folder not in self._others:
                self._others[folder] = SummaryWriter(folder)
            self._others[folder].add_scalar(main_tag, value, global_step, walltime)

    def add_histogram(
        self, tag: str, values: Any, global_step: int | None = None, bins: Any = "tensorflow",
        walltime: float | None = None, max_bins: int | None = None,
    ) -> None:  # fmt: skip
        """How numbers are distributed; `bins` is a count, edges, or a rule of NumPy's."""
        if max_bins is not None and bins == "tensorflow":
            bins = max_bins
        self._write(_tag(tag) + text(_HISTOGRAM, histogram(values, bins)), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """A text, in Markdown."""
        tensor = number(1, _OF_STRINGS) + text(2, text(2, number(1, 1))) + text(8, str(text_string))
        plugin = text(1, text(1, "text"))
        value = _tag(f"{tag}/text_summary") + text(_METADATA, plugin) + text(_TENSOR, tensor)
        self._write(value, global_step, walltime)

    def add_image(
        self, tag: str, img_tensor: Any, global_step: int | None = None, walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:  # fmt: skip
        """A picture: uint8, or floats from 0 to 1; `dataformats` says which dimension is what."""
        pixels = picture(img_tensor, dataformats)
        height, width, colours = pixels.shape
        image = number(1, height) + number(2, width) + number(3, colours) + text(4, png(pixels))
        self._write(_tag(tag) + text(_IMAGE, image), global_step, walltime)

    def flush(self) -> None:
        """Force what was written to the disk."""
        if not self._closed:
            for writer in (self, *self._others.values()):
                writer._file.flush()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._closed = True
        self._file.close()
        for writer in self._others.values():
            writer.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("add_"):
            way = _INSTEAD.get(name, "scalars, histograms, texts and pictures are")
            raise NotReadyError(f"SummaryWriter: {name} is not written by Wayfare: {way}")
        raise AttributeError(f"SummaryWriter has no attribute {name!r}")


def _tag(tag: Any) -> bytes:
    if not isinstance(tag, str) or not tag:
        raise ArgumentTypeError(f"SummaryWriter: a tag is a text that is not empty, not {tag!r}")
    return text(_TAG, tag)
