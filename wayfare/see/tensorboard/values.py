"""Values as TensorBoard stores them: histograms in buckets that grow with size, and images as PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from wayfare.core.spec import widened
from wayfare.see.tensorboard.wire import doubles, real

__all__ = ["array_of", "histogram", "number_of", "picture", "png"]

Array = np.ndarray[Any, Any]

# The letters of dataformats, and what is moved where to get rows, columns, colours.
_FORMATS = {"CHW": (1, 2, 0), "HWC": (0, 1, 2), "HW": (0, 1), "WHC": (1, 0, 2)}


def array_of(value: Any, what: str) -> Array:
    """A tensor, array or list as an array."""
    found = widened(value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value))
    if found.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"{what}: takes numbers, not {type(value).__name__}")
    return np.asarray(found)


def number_of(value: Any, what: str) -> float:
    """A number, or a tensor of one, as a Python float."""
    try:
        found = array_of(value, what)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{what}: takes a number or a tensor of one, not {type(value).__name__}") from None
    if found.size != 1:
        raise ArgumentError(f"{what}: takes one number, this has shape {list(found.shape)}",
                            fix="Take its mean(), or use add_histogram.")  # fmt: skip
    return float(found.reshape(()))


def _usual_edges() -> Array:
    """Edges that grow by a tenth from 1e-12 to 1e20, for both signs."""
    positive = 1e-12 * 1.1 ** np.arange(775)
    return np.concatenate([-positive[::-1], [0.0], positive])


def histogram(values: Any, bins: Any = "tensorflow") -> bytes:
    """The message of a histogram: least, largest, count, sums, and the filled buckets. Only finite numbers count."""
    flat = array_of(values, "add_histogram").astype(np.float64).reshape(-1)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        raise ArgumentError("add_histogram: there is no finite number to count")
    try:
        edges = _usual_edges() if bins == "tensorflow" else np.histogram_bin_edges(flat, bins)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"add_histogram: bins={bins!r} are not valid: {error}") from None
    if bins == "tensorflow":
        flat = np.clip(flat, edges[0], edges[-1])
    counts, edges = np.histogram(flat, edges)
    filled = np.flatnonzero(counts)
    first, last = (filled[0], filled[-1] + 1) if len(filled) else (0, 0)
    # A bucket is named by its upper edge; an empty one before the first says where that begins.
    limits, kept = edges[first : last + 1], np.concatenate([[0], counts[first:last]])
    return b"".join((
        real(1, flat.min()), real(2, flat.max()), real(3, flat.size), real(4, flat.sum()), real(5, (flat * flat).sum()),
        doubles(6, limits.tolist()), doubles(7, kept.tolist()),
    ))  # fmt: skip


def picture(image: Any, dataformats: str) -> Array:
    """An image as uint8 [height, width, colours]: floats from 0 to 1 are stretched, uint8 stays."""
    found = array_of(image, "add_image")
    order = _FORMATS.get(dataformats.upper())
    if order is None:
        raise ArgumentError(f"add_image: dataformats must be one of {', '.join(_FORMATS)}, not {dataformats!r}")
    if found.ndim != len(order):
        raise ShapeError(f"add_image: {dataformats} has {len(order)} dimensions, the image has shape "
                         f"{list(found.shape)}", fix="Say dataformats='HW' for one of no colours.")  # fmt: skip
    if not found.size:
        raise ShapeError(f"add_image: an image of shape {list(found.shape)} has no pixel")
    found = found.transpose(order).reshape(*(found.shape[axis] for axis in order[:2]), -1)
    if found.shape[2] not in (1, 3, 4):
        size = f"{found.shape[0]}×{found.shape[1]}"
        raise ShapeError(f"add_image: an image has 1, 3 or 4 colours, this has {found.shape[2]} and is {size}",
                         fix="Say where they are: dataformats='HWC'.")  # fmt: skip
    if found.dtype.kind == "f":
        found = np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5
    elif found.dtype.kind == "b":
        found = found * 255
    return np.ascontiguousarray(found.clip(0, 255).astype(np.uint8))


def png(pixels: Array) -> bytes:
    """uint8 [height, width, colours] as a PNG file."""
    height, width, colours = pixels.shape
    kind = {1: 0, 3: 2, 4: 6}[colours]
    # Each row begins with a byte that says how it is predicted: not at all.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes())), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
