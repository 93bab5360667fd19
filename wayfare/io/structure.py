"""Nested values as JSON and a list of arrays, and back.

Texts, finite floats, short integers, True, False, None and lists are themselves in JSON. Everything else is an object
with one name, its kind, from the fixed list below: a kind that is not in it is refused, never looked up.
"""

from __future__ import annotations

import base64
import enum
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.dlpack import type_name
from wayfare.core.errors import ArgumentTypeError, FileFormatError
from wayfare.io.header import CODES, DTYPES, METADATA

__all__ = ["Plan", "decode", "plan"]

MAX_DEPTH = 64
# Beyond this, readers that keep JSON numbers as doubles lose digits.
_EXACT = 2**53
_SHOWN = 5
_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}

Array = np.ndarray[Any, Any]


class Plan:
    """The content of a file: arrays by their names in the file, and the structure, None for a plain dict of tensors."""

    def __init__(self, root: str) -> None:
        self.arrays: dict[str, Array] = {}
        self.structure: str | None = None
        self._root = root
        self._problems: list[tuple[str, str]] = []

    def encode(self, value: Any, path: tuple[Any, ...] = (), above: tuple[int, ...] = ()) -> Any:
        """The JSON value for a value at a place; notes what cannot be kept, and goes on."""
        if value is None or type(value) in (bool, str):
            return value
        if isinstance(value, (wf.Tensor, np.ndarray)):
            return self._tensor(value, path)
        if isinstance(value, (int, float, np.generic)) and not isinstance(value, enum.Enum):
            return self._number(value, path)
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, wf.dtype):
            return {"dtype": value.name}
        if isinstance(value, wf.Size):
            return {"size": list(value)}
        if type(value) in (list, tuple) or isinstance(value, dict):
            return self._container(value, path, above)
        return self._refuse(path, f"is {_kind(value)}, which a file cannot hold", _way_out(value))

    def _container(self, value: Any, path: tuple[Any, ...], above: tuple[int, ...]) -> Any:
        if id(value) in above:
            return self._refuse(path, "contains itself", "Keep each container in one place.")
        if len(above) >= MAX_DEPTH:
            return self._refuse(path, f"is nested more than {MAX_DEPTH} deep", "Make the structure flatter.")
        above = (*above, id(value))
        if isinstance(value, dict):
            items = []
            for key, item in value.items():
                if type(key) not in (str, int):
                    self._refuse(path, f"has the key {key!r:.60}, {_kind(key)}", "Keys can be str or int.")
                else:
                    items.append([self.encode(key), self.encode(item, (*path, key), above)])
            return {"dict": items}
        found = [self.encode(item, (*path, index), above) for index, item in enumerate(value)]
        return found if type(value) is list else {"tuple": found}

    def _number(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, np.generic):
            if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
                if isinstance(value, np.str_):
                    return str(value)
                return self._refuse(path, f"is {_kind(value)}, which a file cannot hold", _way_out(value))
            value = value.item()
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) <= _EXACT else {"int": f"{int(value):x}"}
        return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}

    def _tensor(self, value: Any, path: tuple[Any, ...]) -> Any:
        array = array_of(value)
        if array is None:
            return self._refuse(path, f"is {_kind(value)}, which Wayfare has not",
                                f"Tensors can be {', '.join(CODES)}.")  # fmt: skip
        name = ".".join(str(part) for part in path).encode("utf-8", "replace").decode() or "tensor"
        stem, count = name, 1
        while name in self.arrays or name == METADATA:
            count += 1
            name = f"{stem}~{count}"
        self.arrays[name] = array
        return {"tensor": name}

    def _refuse(self, path: tuple[Any, ...], why: str, fix: str) -> None:
        place = self._root + "".join(f"[{json.dumps(part, ensure_ascii=False)}]" for part in path)
        self._problems.append((f"{place} {why}", fix))

    def check(self) -> None:
        """Raise if something cannot be kept."""
        if self._problems:
            more = len(self._problems) - _SHOWN
            sentences, fixes = zip(*self._problems[:_SHOWN], strict=True)
            raise ArgumentTypeError(f"save: {'; '.join(sentences)}" + (f"; and {more} more" if more > 0 else ""),
                                    fix=" ".join(dict.fromkeys(fixes)))  # fmt: skip


def plan(value: Any, root: str = "state", *, plain: bool = True) -> Plan:
    """Check everything before any file is touched. `plain`: a dict of tensors needs no structure."""
    made = Plan(root)
    if plain and isinstance(value, dict):
        arrays = {name: array_of(item) for name, item in value.items() if _is_plain_name(name)}
        if len(arrays) == len(value) and all(array is not None for array in arrays.values()):
            made.arrays = {name: array for name, array in arrays.items() if array is not None}
            return made
    encoded = made.encode(value)
    made.check()
    made.structure = json.dumps(encoded, separators=(",", ":"), allow_nan=False)
    return made


def array_of(value: Any) -> Array | None:
    """The numbers of a tensor or NumPy array, where they are, or copied from a GPU; None for anything else, or a dtype
    that Wayfare has not."""
    if isinstance(value, wf.Tensor):
        return value.detach().cpu().numpy()
    if type(value) in (np.ndarray, np.memmap) and value.dtype.name in CODES:
        return np.asarray(value)
    return None


def decode(value: Any, tensor: Callable[[str], wf.Tensor], depth: int = 0) -> Any:
    """The value that a JSON value stands for; `tensor` gives the tensor of a name."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise FileFormatError("load: the structure has a number that no float holds")
        return value
    if depth > MAX_DEPTH:
        raise FileFormatError(f"load: the structure is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [decode(item, tensor, depth + 1) for item in value]
    if len(value) != 1:
        raise FileFormatError("load: the structure has an object that is not one kind and its value")
    ((kind, content),) = value.items()
    if kind not in _READERS:
        raise FileFormatError(f"load: the structure has a value of the unknown kind {kind!r:.60}",
                              fix="The file may come from a newer version of Wayfare.")  # fmt: skip
    expected, reader = _READERS[kind]
    if not isinstance(content, expected):
        raise FileFormatError(f"load: the structure has a {kind} that is not given as a {expected.__name__}")
    try:
        return reader(content, tensor, depth + 1)
    except FileFormatError:
        raise
    except (ValueError, struct.error):
        raise FileFormatError(f"load: the structure has a {kind} that cannot be read, {content!r:.60}") from None


def _dict(items: Any, tensor: Callable[[str], wf.Tensor], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise ValueError
        key = decode(item[0], tensor, depth)
        if type(key) not in (str, int) or key in found:
            raise ValueError
        found[key] = decode(item[1], tensor, depth)
    return found


def _size(items: Any) -> wf.Size:
    if any(type(item) is not int for item in items):
        raise ValueError
    return wf.Size(items)


def _dtype(name: str) -> wf.dtype:
    if name not in _DTYPES:
        raise ValueError
    return _DTYPES[name]


_READERS: Mapping[str, tuple[type, Callable[[Any, Callable[[str], wf.Tensor], int], Any]]] = {
    "tensor": (str, lambda name, tensor, depth: tensor(name)),
    "dict": (list, _dict),
    "tuple": (list, lambda items, tensor, depth: tuple(decode(item, tensor, depth) for item in items)),
    "size": (list, lambda items, tensor, depth: _size(items)),
    "dtype": (str, lambda name, tensor, depth: _dtype(name)),
    "int": (str, lambda digits, tensor, depth: int(digits, 16)),
    "float": (str, lambda bits, tensor, depth: struct.unpack(">d", bytes.fromhex(bits))[0]),
    "bytes": (str, lambda text, tensor, depth: base64.b64decode(text, validate=True)),
}


def _is_plain_name(name: Any) -> bool:
    """Can it name a tensor of a file as it is? Half a surrogate pair has no UTF-8."""
    return type(name) is str and name != METADATA and name == name.encode("utf-8", "replace").decode()


def _kind(value: Any) -> str:
    """What a value is, with its article."""
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype.name}" if type(value) is np.ndarray else f"a {type(value).__name__}"
    name = type_name(value)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _way_out(value: Any) -> str:
    if isinstance(value, wf.Ragged):
        return "Save r.values and r.offsets; wf.Ragged.from_parts(values, offsets) makes it again."
    if hasattr(value, "state_dict") and not isinstance(value, type):
        return "Save its state_dict()."
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "Save its _asdict()."
    if isinstance(value, (set, frozenset)):
        return "Save sorted(...) of it."
    if isinstance(value, enum.Enum):
        return "Save its name."
    if hasattr(value, "__dlpack__"):
        return "Save wf.from_dlpack(...) of it."
    if callable(value):
        return "Code is never saved: keep it in the program and save the numbers it needs."
    return "It holds tensors, numbers, str, bytes, bool, None, and dict, list and tuple of them."
