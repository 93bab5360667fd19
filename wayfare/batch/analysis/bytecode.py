"""The abstract interpreter: executes bytecode on a stack of abstract values.

Both branches of a jump are followed; where two paths meet, their stacks are joined. The analysis decides
what a call, an attribute or an item means. An unknown instruction ends the analysis with SideEffect: nothing is known.
"""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

from wayfare.batch.analysis.abstract_values import NULL, PLAIN, AbstractValue, SideEffect

_PY312 = sys.version_info >= (3, 12)

_NO_EFFECT = frozenset({
    "NOP", "RESUME", "CACHE", "EXTENDED_ARG", "PRECALL", "MAKE_CELL", "COPY_FREE_VARS", "SETUP_ANNOTATIONS",
    "DELETE_FAST", "DELETE_DEREF", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP", "NOT_TAKEN",
})  # fmt: skip
# (values popped, plain values pushed)
_FIXED_EFFECT = {
    "POP_TOP": (1, 0), "POP_EXCEPT": (1, 0), "POP_ITER": (1, 0), "PUSH_EXC_INFO": (1, 2), "CHECK_EXC_MATCH": (1, 1),
    "CHECK_EG_MATCH": (2, 2), "PREP_RERAISE_STAR": (2, 1), "WITH_EXCEPT_START": (0, 1), "LOAD_ASSERTION_ERROR": (0, 1),
    "IS_OP": (2, 1), "UNARY_NOT": (1, 1), "FORMAT_SIMPLE": (1, 1), "CONVERT_VALUE": (1, 1), "FORMAT_WITH_SPEC": (2, 1),
    "MATCH_MAPPING": (0, 1), "MATCH_SEQUENCE": (0, 1), "GET_LEN": (0, 1), "RETURN_GENERATOR": (0, 1),
    "CLEANUP_THROW": (3, 2), "RAISE_VARARGS": (0, 0), "RERAISE": (0, 0), "RETURN_CONST": (0, 0), "TO_BOOL": (1, 1),
    "LOAD_CLOSURE": (0, 1),
}  # fmt: skip
_LAST = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP"})
_INTO = frozenset({"LIST_APPEND", "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"})
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)

Stack = tuple[AbstractValue, ...]


class BytecodeWalk:
    """One walk through the code of a frame; `analysis` is the EffectAnalysis."""

    def __init__(self, analysis: Any, frame: Any) -> None:
        self._analysis = analysis
        self._frame = frame
        self._stack: list[AbstractValue] = []
        self._keywords: tuple[str, ...] = ()

    def run(self) -> None:
        """Follow all paths, until no stack changes any more."""
        code: types.CodeType = self._frame.code
        steps = list(dis.get_instructions(code))
        at = {step.offset: number for number, step in enumerate(steps)}
        guarded = self._handlers(code, at)
        entered: dict[int, Stack] = {}
        waiting: list[int] = []

        def arrive(number: int, stack: Stack) -> None:
            before = entered.get(number)
            if before is None:
                entered[number] = stack
                waiting.append(number)
                return
            if len(before) != len(stack):
                raise SideEffect(f"code that cannot be read: {code.co_qualname}")
            after = tuple(a if a is b or a is NULL else a | b for a, b in zip(before, stack, strict=True))
            if any([not a.covers(b) for a, b in zip(before, after, strict=True)]):
                entered[number] = after
                waiting.append(number)

        arrive(0, ())
        while waiting:
            number = waiting.pop()
            step = steps[number]
            self._stack = list(entered[number])
            for handler, depth in guarded.get(number, ()):
                arrive(handler, (*self._stack[: depth[0]], *[PLAIN] * depth[1]))
            self._analysis.site = id(self._frame), step.offset
            jumped = self._step(step)
            if step.opcode in _JUMPS:
                arrive(at[step.argval], tuple(jumped))
            if step.opname not in _LAST and step.opname not in _ALWAYS:
                arrive(number + 1, tuple(self._stack))

    def _handlers(self, code: types.CodeType, at: dict[int, int]) -> dict[int, list[tuple[int, tuple[int, int]]]]:
        """For each instruction its exception handlers: (target, (stack depth that is kept, values that are pushed))."""
        found: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        if code.co_exceptiontable:
            entries: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]
            for entry in entries:
                for offset, number in at.items():
                    if entry.start <= offset < entry.end:
                        found.setdefault(number, []).append((at[entry.target], (entry.depth, 1 + entry.lasti)))
        return found

    def _pop(self, count: int = 1) -> list[AbstractValue]:
        if count == 0:
            return []
        taken = self._stack[-count:]
        if len(taken) != count:
            raise SideEffect("code that cannot be read")
        del self._stack[-count:]
        return taken

    def _step(self, step: dis.Instruction) -> list[AbstractValue]:
        """Execute one instruction; returns the stack at the jump target."""
        name, stack, analysis = step.opname, self._stack, self._analysis
        if name in _NO_EFFECT:
            return stack
        if name in _FIXED_EFFECT:
            taken, put = _FIXED_EFFECT[name]
            self._pop(taken)
            stack += [PLAIN] * put
            return stack
        if name.startswith("POP_JUMP"):
            analysis.read_value(self._pop()[0])
            return stack
        if name.startswith("JUMP_IF_"):
            jumped = list(stack)
            self._pop()
            return jumped
        if name == "FOR_ITER":
            jumped = [*stack, PLAIN] if _PY312 else stack[:-1]
            stack.append(analysis.item(stack[-1]))
            return jumped
        if name == "SEND":
            jumped = list(stack) if _PY312 else [*stack[:-2], stack[-1]]
            return jumped
        method = getattr(self, "_" + name.lower(), None)
        if method is not None:
            method(step)
        elif name.startswith(("LOAD_FAST", "STORE_FAST")):
            self._fast(step)
        elif name.startswith(("UNARY_", "GET_YIELD_FROM_ITER")):
            analysis.read_value(stack[-1])
        elif name.startswith("CALL_INTRINSIC_"):
            taken_values = self._pop(int(name[-1]))
            stack.append(taken_values[-1] if name[-1] == "1" else PLAIN)
        elif name in _INTO:
            analysis.store_item(stack[-1 - step.arg], self._pop()[0], name not in ("LIST_APPEND", "SET_ADD"))  # type: ignore[operator]
        else:
            raise SideEffect(f"code that cannot be read: {name}")
        return stack

    # -- names

    def _fast(self, step: dis.Instruction) -> None:
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if step.opname == "STORE_FAST_LOAD_FAST":
            self._frame.store(names[0], self._pop()[0])
            self._stack.append(self._frame.load(names[1]))
            return
        for name in names:
            if step.opname.startswith("STORE"):
                self._frame.store(name, self._pop()[0])
            else:
                self._stack.append(self._frame.load(name))

    def _load_const(self, step: dis.Instruction) -> None:
        value = step.argval
        is_name = isinstance(value, (str, types.CodeType)) or (
            isinstance(value, tuple) and bool(value) and all(isinstance(v, str) for v in value)
        )
        self._stack.append(AbstractValue(True, constant=value) if is_name else PLAIN)

    def _load_global(self, step: dis.Instruction) -> None:
        if step.arg & 1:  # type: ignore[operator]
            self._stack.append(NULL)
        self._stack.append(self._frame.load_global(step.argval))

    def _load_name(self, step: dis.Instruction) -> None:
        self._stack.append(self._frame.load_global(step.argval))

    def _load_deref(self, step: dis.Instruction) -> None:
        self._stack.append(self._frame.load_deref(step.argval))

    _load_classderef = _load_deref

    def _store_deref(self, step: dis.Instruction) -> None:
        self._frame.store_deref(step.argval, self._pop()[0])

    def _store_global(self, step: dis.Instruction) -> None:
        raise SideEffect(f"the global name {step.argval}")

    _store_name = _delete_global = _delete_name = _store_global

    def _push_null(self, step: dis.Instruction) -> None:
        self._stack.append(NULL)

    def _copy(self, step: dis.Instruction) -> None:
        self._stack.append(self._stack[-step.arg])  # type: ignore[operator]

    def _swap(self, step: dis.Instruction) -> None:
        stack, place = self._stack, step.arg
        stack[-1], stack[-place] = stack[-place], stack[-1]  # type: ignore[operator]

    def _import_name(self, step: dis.Instruction) -> None:
        names = self._pop(2)[1].constant
        self._stack.append(self._analysis.imported(step.argval, bool(names)))

    def _import_from(self, step: dis.Instruction) -> None:
        self._stack.append(self._analysis.attribute(self._stack[-1], step.argval))

    # -- attributes and items

    def _load_attr(self, step: dis.Instruction) -> None:
        owner = self._pop()[0]
        if _PY312 and step.arg & 1:  # type: ignore[operator]
            self._stack.append(NULL)
        self._stack.append(self._analysis.attribute(owner, step.argval))

    def _load_method(self, step: dis.Instruction) -> None:
        owner = self._pop()[0]
        self._stack += [NULL, self._analysis.attribute(owner, step.argval)]

    def _load_super_attr(self, step: dis.Instruction) -> None:
        _, type_, owner = self._pop(3)
        if step.arg & 1:  # type: ignore[operator]
            self._stack.append(NULL)
        self._stack.append(self._analysis.attribute(self._analysis.super_of(type_, owner), step.argval))

    def _store_attr(self, step: dis.Instruction) -> None:
        value, owner = self._pop(2)
        self._analysis.store_attribute(owner, step.argval, value)

    def _delete_attr(self, step: dis.Instruction) -> None:
        self._analysis.store_attribute(self._pop()[0], step.argval, PLAIN)

    def _binary_subscr(self, step: dis.Instruction) -> None:
        owner, key = self._pop(2)
        self._stack.append(self._analysis.subscript(owner, key))

    def _binary_slice(self, step: dis.Instruction) -> None:
        owner = self._pop(3)[0]
        self._stack.append(self._analysis.subscript(owner, PLAIN) | PLAIN)

    def _store_subscr(self, step: dis.Instruction) -> None:
        value, owner, _ = self._pop(3)
        self._analysis.store_item(owner, value)

    def _store_slice(self, step: dis.Instruction) -> None:
        value, owner = self._pop(4)[:2]
        self._analysis.store_item(owner, value, True)

    def _delete_subscr(self, step: dis.Instruction) -> None:
        self._analysis.store_item(self._pop(2)[0], PLAIN)

    def _map_add(self, step: dis.Instruction) -> None:
        key, value = self._pop(2)
        self._analysis.store_item(self._stack[-step.arg], key | value)  # type: ignore[operator]

    def _build_tuple(self, step: dis.Instruction) -> None:
        self._container(step, self._pop(step.arg or 0))

    _build_list = _build_set = _build_tuple

    def _container(self, step: dis.Instruction, values: list[AbstractValue]) -> None:
        held = PLAIN
        for value in values:
            held = held | value
        self._stack.append(self._analysis.container(self._analysis.site, held))

    def _build_string(self, step: dis.Instruction) -> None:
        self._pop(step.arg or 0)
        self._stack.append(PLAIN)

    _build_slice = _build_string

    def _build_map(self, step: dis.Instruction) -> None:
        self._container(step, self._pop(2 * (step.arg or 0)))

    def _build_const_key_map(self, step: dis.Instruction) -> None:
        self._container(step, self._pop(1 + (step.arg or 0)))

    def _list_to_tuple(self, step: dis.Instruction) -> None:
        pass

    def _format_value(self, step: dis.Instruction) -> None:
        self._analysis.read_value(self._pop(2 if (step.arg or 0) & 4 else 1)[0])
        self._stack.append(PLAIN)

    def _get_iter(self, step: dis.Instruction) -> None:
        self._stack.append(self._analysis.iterator(self._pop()[0]))

    def _end_for(self, step: dis.Instruction) -> None:
        self._pop(1 if sys.version_info >= (3, 13) else 2)

    def _end_send(self, step: dis.Instruction) -> None:
        del self._stack[-2]

    def _unpack_sequence(self, step: dis.Instruction) -> None:
        iterator = self._analysis.iterator(self._pop()[0])
        self._stack += [self._analysis.item(iterator)] * (step.arg or 0)

    def _unpack_ex(self, step: dis.Instruction) -> None:
        count = ((step.arg or 0) & 0xFF) + 1 + ((step.arg or 0) >> 8)
        iterator = self._analysis.iterator(self._pop()[0])
        self._stack += [self._analysis.item(iterator) | PLAIN] * count

    def _match_class(self, step: dis.Instruction) -> None:
        subject, _, names = self._pop(3)
        held = [self._analysis.attribute(subject, name) for name in names.constant or ()]
        self._container(step, [*held, self._analysis.item(subject)])

    def _match_keys(self, step: dis.Instruction) -> None:
        self._container(step, [self._analysis.item(self._stack[-2])])

    # -- operators, calls

    def _binary_op(self, step: dis.Instruction) -> None:
        left, right = self._pop(2)
        self._stack.append(self._analysis.operator(left, right, step.argrepr))

    def _compare_op(self, step: dis.Instruction) -> None:
        left, right = self._pop(2)
        self._analysis.operator(left, right, "==")
        self._stack.append(PLAIN)

    def _contains_op(self, step: dis.Instruction) -> None:
        _, owner = self._pop(2)
        self._analysis.subscript(owner, PLAIN, "in")
        self._stack.append(PLAIN)

    def _kw_names(self, step: dis.Instruction) -> None:
        self._keywords = self._frame.code.co_consts[step.arg]

    def _call(self, step: dis.Instruction) -> None:
        keywords, self._keywords = self._keywords, ()
        args = self._pop(step.arg or 0)
        first, second = self._pop(2)
        called = first
        if first is NULL:
            called = second
        elif second is not NULL:
            args.insert(0, second)
        count = len(args) - len(keywords)
        named = dict(zip(keywords, args[count:], strict=True))
        self._stack.append(self._analysis.call(called, args[:count], named, frame=self._frame))

    def _call_kw(self, step: dis.Instruction) -> None:
        self._keywords = self._pop()[0].constant
        self._call(step)

    def _call_function_ex(self, step: dis.Instruction) -> None:
        more = self._pop()[0] if (step.arg or 0) & 1 else PLAIN
        args = self._pop()[0]
        first, second = self._pop(2)
        star = self._analysis.item(self._analysis.iterator(args)) | self._analysis.item(more)
        called = second if first is NULL else first
        self._stack.append(self._analysis.call(called, [], {}, star=star | PLAIN))

    def _make_function(self, step: dis.Instruction) -> None:
        flags = 0 if sys.version_info >= (3, 13) else step.arg or 0
        code = self._pop()[0].constant
        extras = self._pop(sum([bool(flags & bit) for bit in (1, 2, 4, 8)]))
        made, inner = self._analysis.inner(code, self._frame)
        if flags & 3:
            inner.defaults = inner.defaults | self._analysis.item(extras[0])
            inner.defaults = inner.defaults | self._analysis.item(extras[1]) if flags & 3 == 3 else inner.defaults
        self._stack.append(made)

    def _set_function_attribute(self, step: dis.Instruction) -> None:
        value, made = self._pop(2)
        for inner in made.refs:
            inner.defaults = inner.defaults | self._analysis.item(value)
        self._stack.append(made)

    def _return_value(self, step: dis.Instruction) -> None:
        self._frame.returns(self._pop()[0])

    def _yield_value(self, step: dis.Instruction) -> None:
        self._frame.yields(self._pop()[0])
        self._stack.append(PLAIN)

    def _before_with(self, step: dis.Instruction) -> None:
        entered = self._analysis.entered(self._pop()[0])
        self._stack += [PLAIN, entered]
