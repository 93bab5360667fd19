"""Whether the examples of a map may run along recorded paths, and the paths of a function from one map to the next."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

from wayfare.batch.analysis.function_analysis import referenced
from wayfare.batch.fibers.example import Example
from wayfare.batch.function_profile import FunctionProfile
from wayfare.batch.paths.recorded import LEAST, RecordedPaths
from wayfare.batch.record.owner_table import table_of
from wayfare.compiler.captures.names import content_of
from wayfare.compiler.function import Compiled
from wayfare.core.device import default_device
from wayfare.core.mode import LOOPING, STATE
from wayfare.nn.module import Module

# The first map shows whether examples change what others see, and many functions are mapped only once.
FIRST_MAPS = 1
# The most functions of one owner whose paths are kept.
_MOST = 16


def paths_for(profile: FunctionProfile, examples: Sequence[Example]) -> RecordedPaths | None:
    """The paths of the mapped function, if its examples may run along them now."""
    profile.path_maps += 1
    if profile.path_maps <= FIRST_MAPS or profile.in_order or profile.never_batch or len(examples) < LEAST:
        return None
    mode = STATE.mode
    if (LOOPING and STATE.example is not None) or (mode is not None and (
        not mode.executor.works_on_arrays or mode.anomaly or mode.saved_hooks or mode.generator or mode.watcher
        or mode.autocast
    )):  # fmt: skip
        return None
    function, args = examples[0].function, examples[0].args
    analysis = profile.analysis_of(function)
    if analysis.registers_hooks or not analysis.tried or analysis.has_side_effects(function, args, examples[1].args):
        return None
    return paths_of(function)


def paths_of(function: Any) -> RecordedPaths | None:
    """The paths of a function; None if there is nothing that could keep them for the next map."""
    if isinstance(function, Compiled):
        function = function._function
    owner = _owner(function)
    if owner is None:
        return None
    table = table_of(owner)
    key = ("paths", _code(function), str(default_device()))
    found: RecordedPaths | None = table.get(key)
    if found is None or not _does_the_same(found.function, function):
        if len(table) >= _MOST and key not in table:
            return None
        found = table[key] = RecordedPaths(function)
    return found


def _owner(function: Any) -> Any:
    """What keeps the paths of a function: a module that it uses, because a lambda may be a new one in each map, or the
    function itself."""
    if isinstance(function, Module):
        return function
    for value in referenced(function):
        if isinstance(value, Module):
            return value
    return function if isinstance(function, types.FunctionType) else None


def _code(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None)


def _does_the_same(one: Any, other: Any) -> bool:
    """Whether two function objects have the same code and refer to the same objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if isinstance(one, functools.partial):
        return (
            _does_the_same(one.func, other.func) and _all_same(one.args, other.args)
            and list(one.keywords) == list(other.keywords)
            and _all_same(one.keywords.values(), other.keywords.values())
        )  # fmt: skip
    if not isinstance(one, types.FunctionType):
        return False
    cells = [[content_of(cell) for cell in f.__closure__ or ()] for f in (one, other)]
    return (
        one.__code__ is other.__code__ and one.__globals__ is other.__globals__ and _all_same(*cells)
        and _all_same(one.__defaults__ or (), other.__defaults__ or ())
        and (one.__kwdefaults__ or {}) == {} == (other.__kwdefaults__ or {})
    )  # fmt: skip


def _all_same(one: Any, other: Any) -> bool:
    one, other = list(one), list(other)
    return len(one) == len(other) and all([a is b for a, b in zip(one, other, strict=True)])
