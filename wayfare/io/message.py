"""Values as bytes, in the format of the files, and back: for other processes. Nothing in them is ever run."""

from __future__ import annotations

import io
from typing import Any

from wayfare.io.files import contents, read
from wayfare.io.structure import plan

__all__ = ["decoded", "encoded"]


def encoded(value: Any) -> bytes:
    """Any value that `wf.save` takes, as bytes."""
    return b"".join(contents(plan(value, "the object", plain=False), {}))


def decoded(data: bytes) -> Any:
    """The value in such bytes."""
    return read(io.BytesIO(data), len(data), "a message")[0]
