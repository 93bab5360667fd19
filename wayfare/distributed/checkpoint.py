"""Checkpoints in parts: every rank writes its share of a state to a folder, and any number of ranks reads the whole.

A folder holds one checkpoint: files of the ranks, and `index.json`, which names them. The index is written last and in
one step, so a run that dies while it saves leaves the checkpoint that was there before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wayfare as wf
from wayfare.core.errors import FileFormatError, MissingFileError, MissingKeyError
from wayfare.distributed.collectives import barrier
from wayfare.distributed.objects import everyones
from wayfare.distributed.process_group import group_of
from wayfare.io.documents import read_document
from wayfare.io.replace import replace_text

__all__ = ["load", "save"]

_INDEX = "index.json"
_FORMAT = 1

Leaf = tuple[tuple[str | int, ...], Any]


def save(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None) -> None:
    """Write a state to a folder, each rank a share of it. Every rank must call it; the folder is one that all see.

    What all ranks have (weights) is dealt among them by size; what only some have (their part of an optimiser's state:
    `ZeroRedundancyOptimizer.local_state_dict()`) one of these writes.
    """
    group = group_of(process_group)
    folder = Path(checkpoint_id)
    leaves = dict(_leaves(state_dict, ()))
    own = [[list(path), _size(value)] for path, value in leaves.items()]
    owners = _dealt([{tuple(path): size for path, size in rank} for rank in everyones(group, own, "save")])
    number = max(everyones(group, _number(folder) + 1, "save"))
    name = f"part-{number:08d}-{group.rank():05d}-of-{group.size():05d}.safetensors"
    mine = [[list(path), value] for path, value in leaves.items() if owners[path] == group.rank()]
    folder.mkdir(parents=True, exist_ok=True)
    wf.save({"entries": mine}, folder / name)
    files = everyones(group, name, "save")  # when this returns, every part is on the disk
    if group.rank() == 0:
        index = {"format": _FORMAT, "number": number, "parts": files}
        replace_text(str(folder / _INDEX), json.dumps(index, indent=1) + "\n")
        for old in folder.glob("part-*.safetensors"):
            if old.name not in files:
                old.unlink(missing_ok=True)
    barrier(process_group)


def load(state_dict: dict[str, Any] | None = None, *, checkpoint_id: str | os.PathLike[str]) -> dict[str, Any]:
    """The whole state in a folder. Tensors of `state_dict`, if it is given, get their values in place.

    It needs no other ranks: a checkpoint that four ranks wrote can be read by one process or by eight.
    """
    folder = Path(checkpoint_id)
    whole: dict[str, Any] = {}
    for name in _parts(folder):
        for path, value in wf.load(folder / name)["entries"]:
            _put(whole, path, value)
    if state_dict is not None:
        _fill(state_dict, whole, folder)
    return whole


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, wf.Tensor) else 0


def _dealt(ranks: list[dict[Any, int]]) -> dict[Any, int]:
    """Which rank writes what: among those that have it, the one that has least to write so far; the same on all."""
    owners: dict[Any, int] = {}
    loads = [0] * len(ranks)
    sizes = {path: size for rank in reversed(ranks) for path, size in rank.items()}
    holders = {path: [r for r, held in enumerate(ranks) if path in held] for path in sizes}
    # What few ranks have comes first, then the largest: what can go anywhere fills up the rest.
    for path in sorted(sizes, key=lambda path: (len(holders[path]), -sizes[path], [str(key) for key in path])):
        owners[path] = min(holders[path], key=lambda r: (loads[r], r))
        loads[owners[path]] += sizes[path]
    return owners


def _index(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = read_document(str(folder / _INDEX), "load")
    parts = index.get("parts") if isinstance(index, dict) else None
    if not isinstance(parts, list) or index.get("format") != _FORMAT or type(index.get("number")) is not int:
        raise FileFormatError(f"load: {str(folder / _INDEX)!r} is not the index of a checkpoint in parts")
    # A name from a file is a name in this folder, and no way out of it.
    if not all(isinstance(name, str) and Path(name).name == name and name.startswith("part-") for name in parts):
        raise FileFormatError(f"load: {str(folder / _INDEX)!r} names files that are not its parts")
    return index


def _number(folder: Path) -> int:
    try:
        return int(_index(folder)["number"])
    except (MissingFileError, FileFormatError):
        return 0


def _parts(folder: Path) -> list[str]:
    found: list[str] = _index(folder)["parts"]
    return found


def _put(whole: dict[str, Any], path: list[Any], value: Any) -> None:
    at: Any = whole
    for key in path[:-1]:
        at = at.setdefault(key, {})
    at[path[-1]] = value


def _fill(state: dict[str, Any], whole: dict[str, Any], folder: Path) -> None:
    found = dict(_leaves(whole, ()))
    missing = [path for path, _ in _leaves(state, ()) if path not in found]
    if missing:
        shown = ", ".join(".".join(map(str, path)) for path in missing[:5])
        raise MissingKeyError(f"load: {str(folder)!r} has no {shown}", fix="It is a checkpoint of another state.")
    for path, value in list(_leaves(state, ())):
        if isinstance(value, wf.Tensor):
            with wf.no_grad():
                value.copy_(found[path])
        else:
            _put(state, list(path), found[path])
