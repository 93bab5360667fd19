"""The Op record: everything Wayfare knows about one op, in one place.

A record says how to compute (`forward`, on raw arrays), what comes out (`infer`, on Specs), how to differentiate
(`vjp`), how to run many at once (`batch`), and carries samples and a reference from which its tests are made.
Autograd, vmap, the graph listing and the tests all read the record; nobody keeps a second description.

**Gradient rules** are functions `rule(m, g, y, *inputs, **attrs)`, one for each input. `m` runs any op by name:
on raw arrays in an ordinary backward pass, on Tensors when a graph of the gradient is wanted. What a rule's
parameters are *called* decides what a node keeps alive until backward:

    x        the value is kept
    x_spec   only shape and dtype are kept
    _x       nothing is kept (the rule is given None)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.core.errors import OperationError
from wayfare.core.flops import FAMILIES, Work, unknown
from wayfare.core.signature import Signature
from wayfare.core.spec import BFLOAT16, DType, Spec, narrowed, spec_of, widened

Forward = Callable[..., Any]
Infer = Callable[..., Any]
Rule = Callable[..., Any]
# batch(m, size, inputs, batched, attrs): batched inputs have an extra axis 0; so have all outputs.
BatchRule = Callable[[Any, int, tuple[Any, ...], tuple[bool, ...], dict[str, Any]], Any]

DROP, SPEC, VALUE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an op for the tests: arrays (or nested tuples' worth of them) and attributes."""

    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    # A sample at a kink or over integers has no gradient to check.
    smooth: bool = True


@dataclass(frozen=True, slots=True)
class NotExportable:
    """Stands in place of an ONNX rule: why an op has no meaning in a model file."""

    reason: str


class joint:
    """A gradient rule for all inputs at once: `rule(m, needs, g, y, *inputs, **attrs)` gives one per input."""

    __slots__ = ("rule",)

    def __init__(self, rule: Rule) -> None:
        self.rule = rule


def checks_values(forward: Forward) -> Forward:
    """Mark a forward, or a formula, that looks at the numbers and refuses some: an index out of range, say."""
    forward.checks_values = True  # type: ignore[attr-defined]
    return forward


@dataclass(eq=False, slots=True)
class Op:
    """One op: what it does, and every fact about it that some part of the package needs.

    How it computes:

    - `name`: what it is called in the registry, in rules (`m.<name>`) and in error messages.
    - `family`: which ops it is like; elementwise, reduction, movement, contraction, …: see `ops/_define.py`.
    - `forward`: the result from raw arrays and attributes.
    - `formula`: the same over an `m`: elementary functions for an elementwise op, ops for any other one.
    - `infer`: the Spec of the result, or the error, from the Specs of the inputs.
    - `signature`: what it may be called with, for callers who are not trusted. Every op of the registry has one.
    - `outputs`: how many results; 1 is a bare array, more are a tuple, None depends on the attributes.
    - `promotion`: of an elementwise op: "common" (one dtype for all inputs), "float" (integers become floats first).
    - `kinds`: the NumPy kinds of dtype it takes: b bool, i and u integers, f floats.
    - `broadcasts`: the inputs are broadcast against each other, so gradients must be summed back.
    - `as_is`: `forward` takes bfloat16 as it is, because it moves elements or reads their bits. Others are given
      float32, and the result is rounded once (`compute`). The family "movement" need not say so.
    - `autocast`: what becomes of its floating inputs while autocast is on, on the CPU and on CUDA: "lower" (the narrow
      dtype of autocast), "float32", "widest" (the widest dtype among them), "" (nothing).
    - `random`: the result depends on more than inputs and attributes (the tests compare statistics).
    - `any_device`: its one input, and its result, may be on any device: it copies from one to another.

    How it is differentiated and batched:

    - `vjp`: a tuple with a rule (or None) for each input, or `joint(rule)`; None: not differentiable.
    - `differentiable_outputs`: the outputs that carry a gradient, if not all (indices of a sort do not).
    - `kept_outputs`: the outputs that the rules read, if not all; the rule is given None for the others.
    - `takes_none`: the rule takes None for an output without a gradient; else it is given zeros.
    - `sparse`: used in place of `forward` by a raw backward pass; it may return Rows.
    - `small_vjp`: the rules of `native/kernels.h` that do the same as `vjp` on small arrays; "" for none.
    - `grad_name`: what the gradient node is called, as in PyTorch: "MulBackward0".
    - `listed`: the inputs that a node lists in `next_functions`, in PyTorch's order; None: all with a rule.
    - `fusible_gradient`: its gradient is a few ops that fuse with others, so a plan takes it apart. (Elementwise ops,
      views and compositions need not say so.)
    - `batch`: how to run many at once.
    - `ragged`: the same for calls that differ in the length of their first dimension (`ops/_ragged.py`). None: they run
      apart, those of each length.

    What it does to memory:

    - `view`: the result shares memory with the first input whenever NumPy can do so.
    - `moves`: of an op that only moves elements: "reshape" (the same order, another shape), "permute" (axes in another
      order), "part" (a basic index), "strides" (any strides, also beyond the input), "copy" (as they are, in memory of
      their own), "identity" (as they are); "" for anything else.
    - `fresh`: the result is always new memory, which nothing else can see.
    - `workspace`: the memory it needs in addition to inputs and results: a multiple of their bytes, or `rule(specs,
      attrs)` that gives a number of elements. None: as its family.

    How it becomes native code, or a model file:

    - `loop_reduction`: the reduction of the loop language that it is: "sum", "prod", "max", "min", "any", "all",
      "argmax", "argmin"; "" for none.
    - `expression`: `rule(args, attrs, parameter)` that writes an elementwise op in the loop language, where neither its
      formula nor the function of its name is the way; of a check: which elements are wrong.
    - `gemm`: the product of matrices that it is for BLAS: "nn", or "nt" (the second one transposed); "" for none.
    - `onnx`: the name of an ONNX operator that takes the same inputs, or `rule(b, *inputs, **attrs)` that writes nodes
      with the builder `b`, or NotExportable. None: the formula, written out.
    - `work`: how much arithmetic a call is, where the rule of its family does not say it.

    How it is tested:

    - `samples`: calls to try, made with a random generator.
    - `reference`: an independent way to the same numbers.

    The fields after these are derived. They stand on the record because eager calls and the backward pass read them
    for every op that they run: a look-up anywhere else would cost more than the rest of the call.
    """

    name: str
    family: str
    forward: Forward
    infer: Infer
    vjp: tuple[Rule | None, ...] | joint | None
    batch: BatchRule
    samples: Callable[[Any], Iterable[Sample]]
    reference: Callable[..., Any]
    signature: Signature | None = field(default=None, repr=False)
    formula: Callable[..., Any] | None = None
    outputs: int | None = 1
    differentiable_outputs: tuple[int, ...] | None = None
    kept_outputs: tuple[int, ...] | None = None
    takes_none: bool = False
    ragged: Callable[..., Any] | None = field(default=None, repr=False)
    view: bool = False
    moves: str = ""
    fresh: bool = False
    workspace: int | Callable[[Sequence[Spec], dict[str, Any]], int] | None = None
    broadcasts: bool = False
    sparse: Forward | None = None
    random: bool = False
    as_is: bool = False
    any_device: bool = False
    autocast: tuple[str, str] = ("", "")
    promotion: str = "common"
    kinds: str = "biuf"
    small_vjp: str = ""
    grad_name: str = ""
    listed: tuple[int, ...] | None = None
    fusible_gradient: bool = False
    loop_reduction: str = ""
    expression: Callable[..., Any] | None = field(default=None, repr=False)
    gemm: str = ""
    onnx: str | Callable[..., Any] | NotExportable | None = field(default=None, repr=False)
    work: Work | None = field(default=None, repr=False)

    # -- derived: read for every op that runs

    # One rule for each of one or two inputs: the backward pass has a fast path for these.
    simple_rules: bool = field(default=False, init=False)
    # What a node keeps when (only the first, only the second, both) inputs want a gradient; by `needs` for others.
    keep_first: Callable[..., Any] = field(default=None, repr=False, init=False)  # type: ignore[assignment]
    keep_second: Callable[..., Any] = field(default=None, repr=False, init=False)  # type: ignore[assignment]
    keep_both: Callable[..., Any] = field(default=None, repr=False, init=False)  # type: ignore[assignment]
    packers: dict[Any, Callable[..., Any]] = field(default_factory=dict, repr=False, init=False)
    # The forward as a native loop, for arrays of at least `large_from` elements; all gradients of a node in one loop.
    large: Any = field(default=None, repr=False, init=False)
    large_from: int = field(default=sys.maxsize, init=False)
    large_vjp: Any = field(default=None, repr=False, init=False)
    large_vjp_from: int = field(default=sys.maxsize, init=False)
    # What the native module has worked out about this record (`core/native.py`).
    native: Any = field(default=None, repr=False, init=False)

    def __post_init__(self) -> None:
        self.as_is = self.as_is or self.family == "movement" or self.family in _OWN_DTYPES
        if self.listed is None and isinstance(self.vjp, tuple) and None in self.vjp:
            self.listed = tuple(i for i, rule in enumerate(self.vjp) if rule is not None)
        if not self.grad_name:
            self.grad_name = "".join(w.capitalize() for w in self.name.strip("_").split("_")) + "Backward0"
        self.simple_rules = isinstance(self.vjp, tuple) and len(self.vjp) <= 2 and None not in self.vjp
        # Made when first used: there are hundreds of ops, and importing them all must stay quick.
        if isinstance(self.vjp, tuple) and len(self.vjp) == 2:
            self.keep_first = self._later("keep_first", True, False)
            self.keep_second = self._later("keep_second", False, True)
            self.keep_both = self._later("keep_both", True, True)
        elif self.vjp is not None:
            self.keep_first = self._later("keep_first", True)

    def _later(self, slot: str, *needs: bool) -> Callable[..., Any]:
        """A stand-in for a packer that makes it at the first call and puts it in its own place."""

        def make(*arrays: Any) -> Any:
            packer = self.packer(needs)
            setattr(self, slot, packer)
            return packer(*arrays)

        return make

    def __deepcopy__(self, _memo: Any) -> Op:
        """An op is one record: copies of what refers to it share it."""
        return self

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def checks_values(self) -> bool:
        """Does the forward look at the numbers, and refuse some? (It is marked so: see `checks_values`.)"""
        return any([getattr(f, "checks_values", False) for f in (self.forward, self.formula)])

    def flops(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The arithmetic operations of one call forward, from anything with a shape; None where nobody can say.

        An input may be None: one whose shape is not known any more.
        """
        rule = self.work or FAMILIES.get(self.family, unknown)
        return rule([None if x is None else x.shape for x in inputs], [y.shape for y in outputs], attrs)

    @property
    def gradient_as_is(self) -> bool:
        """Do the gradient rules take bfloat16 as it is? (Even a rule of the family "movement" may sum: `expand`.)"""
        return bool(self.moves) or self.family in _OWN_DTYPES

    def forward_for(self, dtypes: Iterable[np.dtype[Any]]) -> Forward:
        """The function that runs this op on small arrays of these dtypes."""
        return self.compute if not self.as_is and BFLOAT16 in dtypes else self.forward

    def compute(self, *arrays: Any, **attrs: Any) -> Any:
        """`forward` in float32, for inputs of which some are bfloat16: the results are rounded once."""
        return self.in_float32(self.forward, *arrays, **attrs)

    def in_float32(self, forward: Forward, /, *arrays: Any, **attrs: Any) -> Any:
        """A forward of this op on arrays of any device, in float32; the results are rounded once."""
        made = forward(*map(widened, arrays), **attrs)
        # The dtype of one result follows from dtypes alone. The shape rule takes longer than a small op: ask it once.
        key: Any = (self.name, *[x.dtype for x in arrays], *[v for v in attrs.values() if v.__class__ is DType])
        known = _RESULT_DTYPES.get(key) if self.outputs == 1 and self.name in REGISTRY else None
        if known is not None:
            return narrowed(made, known)
        specs = self.infer(*map(spec_of, arrays), **attrs)
        if isinstance(specs, (tuple, list)):
            return tuple([narrowed(out, spec.dtype.numpy) for out, spec in zip(made, specs, strict=True)])
        if self.name in REGISTRY:
            _RESULT_DTYPES[key] = specs.dtype.numpy
        return narrowed(made, specs.dtype.numpy)

    def packer(self, needs: tuple[bool, ...]) -> Callable[..., Any]:
        """The function that picks what a node keeps, given which inputs want a gradient."""
        found = self.packers.get(needs)
        if found is None:
            found = self.packers[needs] = _make_packer(*self.keeps(needs))
        return found

    def keeps(self, needs: tuple[bool, ...]) -> tuple[int, tuple[int, ...]]:
        """What must be kept of (the output, each input): DROP, SPEC or VALUE, read off the rules' parameters."""
        if self.vjp is None:
            return DROP, (DROP,) * len(needs)
        if isinstance(self.vjp, joint):
            return _kept_by(self.vjp.rule, 3, len(needs))
        output, inputs = DROP, [DROP] * len(needs)
        for rule, wanted in zip(self.vjp, needs, strict=True):
            if wanted and rule is not None:
                of_output, of_inputs = _kept_by(rule, 2, len(needs))
                output = max(output, of_output)
                inputs = [max(a, b) for a, b in zip(inputs, of_inputs, strict=True)]
        return output, tuple(inputs)


_RESULT_DTYPES: dict[Any, np.dtype[Any]] = {}
# These families are made for the dtypes that they are given.
_OWN_DTYPES = frozenset({"fused", "update", "custom"})


def _mode(name: str) -> int:
    return DROP if name.startswith("_") else SPEC if name.endswith("_spec") else VALUE


@lru_cache(4096)
def _kept_by(rule: Rule, skip: int, arity: int) -> tuple[int, tuple[int, ...]]:
    """Read a rule's positional parameters after `m[, needs], g`: the output, then the inputs."""
    modes: list[int] = []
    for parameter in list(inspect.signature(rule).parameters.values())[skip:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            modes += [_mode(parameter.name)] * (arity + 1 - len(modes))
        elif parameter.kind is not parameter.KEYWORD_ONLY and parameter.kind is not parameter.VAR_KEYWORD:
            modes.append(_mode(parameter.name))
    if len(modes) != arity + 1:
        raise TypeError(f"gradient rule of arity {len(modes) - 1} for an op of {arity} inputs: {rule}")
    return modes[0], tuple(modes[1:])


def _make_packer(output: int, inputs: tuple[int, ...]) -> Callable[..., Any]:
    """A function (y, *input arrays) → what is kept of them.

    It runs once for every recorded op, so one and two inputs are written out: the general way takes 0.1 µs longer.
    """
    modes = (output, *inputs)
    value, spec = [mode == VALUE for mode in modes], [mode == SPEC for mode in modes]
    if len(inputs) == 1:
        (keep_y, keep_a), (spec_y, spec_a) = value, spec
        return lambda y, a: (
            y if keep_y else _spec_of_output(y) if spec_y else None,
            a if keep_a else spec_of(a) if spec_a else None,
        )
    if len(inputs) == 2:
        (keep_y, keep_a, keep_b), (spec_y, spec_a, spec_b) = value, spec
        return lambda y, a, b: (
            y if keep_y else _spec_of_output(y) if spec_y else None,
            a if keep_a else spec_of(a) if spec_a else None,
            b if keep_b else spec_of(b) if spec_b else None,
        )
    dropped = [i for i, mode in enumerate(modes) if mode == DROP]
    specs = [i for i, mode in enumerate(modes) if mode == SPEC]

    def pack(*given: Any) -> tuple[Any, ...]:
        kept = [*given]
        for i in dropped:
            kept[i] = None
        for i in specs:
            kept[i] = spec_of(given[i]) if i else _spec_of_output(given[i])
        return tuple(kept)

    return pack


def _spec_of_output(y: Any) -> Any:
    return tuple(spec_of(v) for v in y) if isinstance(y, tuple) else spec_of(y)


REGISTRY: dict[str, Op] = {}
_PARTS = ("forward", "infer", "batch", "samples", "reference", "signature")


def register(op: Op) -> Op:
    """Enter a record; an incomplete or doubly named one is refused by name."""
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered twice")
    missing = [part for part in _PARTS if getattr(op, part) is None]
    if missing:
        raise ValueError(f"op {op.name!r} lacks {', '.join(missing)}")
    REGISTRY[op.name] = op
    return op


def gradient_only(name: str, rule: Rule, grad_name: str) -> Op:
    """The record of what is no op, but ran by itself and is one node of the graph: it has a (joint) gradient rule."""

    def unused(*_args: Any, **_options: Any) -> Any:
        raise OperationError(f"{name}: there is a gradient for this, and no other rule",
                             fix="Call the function itself, not its record.")  # fmt: skip

    return Op(
        name=name, family="custom", forward=unused, infer=unused, vjp=joint(rule), batch=unused, samples=unused,
        reference=unused, outputs=None, takes_none=True, grad_name=grad_name,
    )  # fmt: skip


class ByName:
    """Ops by name, as gradient and batch rules call them: `m.sum(x, dim=(0,), keepdim=True)`."""

    # May a rule compute on the arrays past the ops: with NumPy's functions, with native routines?
    works_on_arrays = False

    def __getattr__(self, name: str) -> Any:
        op = REGISTRY.get(name)
        if op is None:
            raise AttributeError(f"there is no op {name!r}")
        found = self._bind(op)
        setattr(self, name, found)
        return found

    def _bind(self, op: Op) -> Any:
        raise NotImplementedError


class RawOps(ByName):
    """On raw arrays: an ordinary backward pass, nothing recorded."""

    differentiable = False
    works_on_arrays = True

    def _bind(self, op: Op) -> Any:
        if op.sparse is not None:
            return op.sparse
        if op.large is None:
            return op.forward
        forward, large, large_from = op.forward, op.large, op.large_from

        def by_size(x: Any, *others: Any, **attrs: Any) -> Any:
            return (forward if x.size < large_from else large)(x, *others, **attrs)

        return by_size


raw_ops: Any = RawOps()
