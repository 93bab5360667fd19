"""The names that a code object reads and writes (globals, free variables, attributes), found in its bytecode."""

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
# Special methods that comparisons call. All other special methods count as called if an object has them.
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
    """A name that is read, with the chain of attributes taken from it: `np.random.rand`."""

    where: str  # "global", "free", or "imported" for a module that the code itself imports
    name: str
    chain: tuple[str, ...]
    line: int
    by_name: bool = False  # is an attribute of it read by a computed name: `getattr(np, name)`?


class Write(NamedTuple):
    """A global or free variable that is assigned."""

    where: str
    name: str
    line: int


class Import(NamedTuple):
    """A module that the code imports, and the names it takes from it."""

    module: str
    level: int
    names: tuple[str, ...]
    line: int


class Facts(NamedTuple):
    """What was found in one code object; nested code objects have their own `Facts`."""

    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    imports: tuple[Import, ...]
    attributes: frozenset[str]  # attributes that are read, except those in the chains of `reads`
    stores: frozenset[str]  # attributes that are assigned
    counters: frozenset[str]  # names and attributes that are counted up: `self.calls += 1`
    asked: frozenset[str]  # attributes that are named in a string: `hasattr(o, "k")`
    any_attribute: bool  # are attributes read by computed names?
    past: bool  # even without `__getattribute__`: through `o.__dict__`?
    formats: bool  # are values converted to text?
    identity: bool  # is it asked which object a value is (`a is b`; not `a is None`)?
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
    any_attribute = formats = past = identity = False
    for position, step in enumerate(steps):
        # Newer versions of Python load two variables in one instruction.
        name: Any = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
        line = (step.positions.lineno if step.positions else None) or code.co_firstlineno
        if step.opname == "STORE_ATTR":
            stores.add(name)
        elif step.opname.startswith(("FORMAT_", "CONVERT_VALUE")):
            formats = True
        elif step.opname.startswith("MATCH_CLASS"):
            any_attribute = True  # positional patterns read the attributes in `__match_args__`
        elif step.opname in _ATTRIBUTES:
            if position not in chained and position not in counted:
                attributes.add(name)
            past |= name in PAST
            any_attribute |= name in ALL
            if name in FORMATTING:
                before = steps[position - 1]
                text = before.argval if before.opname == "LOAD_CONST" and not step.is_jump_target else None
                found = fields(text) if isinstance(text, str) else None
                attributes |= found or set()
                any_attribute |= found is None
                formats = True
            attributes |= _EQUAL if name in _LOOKING_UP else _ORDER if name in _SORTING else frozenset()
        elif step.opname == "BINARY_OP":
            attributes |= _OPERATORS.get(step.argrepr.rstrip("="), frozenset())
        elif step.opname == "IS_OP":
            identity |= steps[position - 1].opname != "LOAD_CONST"
        elif step.opname in ("COMPARE_OP", "CONTAINS_OP"):
            equal = step.opname == "CONTAINS_OP" or any(sign in str(step.argval) for sign in ("==", "!="))
            attributes |= _EQUAL if equal else _ORDER
        elif step.opname in _WRITES:
            writes.append(Write(_WRITES[step.opname], name, line))
        elif position in counted:
            pass  # only read to be counted up
        elif step.opname in _GLOBAL or step.opname in _FREE or (_is_local(step) and name in local):
            chain = []
            end = position + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTE and end not in counted:
                chain.append(steps[end].argval)
                chained.add(end)
                end += 1
            where = "global" if step.opname in _GLOBAL else "free" if step.opname in _FREE else "imported"
            called = local[name] if where == "imported" else name
            reads.append(Read(where, called, tuple(chain), line, position in rooted))
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
    counters = frozenset(steps[position].argval for position in counted)
    return Facts(tuple(reads), tuple(writes), imports, frozenset(attributes), frozenset(stores), counters,
                 frozenset(asked), any_attribute or past, past, formats, identity, inside)  # fmt: skip


def _counted(steps: list[dis.Instruction]) -> frozenset[int]:
    """The positions of instructions that read a name or attribute only to count it up: `self.calls += 1`."""
    found = []
    for position, step in enumerate(steps[:-3]):
        if step.opname not in _ATTRIBUTE and step.opname not in _GLOBAL and step.opname not in _FREE:
            continue
        by, how, *then = steps[position + 1 : position + 5]
        target = next((s for s in then if s.opname != "SWAP"), None)
        store = {"A": "STORE_ATTR", "G": "STORE_GLOBAL"}.get(step.opname.partition("_")[2][:1], "STORE_DEREF")
        if (
            by.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and type(by.argval) is int and how.argrepr == "+="
            and target is not None and target.opname == store and target.argval == step.argval
        ):  # fmt: skip
            found.append(position)
    return frozenset(found)


def _is_local(step: dis.Instruction) -> bool:
    return step.opname.endswith(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))


def _imports(steps: list[dis.Instruction]) -> tuple[tuple[Import, ...], dict[str, str]]:
    """What the code imports, and which of its local variables are modules."""
    found: list[Import] = []
    local: dict[str, str] = {}
    for position, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, taken = steps[position - 2].argval, steps[position - 1].argval
        level = level if isinstance(level, int) else 0
        names = taken if isinstance(taken, tuple) else ()
        found.append(Import(step.argval, level, names, (step.positions.lineno if step.positions else None) or 0))
        after = steps[position + 1] if position + 1 < len(steps) else None
        if not names and not level and after is not None and after.opname.startswith("STORE_FAST"):
            target = after.argval[0] if isinstance(after.argval, tuple) else after.argval
            # `import a.b` binds a; `import a.b as c` is followed by IMPORT_FROM and is found as an import of a.b.
            local[target] = step.argval.partition(".")[0]
    return tuple(found), local


def _reached(steps: list[dis.Instruction], start: int, local: dict[str, str]) -> tuple[str | None, int | None]:
    """The name in `getattr(x, "name")` if it is a constant, and the position where `x` is loaded, if it is a global or
    free variable or an attribute of one."""
    found = arguments(steps, start)
    if found is None or len(found) < 2:
        return None, None
    begin, end = found[0]
    text, root = written_out(steps, found[1]), steps[begin]
    outside = root.opname in _GLOBAL or root.opname in _FREE or (_is_local(root) and root.argval in local)
    return text, begin if outside and all(s.opname in _ATTRIBUTE for s in steps[begin + 1 : end]) else None


def is_returned(frame: FrameType | None, code: CodeType | None) -> bool:
    """Is the compiled function itself (not a nested call of it) executing `return ….item()`?

    Then the number is only returned, and nothing that the function does depends on it.
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
    # During a call `f_lasti` is the offset of the instruction, or of one of the cache entries that follow it.
    return frozenset(position for name, call, then in zip(steps, steps[1:], steps[2:], strict=False)
                     if name.opname in ("LOAD_METHOD", "LOAD_ATTR") and name.argval == "item"
                     and call.opname == "CALL" and call.arg == 0 and then.opname == "RETURN_VALUE"
                     for position in range(call.offset, then.offset))  # fmt: skip
