"""What a code object reads and writes by name, taken from its instructions: globals, free variables, attributes."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

# Built-in functions that reach attributes by a name that is only known when they run.
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_ATTRIBUTES = _ATTRIBUTE | {"STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR"}
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
# Special methods that comparisons run; others are taken to run wherever there is an object that has them.
_EQUAL = frozenset({"__eq__", "__ne__", "__hash__"})
_ORDER = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
COMPARING = _EQUAL | _ORDER
_LOOKING_UP = frozenset({"index", "count", "remove"})
_SORTING = frozenset({"sort", "sorted", "min", "max"})
_WRITES = {"STORE_GLOBAL": "global", "DELETE_GLOBAL": "global", "STORE_DEREF": "free", "DELETE_DEREF": "free"}


class Read(NamedTuple):
    """A name that is read, with the attributes that are taken from it on the spot: `np.random.rand` at a line."""

    where: str  # "global", "free", or "imported" for a module that the code itself imports
    name: str
    chain: tuple[str, ...]
    line: int


class Write(NamedTuple):
    """A global or free variable that is assigned."""

    where: str
    name: str
    line: int


class Import(NamedTuple):
    """A module that is imported by the code, and which of its names."""

    module: str
    level: int
    names: tuple[str, ...]
    line: int


class Facts(NamedTuple):
    """What is to be known of one code object; the code inside it has its own."""

    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    imports: tuple[Import, ...]
    attributes: frozenset[str]  # of anything but what `reads` begin with
    any_attribute: bool  # are attributes reached by names that are computed?
    inside: tuple[CodeType, ...]


@lru_cache(4096)
def facts(code: CodeType) -> Facts:
    """Read the instructions of a code object."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    reads: list[Read] = []
    writes: list[Write] = []
    attributes: set[str] = set()
    imports, local = _imports(steps)
    chained: set[int] = set()
    any_attribute = False
    for place, step in enumerate(steps):
        # Newer Pythons load two variables in one instruction.
        name: Any = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
        line = (step.positions.lineno if step.positions else None) or code.co_firstlineno
        if step.opname in _ATTRIBUTES:
            if place not in chained:
                attributes.add(name)
            attributes |= _EQUAL if name in _LOOKING_UP else _ORDER if name in _SORTING else frozenset()
        elif step.opname in ("COMPARE_OP", "CONTAINS_OP"):
            equal = step.opname == "CONTAINS_OP" or any(sign in str(step.argval) for sign in ("==", "!="))
            attributes |= _EQUAL if equal else _ORDER
        elif step.opname in _WRITES:
            writes.append(Write(_WRITES[step.opname], name, line))
        elif step.opname in _GLOBAL or step.opname in _FREE or (_is_local(step) and name in local):
            chain = []
            end = place + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTE:
                chain.append(steps[end].argval)
                chained.add(end)
                end += 1
            where = "global" if step.opname in _GLOBAL else "free" if step.opname in _FREE else "imported"
            reads.append(Read(where, local[name] if where == "imported" else name, tuple(chain), line))
            attributes |= _ORDER if name in _SORTING else frozenset()
            if name in BY_NAME and where == "global":
                constant = _constant_name(steps, end)
                any_attribute |= constant is None
                attributes.update((constant,) if constant else ())
    inside = tuple(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return Facts(tuple(reads), tuple(writes), imports, frozenset(attributes), any_attribute, inside)


def _is_local(step: dis.Instruction) -> bool:
    return step.opname.endswith(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))


def _imports(steps: list[dis.Instruction]) -> tuple[tuple[Import, ...], dict[str, str]]:
    """What the code imports, and which of its local variables are modules."""
    found: list[Import] = []
    local: dict[str, str] = {}
    for place, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, taken = steps[place - 2].argval, steps[place - 1].argval
        level = level if isinstance(level, int) else 0
        names = taken if isinstance(taken, tuple) else ()
        found.append(Import(step.argval, level, names, (step.positions.lineno if step.positions else None) or 0))
        after = steps[place + 1] if place + 1 < len(steps) else None
        if not names and not level and after is not None and after.opname.startswith("STORE_FAST"):
            target = after.argval[0] if isinstance(after.argval, tuple) else after.argval
            # `import a.b` binds a; `import a.b as c` goes on with IMPORT_FROM and is met as an import of a.b.
            local[target] = step.argval.partition(".")[0]
    return tuple(found), local


def _constant_name(steps: list[dis.Instruction], start: int) -> str | None:
    """The name in `getattr(something, "name")` where it is written out."""
    for step in steps[start : start + 8]:
        if step.opname == "LOAD_CONST":
            return step.argval if isinstance(step.argval, str) else None
        if not step.opname.startswith(("LOAD_", "PUSH_NULL")):
            return None
    return None


def is_returned(frame: FrameType | None, code: CodeType | None) -> bool:
    """Is a function in the middle of `return ….item()`, and is it that function itself, no inner call of it?

    Then the number goes out as it is, and can make no difference to anything the function does.
    """
    if frame is None or frame.f_code is not code or frame.f_lasti not in _last_items(frame.f_code):
        return False
    outer = frame.f_back
    while outer is not None and outer.f_code is not code:
        outer = outer.f_back
    return outer is None


@lru_cache(1024)
def _last_items(code: CodeType) -> frozenset[int]:
    passed = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL")
    steps = [step for step in dis.get_instructions(code) if step.opname not in passed]
    # While a call goes on its frame is at the instruction, or at one of the places for notes that follow it.
    return frozenset(place for name, call, then in zip(steps, steps[1:], steps[2:], strict=False)
                     if name.opname in ("LOAD_METHOD", "LOAD_ATTR") and name.argval == "item"
                     and call.opname == "CALL" and call.arg == 0 and then.opname == "RETURN_VALUE"
                     for place in range(call.offset, then.offset))  # fmt: skip
