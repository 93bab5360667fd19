"""The builder that ONNX rules write with: nodes, constants and sizes.

A rule is `rule(b, *inputs, **attrs)`: the inputs are Values; sizes in the attributes may be `Dim`s, ints that carry
their formula of the model's input sizes. `b.node("Relu", x)` writes one ONNX node, `b.ops.sum(x, dim=(0,),
keepdim=True)` the nodes of the rule of that Wayfare op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import ExportError
from wayfare.core.op import REGISTRY, ByName, NotExportable, Op
from wayfare.core.spec import OF_NUMPY, DType, Spec, bool_, broadcast, float64, int32, int64
from wayfare.core.symbolic_sizes import Dim, Number, formula_of, plain, value_of
from wayfare.exporters.onnx.graph import OnnxGraph, OnnxNode, OnnxValue, number_of

# The oldest and the newest version of the operator set that the rules are written for.
OLDEST_OPSET, NEWEST_OPSET = 18, 23

_TRUTHS = frozenset({
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf",
})  # fmt: skip
_COUNTS = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero"})
# Operators that ONNX Runtime does not have for narrow integers and bool: they run in int32.
_WIDE = frozenset({
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal",
    "Neg", "Abs", "Sign", "Pow", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "Where", "CumSum", "ArgMax",
    "ArgMin", "Clip", "Relu", "TopK", "ScatterElements", "ScatterND", "MatMul", "Mod",
})  # fmt: skip
_NARROW = frozenset({"bool", "uint8", "int8", "int16"})
_TAKES_BOOL = frozenset({"Equal", "ScatterElements", "ScatterND"})


class _ValueOps(ByName):
    """Wayfare's ops by name, on values: `b.ops.softmax(x, dim=1)`."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def _bind(self, op: Op) -> Any:
        def call(*inputs: Any, **attrs: Any) -> Any:
            dtypes = [x.dtype for x in inputs if isinstance(x, OnnxValue)]
            dtype = next((d for d in dtypes if d is not bool_), dtypes[0])
            return self._builder.apply(op, [self._builder.operand(x, dtype) for x in inputs], attrs)

        return call


class Builder:
    """Writes a graph: one builder for the model; `body` makes those of the graphs inside If and Loop."""

    def __init__(
        self, opset: int = 21, symbols: Sequence[tuple[OnnxValue, int] | OnnxValue] = (), outer: Builder | None = None
    ) -> None:
        self.opset = opset
        # What each symbol of a formula is: an axis of a value, or a value of shape [1].
        self.symbols = list(symbols)
        # The symbols that belong to values inside a body.
        self.inner_symbols: set[int] = set()
        self.graph = OnnxGraph()
        self.root: Builder = outer.root if outer else self
        self.ops: Any = _ValueOps(self)
        # Where the nodes come from that are written now: the path of a module, a Wayfare op, the user's line.
        self.place: str = outer.place if outer else ""
        self.op: str = outer.op if outer else ""
        self.site: Any = outer.site if outer else None
        self._names: dict[str, int] = {} if outer is None else outer._names
        self._constants: dict[Any, OnnxValue] = {}
        self._sizes: dict[Any, OnnxValue] = {}

    def body(self, name: str) -> Builder:
        """A builder for a graph inside this one; it shares names, constants and sizes."""
        inner = Builder(self.opset, self.symbols, self)
        inner.graph.name = name
        return inner

    def own(self, value: OnnxValue) -> OnnxValue:
        """A value of an outer graph as one of this builder, so that arithmetic with it is written here."""
        return value if value.builder is self else OnnxValue(self, value.name, value.dtype, value.shape)

    # -- writing nodes

    def fresh_name(self, base: str) -> str:
        """A name not taken yet: `base`, or `base_2`, `base_3`, …"""
        count = self._names.get(base, 0) + 1
        self._names[base] = count
        if count == 1:
            return base
        return self.fresh_name(f"{base}_{count}")

    def reserve(self, names: Sequence[str]) -> None:
        """Reserve names that are given later: those of the model's outputs."""
        self._names.update(dict.fromkeys(names, 1))

    def input(self, name: str, dtype: DType, shape: tuple[int, ...] | None) -> OnnxValue:
        """An input of the graph."""
        value = OnnxValue(self, self.fresh_name(name), dtype, shape)
        self.graph.inputs.append(value)
        return value

    def output(self, name: str, value: OnnxValue, shape: tuple[int, ...] | None) -> OnnxValue:
        """Make a value an output of the graph, under a name of its own."""
        out = OnnxValue(self, self.fresh_name(name), value.dtype, shape)
        self.graph.nodes.append(OnnxNode("Identity", out.name, [value.name], [out.name], {}, self.op, self.site))
        self.graph.outputs.append(out)
        return out

    def node(self, kind: str, *inputs: Any, outputs: int = 1, dtype: Any = None, shape: Any = None, **attributes: Any
             ) -> Any:  # fmt: skip
        """Write one node. Inputs are values, NumPy arrays, ints or sequences of ints (sizes), or None to leave one out.

        `dtype` and `shape` are those of the result (a tuple of dtypes for several results); by default they are
        derived from the inputs where the operator allows it.
        """
        values = [self._given(x) for x in inputs]
        first = next((v for v in values if v is not None), None)
        if kind in _WIDE and any(self._too_narrow(kind, i, v) for i, v in enumerate(values)):
            return self._widened(kind, values, outputs, dtype, shape, attributes)
        if dtype is None:
            dtype = self._dtype_of(kind, values)
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * outputs
        base = f"{self.place}/{kind}" if self.place else kind
        name = self.fresh_name(base)
        names = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        self.graph.nodes.append(OnnxNode(kind, name, ["" if v is None else v.name for v in values], names, attributes,
                                     self.op, self.site))  # fmt: skip
        if shape is None and kind in _ELEMENTWISE and first is not None:
            shape = self._broadcast(values)
        made = tuple(OnnxValue(self, n, d, shape if outputs == 1 else None) for n, d in zip(names, dtypes, strict=True))
        return made[0] if outputs == 1 else made

    def _given(self, x: Any) -> OnnxValue | None:
        if x is None or isinstance(x, OnnxValue):
            return x
        if isinstance(x, np.ndarray):
            return self.constant(x)
        if isinstance(x, (list, tuple)):
            return self.sizes(x)
        return self.size(x)

    def _dtype_of(self, kind: str, values: Sequence[OnnxValue | None]) -> DType:
        if kind in _TRUTHS:
            return bool_
        if kind in _COUNTS:
            return int64
        decides = values[1] if kind == "Where" else values[0]
        assert decides is not None, f"{kind} needs its dtype said"
        return decides.dtype

    def _broadcast(self, values: Sequence[OnnxValue | None]) -> tuple[int, ...] | None:
        shapes = [v.shape for v in values if v is not None]
        return None if any(s is None for s in shapes) else broadcast("export", *shapes)

    def _too_narrow(self, kind: str, place: int, v: OnnxValue | None) -> bool:
        if v is None or v.dtype.name not in _NARROW or (kind == "Where" and place == 0):
            return False
        return v.dtype is not bool_ or kind not in _TAKES_BOOL

    def _widened(self, kind: str, values: Sequence[OnnxValue | None], outputs: int, dtype: Any, shape: Any,
                 attributes: dict[str, Any]) -> Any:  # fmt: skip
        """The node in int32, and its results brought back."""
        narrow = dtype or self._dtype_of(kind, values)
        wide = [self.cast(v, int32) if v is not None and self._too_narrow(kind, i, v) else v
                for i, v in enumerate(values)]  # fmt: skip
        made = self.node(kind, *wide, outputs=outputs, shape=shape, **attributes)
        if outputs == 1:
            return self.cast(made, narrow)
        narrows = narrow if isinstance(narrow, tuple) else (narrow,) * outputs
        return tuple(self.cast(m, d) for m, d in zip(made, narrows, strict=True))

    # -- Wayfare's ops

    def apply(
        self, op: Op, inputs: Sequence[OnnxValue], attrs: dict[str, Any], specs: Sequence[Spec] | None = None
    ) -> Any:
        """Write an op by its rule; returns a value or a tuple of values. `specs` are those of the results."""
        if specs is None:
            inferred = op.infer(*[v.spec for v in inputs], **attrs)
            specs = list(inferred) if isinstance(inferred, (tuple, list)) else [inferred]
        inputs = [self.own(v) for v in inputs]
        rule = rule_of(op)
        if isinstance(rule, NotExportable):
            raise ExportError(f"export: {op.name} has no meaning in ONNX: {rule.reason}")
        before, self.op = self.op, self.op or op.name
        try:
            made = self.node(rule, *inputs) if isinstance(rule, str) else rule(self, *inputs, **attrs)
        finally:
            self.op = before
        several = isinstance(made, (tuple, list))
        values = list(made) if several else [made]
        # A rule may give None for a result that only gradients use.
        wrong = [v for v, s in zip(values, specs, strict=False) if v is not None and v.dtype is not s.dtype]
        if len(values) != len(specs) or wrong:
            raise ExportError(f"export: the ONNX rule of {op.name} gives {values} where the op gives {list(specs)}")
        results = tuple(None if v is None else OnnxValue(self, v.name, v.dtype, s.shape)
                        for v, s in zip(values, specs, strict=True))  # fmt: skip
        for value in results:
            if value is not None:
                self.graph.values[value.name] = value
        return results if several else results[0]

    def refuse(self, reason: str) -> ExportError:
        """The error of a rule that does not cover these attributes: `raise b.refuse("…")`."""
        return ExportError(f"export: {self.op} cannot be written in ONNX here: {reason}")

    # -- constants

    def operand(self, x: Any, dtype: DType) -> OnnxValue:
        """A value unchanged; a number (in the given dtype) or an array as a constant."""
        if isinstance(x, OnnxValue):
            return x
        return self.constant(x) if isinstance(x, np.ndarray) else self.number(x, dtype)

    def constant(self, array: Any, dtype: DType | None = None, name: str = "constant") -> OnnxValue:
        """A constant of the model; equal small ones are stored once."""
        array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
        if array.dtype not in OF_NUMPY:
            raise ExportError(f"export: {array.dtype} is not a dtype of a tensor")
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 64 else None
        found = self.root._constants.get(key) if key else None
        if found is None:
            found = self.initializer(self.fresh_name(name), array)
            if key:
                self.root._constants[key] = found
        return self.own(found)

    def initializer(self, name: str, array: Any) -> OnnxValue:
        """A named array of the model: a parameter."""
        self._names.setdefault(name, 1)
        self.root.graph.initializers[name] = array
        return OnnxValue(self, name, OF_NUMPY[array.dtype], array.shape)

    def number(self, x: Any, dtype: DType) -> OnnxValue:
        """A scalar of shape [] in a dtype; a Dim or Number is computed by the model."""
        if not isinstance(x, (Dim, Number)):
            return self.constant(np.asarray(plain(x)), dtype)
        made = self._formula(formula_of(x), isinstance(x, Number))
        return self.cast(self.node("Squeeze", made, [0], shape=()), dtype)

    def full(self, shape: Sequence[int], number: Any, dtype: DType) -> OnnxValue:
        """A value of this shape filled with one number."""
        one = self.number(number, dtype)
        return self.node("Expand", one, self.sizes(shape), shape=tuple(shape)) if len(shape) else one

    def broadcast(self, *values: OnnxValue) -> tuple[int, ...]:
        """The common shape of some values."""
        return broadcast("export", *[v.shape for v in values])

    def cast(self, x: OnnxValue, dtype: DType) -> OnnxValue:
        """A value in another dtype."""
        if x.dtype is dtype:
            return x
        return self.node("Cast", x, dtype=dtype, shape=x.shape, to=number_of(dtype))  # type: ignore[no-any-return]

    # -- sizes

    def varies(self, n: Any) -> bool:
        """Is a number known only when the model runs?"""
        return isinstance(n, (Dim, Number))

    def same_sizes(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Are two shapes equal for all sizes? (Comparing formulas records no size query.)"""
        return len(a) == len(b) and all(formula_of(m) == formula_of(n) for m, n in zip(a, b, strict=True))

    def always(self, n: int) -> int | None:
        """The value of a number if it is the same for all sizes; None if it depends on them."""
        if not isinstance(n, Dim):
            return int(n)
        # Sizes far apart and without a common pattern: equal results for all of them are no accident.
        seen = {value_of(n.formula, [base + 7 * i for i in range(len(self.symbols))]) for base in _FAR_APART}
        return seen.pop() if len(seen) == 1 else None

    def apply_rule(self, rule: Callable[..., Any], *inputs: OnnxValue, like: str) -> OnnxValue:
        """Write a rule that belongs to no op; the result has the shape and dtype that the op `like` would give."""
        made = rule(self, *inputs)
        return OnnxValue(self, made.name, made.dtype, self.spec_of(like, *inputs).shape)

    def spec_of(self, name: str, *inputs: OnnxValue, **attrs: Any) -> Any:
        """Shape and dtype that an op gives."""
        return REGISTRY[name].infer(*[v.spec for v in inputs], **attrs)

    def counting(self, n: int) -> OnnxValue:
        """0, 1, 2, … as int64 of shape [n]."""
        if not isinstance(n, Dim):
            return self.constant(np.arange(n, dtype=np.int64))
        first, step = self.number(0, int64), self.number(1, int64)
        return self.node("Range", first, self.number(n, int64), step, shape=(n,))  # type: ignore[no-any-return]

    def size(self, n: int) -> OnnxValue:
        """A size as int64 of shape [1]."""
        return self._formula(n.formula, False) if isinstance(n, Dim) else self.constant(np.array([n], np.int64))

    def sizes(self, numbers: Sequence[int]) -> OnnxValue:
        """Several sizes (a shape, starts, …) as int64 of shape [n]."""
        if not any(isinstance(n, Dim) for n in numbers):
            return self.constant(np.array([int(n) for n in numbers], np.int64))
        parts: list[OnnxValue] = []
        run: list[int] = []
        for n in [*numbers, None]:
            if n is not None and not isinstance(n, Dim):
                run.append(n)
                continue
            if run:
                parts.append(self.constant(np.array(run, np.int64)))
                run = []
            if n is not None:
                parts.append(self.size(n))
        if len(parts) == 1:
            return parts[0]
        key = tuple(p.name for p in parts)
        writer = self.root if all(self._writer(formula_of(n)) is self.root for n in numbers) else self
        if key not in writer._sizes:
            writer._sizes[key] = writer.node("Concat", *parts, axis=0, shape=(len(numbers),))
        return self.own(writer._sizes[key])

    def _writer(self, formula: Any) -> Builder:
        """The builder that computes a formula: the outermost, unless a symbol is only known inside this graph."""
        if formula.__class__ is not tuple:
            return self.root
        if formula[0] == "symbol":
            return self if formula[1] in self.root.inner_symbols else self.root
        return next((self for part in formula[1:] if self._writer(part) is self), self.root)

    def _formula(self, formula: Any, as_float: bool) -> OnnxValue:
        """A formula of sizes computed by nodes (in the outermost graph if possible): int64 or float64 of shape [1]."""
        key = (formula, as_float)
        writer = self._writer(formula)
        if key not in writer._sizes:
            place, op, site = writer.place, writer.op, writer.site
            writer.place, writer.op, writer.site = "sizes", "", None
            try:
                writer._sizes[key] = writer._write_formula(formula, as_float)
            finally:
                writer.place, writer.op, writer.site = place, op, site
        return self.own(writer._sizes[key])

    def _write_formula(self, formula: Any, as_float: bool) -> OnnxValue:
        if formula.__class__ is not tuple:
            return self.constant(np.array([formula], np.float64 if as_float else np.int64))
        if formula[0] == "symbol":
            symbol = self.root.symbols[formula[1]]
            if isinstance(symbol, tuple):
                value, axis = symbol
                symbol = self.node("Shape", value, start=axis, end=axis + 1, shape=(1,))
            return self.cast(symbol, float64) if as_float else symbol
        name, *parts = formula
        if name == "trunc":
            return self.cast(self._formula(parts[0], True), int64)
        if name in ("floor", "ceil"):
            whole = self.node(name.capitalize(), self._formula(parts[0], True))
            return whole if as_float else self.cast(whole, int64)
        kind = _SIZE_OPERATORS.get(name)
        if kind is not None:
            return self.node(kind, *[self._formula(p, as_float) for p in parts], shape=(1,))  # type: ignore[no-any-return]
        if name == "/" and as_float:
            return self.node("Div", *[self._formula(p, True) for p in parts], shape=(1,))  # type: ignore[no-any-return]
        if name == "//" and not as_float:
            a, b = (self._formula(p, False) for p in parts)
            # ONNX rounds integer division towards zero; subtracting the remainder first makes it exact.
            return self.node("Div", self.node("Sub", a, self.node("Mod", a, b)), b, shape=(1,))  # type: ignore[no-any-return]
        raise ExportError(f"export: the size {formula} cannot be written as arithmetic of the model")


_FAR_APART = (11, 24, 37, 64, 101, 1013, 2050)
_SIZE_OPERATORS = {"+": "Add", "-": "Sub", "*": "Mul", "%": "Mod", "**": "Pow", "neg": "Neg", "abs": "Abs"}
_ELEMENTWISE = _TRUTHS | frozenset({
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "Where", "Neg", "Abs", "Sign", "Exp", "Log", "Sqrt", "Tanh",
    "Sigmoid", "Relu", "Erf", "Floor", "Atan", "Tan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Gelu",
    "Ceil", "Round", "Reciprocal", "Cast", "Clip", "Sin", "Cos", "Identity",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Softplus", "Elu", "Selu", "Celu", "LeakyRelu",
    "HardSigmoid", "HardSwish",
})  # fmt: skip


# -- rules ------------------------------------------------------------------------------------------------------------


def rule_of(op: Op) -> str | Callable[..., Any] | NotExportable:
    """The rule of a record: its own, or its formula written out op by op."""
    if op.onnx is not None:
        return op.onnx
    if op.formula is None:
        return NotExportable("it has no rule")
    return _from_formula(op.formula)


def _from_formula(formula: Callable[..., Any]) -> Callable[..., Any]:
    def rule(b: Builder, *inputs: OnnxValue, **attrs: Any) -> Any:
        return formula(b.ops, *inputs, **attrs)

    return rule
