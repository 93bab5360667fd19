"""What a code object reads and writes by name, taken from its instructions: globals, free variables, attributes."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from wayfare.compiler.captures.dynamic_names import ALL, BY_NAME, FORMATTING, PAST, arguments, fields, written_out

_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_ATTRIBUTES = _ATTRIBUTE | {"DELETE_ATTR", "LOAD_SUPER_ATTR"}
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
# Special methods that comparisons run; others are taken to run wherever there is an object that has them.
_EQUAL = frozenset({"__eq__", "__ne__", "__hash__"})
_ORDER = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
COMPARING = _EQUAL | _ORDER
_OPERATORS = {
    sign: frozenset({f"__{name}__", f"__r{name}__"}) for sign, name in (
        ("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "truediv"), ("@", "matmul"), ("**", "pow"), ("%", "mod"),
        ("//", "floordiv"),
    )
}  # fmt: skip
_LOOKING_UP = frozenset({"index", "count", "remove"})
_SORTING = frozenset({"sort", "sorted", "min", "max"})
_WRITES = {"STORE_GLOBAL": "global", "DELETE_GLOBAL": "global", "STORE_DEREF": "free", "DELETE_DEREF": "free"}


class Read(NamedTuple):
    """A name that is read, with the attributes that are taken from it on the spot: `np.random.rand` at a line."""

    where: str  # "global", "free", or "imported" for a module that the code itself imports
    name: str
    chain: tuple[str, ...]
    line: int
    by_name: bool = False  # is an attribute of it taken by a name that is computed: `getattr(np, name)`?


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
    attributes: frozenset[str]  # that are read of anything but what `reads` begin with
    stores: frozenset[str]  # attributes that are assigned
    counters: frozenset[str]  # names and attributes that are counted up: `self.calls += 1`
    asked: frozenset[str]  # of those attributes, the ones that something is asked for: `hasattr(o, "k")`
    any_attribute: bool  # are attributes reached by names that are computed?
    past: bool  # even past what objects do when they are asked for an attribute: `o.__dict__`?
    formats: bool  # is text made of values?
    inside: tuple[CodeType, ...]


@lru_cache(4096)
def facts(code: CodeType) -> Facts:
    """Read the instructions of a code object."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    reads: list[Read] = []
    writes: list[Write] = []
    attributes: set[str] = set()
    stores: set[str] = set()
    imports, local = _imports(steps)
    counted = _counted(steps)
    asked: set[str] = set()
    rooted: set[int] = set()
    chained: set[int] = set()
    any_attribute = formats = past = False
    for place, step in enumerate(steps):
        # Newer Pythons load two variables in one instruction.
        name: Any = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
        line = (step.positions.lineno if step.positions else None) or code.co_firstlineno
        if step.opname == "STORE_ATTR":
            stores.add(name)
        elif step.opname.startswith(("FORMAT_", "CONVERT_VALUE")):
            formats = True
        elif step.opname.startswith("MATCH_CLASS"):
            any_attribute = True  # positional patterns read what the class lists
        elif step.opname in _ATTRIBUTES:
            if place not in chained and place not in counted:
                attributes.add(name)
            past |= name in PAST
            any_attribute |= name in ALL
            if name in FORMATTING:
                before = steps[place - 1]
                text = before.argval if before.opname == "LOAD_CONST" and not step.is_jump_target else None
                found = fields(text) if isinstance(text, str) else None
                attributes |= found or set()
                any_attribute |= found is None
                formats = True
            attributes |= _EQUAL if name in _LOOKING_UP else _ORDER if name in _SORTING else frozenset()
        elif step.opname == "BINARY_OP":
            attributes |= _OPERATORS.get(step.argrepr.rstrip("="), frozenset())
        elif step.opname in ("COMPARE_OP", "CONTAINS_OP"):
            equal = step.opname == "CONTAINS_OP" or any(sign in str(step.argval) for sign in ("==", "!="))
            attributes |= _EQUAL if equal else _ORDER
        elif step.opname in _WRITES:
            writes.append(Write(_WRITES[step.opname], name, line))
        elif place in counted:
            pass  # read to be counted up, and for nothing else
        elif step.opname in _GLOBAL or step.opname in _FREE or (_is_local(step) and name in local):
            chain = []
            end = place + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTE and end not in counted:
                chain.append(steps[end].argval)
                chained.add(end)
                end += 1
            where = "global" if step.opname in _GLOBAL else "free" if step.opname in _FREE else "imported"
            called = local[name] if where == "imported" else name
            reads.append(Read(where, called, tuple(chain), line, place in rooted))
            attributes |= _ORDER if name in _SORTING else frozenset()
            if name in BY_NAME and where == "global":
                text, root = _reached(steps, end, local)
                if text:
                    attributes.add(text)
                    asked.add(text)
                    past |= text in PAST
                    any_attribute |= text in ALL
                elif root is not None and name in ("getattr", "hasattr"):
                    rooted.add(root)
                else:
                    any_attribute = True
    inside = tuple(constant for constant in code.co_consts if isinstance(constant, CodeType))
    counters = frozenset(steps[place].argval for place in counted)
    return Facts(tuple(reads), tuple(writes), imports, frozenset(attributes), frozenset(stores), counters,
                 frozenset(asked), any_attribute or past, past, formats, inside)  # fmt: skip


def _counted(steps: list[dis.Instruction]) -> frozenset[int]:
    """The places where a name or attribute is read only to be counted up: `self.calls += 1`."""
    found = []
    for place, step in enumerate(steps[:-3]):
        if step.opname not in _ATTRIBUTE and step.opname not in _GLOBAL and step.opname not in _FREE:
            continue
        by, how, *then = steps[place + 1 : place + 5]
        target = next((s for s in then if s.opname != "SWAP"), None)
        store = {"A": "STORE_ATTR", "G": "STORE_GLOBAL"}.get(step.opname.partition("_")[2][:1], "STORE_DEREF")
        if (
            by.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and type(by.argval) is int and how.argrepr == "+="
            and target is not None and target.opname == store and target.argval == step.argval
        ):  # fmt: skip
            found.append(place)
    return frozenset(found)


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


def _reached(steps: list[dis.Instruction], start: int, local: dict[str, str]) -> tuple[str | None, int | None]:
    """The name in `getattr(something, "name")` where it is written out; else where that something is loaded, if it is a
    variable from outside, or an attribute of one."""
    found = arguments(steps, start)
    if found is None or len(found) < 2:
        return None, None
    begin, end = found[0]
    text, root = written_out(steps, found[1]), steps[begin]
    outside = root.opname in _GLOBAL or root.opname in _FREE or (_is_local(root) and root.argval in local)
    return text, begin if outside and all(s.opname in _ATTRIBUTE for s in steps[begin + 1 : end]) else None


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
