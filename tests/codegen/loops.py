"""Random loops and random ways for arrays to lie in memory, for the tests of kernels.

Every value a random loop computes is the same in NumPy and in machine code to the last bit, so the two are compared
exactly: sums run over small integers, and nothing depends on the sign of a NaN or of a largest zero.
"""

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NARROW, NUMPY, apply, cast, const, expr, index, load, reduction, reload
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.math.library import numpy_function

STORED = ["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 1e38]


# -- arrays -------------------------------------------------------------------------------------------------------


def values(rng, shape, dtype):
    """Random numbers with the awkward ones among them."""
    kind = NUMPY[dtype]
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in FLOATS:
        out = rng.integers(-9, 9, shape) / 2.0
        if rng.random() < 0.5:
            odd = rng.random(shape) < 0.1
            out = np.where(odd, rng.choice(SPECIAL, shape), out)
        with np.errstate(over="ignore"):
            return out.astype(kind)
    info = np.iinfo(kind)
    wide = rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    return np.where(rng.random(shape) < 0.3, rng.choice([0, 1, info.max, info.min], shape).astype(kind), wide)


def laid(rng, array):
    """An array of the same values, somewhere in memory: steps, gaps, axes in any order and direction, any address."""
    kind = rng.integers(6)
    if kind == 0:
        return np.ascontiguousarray(array).reshape(array.shape)
    if kind == 1:
        return np.asfortranarray(array).reshape(array.shape)
    order = rng.permutation(array.ndim) if rng.random() < 0.6 else np.arange(array.ndim)[::-1]
    strides, first = [0] * array.ndim, 0
    run = array.dtype.itemsize
    for axis in order:
        if rng.random() < 0.3:
            run *= int(rng.integers(1, 4))
        if kind == 2 and rng.random() < 0.3:
            run += int(rng.integers(1, 5))  # strides that are no multiple of the element's size
        size = max(array.shape[axis], 1)
        strides[axis] = run
        if rng.random() < 0.25:
            first += run * (size - 1)
            strides[axis] = -run
        run *= size
    offset = int(rng.integers(0, 8)) if kind in (2, 3) else 0
    memory = np.zeros(run + offset + 64, np.uint8)
    out = np.ndarray(array.shape, array.dtype, memory, offset + first, tuple(strides))
    out[...] = array
    return out


def broadcastable(rng, shape, dtype):
    """An array that broadcasts to `shape`, with strides of zero or fewer axes at times."""
    own = tuple(1 if rng.random() < 0.2 else n for n in shape)
    if rng.random() < 0.2:
        own = own[int(rng.integers(0, len(own) + 1)) :]
    array = laid(rng, values(rng, own, dtype))
    if rng.random() < 0.2:
        return np.broadcast_to(array, shape)
    if rng.random() < 0.2:
        array.flags.writeable = False
    return array


def random_shape(rng, largest=5000):
    """Up to six axes; sizes of one and odd ones are frequent."""
    shape = [int(rng.choice([1, 2, 3, 5, 16, 17, 33, 70])) for _ in range(rng.integers(0, 7))]
    while np.prod(shape) > largest:
        shape[int(rng.integers(len(shape)))] = int(rng.integers(1, 4))
    return tuple(shape)


# -- expressions --------------------------------------------------------------------------------------------------


class Maker:
    """Grows expressions from leaves; computes in every dtype but the narrow floats."""

    def __init__(self, rng, leaves):
        self.rng = rng
        self.known = [cast(e, "f32") if e.dtype in NARROW else e for e in leaves]

    def any_of(self, dtypes):
        found = [e for e in self.known if e.dtype in dtypes]
        return found[int(self.rng.integers(len(found)))] if found else self.to(self.one(), dtypes[0])

    def one(self):
        return self.known[int(self.rng.integers(len(self.known)))]

    def to(self, e, dtype):
        """A cast that C defines: numbers that do not fit become zero first."""
        if e.dtype in FLOATS and dtype not in (*FLOATS, "bool"):
            e = apply("where", apply("lt", apply("abs", e), 100.0), e, 0.0)
            if dtype == "u8":
                e = apply("abs", e)
        return cast(e, dtype)

    def grow(self, count):
        for _ in range(count):
            made = self.step()
            if made is not None:
                self.known.append(made)

    def step(self):
        rng, pick = self.rng, self.rng.integers(10)
        if pick == 0:
            return self.to(self.one(), str(rng.choice(["bool", "u8", "i8", "i16", "i32", "i64", "f32", "f64"])))
        a = self.one()
        b = self.any_of([a.dtype]) if rng.random() < 0.8 else self.constant(a.dtype)
        if pick == 1:
            return apply("where", self.any_of(["bool"]), a, b)
        if pick == 2:
            return apply(str(rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])), a, b)
        if a.dtype == "bool":
            ops = ["logical_and", "logical_or", "logical_xor", "bitwise_xor", "add", "mul", "maximum", "minimum"]
            return apply(str(rng.choice(ops)), a, b) if rng.random() < 0.8 else apply("logical_not", a)
        if a.dtype in FLOATS:
            return self.float_step(a, b)
        ops = ["add", "sub", "mul", "maximum", "minimum", "quotient", "bitwise_and", "bitwise_or", "bitwise_xor",
               "shift_left", "shift_right", "neg", "abs", "bitwise_not"]  # fmt: skip
        op = str(rng.choice(ops))
        return apply(op, a) if op in ("neg", "abs", "bitwise_not") else apply(op, a, b)

    def float_step(self, a, b):
        rng = self.rng
        if rng.random() < 0.5:
            op = str(rng.choice(["add", "sub", "mul", "div", "copysign", "maximum", "minimum"]))
            if op == "copysign":
                # The sign of a NaN is nobody's.
                b = apply("where", apply("isnan", b), 1.0, b)
            made = apply(op, a, b)
            # Which of two zeros is the larger one is not said.
            return made + 0.0 if op in ("maximum", "minimum") else made
        op = str(rng.choice(["neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite",
                             "signbit"]))  # fmt: skip
        if op == "signbit":
            a = apply("where", apply("isnan", a), 0.0, a)
        return apply(op, a)

    def constant(self, dtype):
        if dtype == "bool":
            return const(bool(self.rng.integers(2)), dtype)
        if dtype in FLOATS:
            return const(float(self.rng.choice([-1.5, 0.0, 2.0, 3.0, 0.5, np.inf])), dtype)
        return const(int(self.rng.integers(0, 9)), dtype)

    def stored(self, dtype):
        """A value to store in an output of this dtype."""
        e = self.known[-1] if self.rng.random() < 0.7 else self.one()
        if dtype in NARROW:
            return cast(self.to(e, "f32"), dtype)
        return self.to(e, dtype)


def random_elementwise(rng):
    """A loop without rows: one to four inputs, one to three outputs."""
    inputs = [str(d) for d in rng.choice(STORED, rng.integers(1, 5))]
    maker = Maker(rng, [load(i, d) for i, d in enumerate(inputs)])
    maker.grow(int(rng.integers(1, 14)))
    outputs = [str(d) for d in rng.choice(STORED, rng.integers(1, 4))]
    stores = tuple((k, maker.stored(d)) for k, d in enumerate(outputs))
    return Loop("random", tuple(map(Operand, inputs)), tuple(map(Operand, outputs)), (Stage(stores),))


def random_rows(rng):
    """A loop over rows: several stages, reductions of all kinds, values per row, outputs read back."""
    inputs = [Operand(str(rng.choice(STORED)), bool(rng.random() < 0.25)) for _ in range(rng.integers(1, 4))]
    inputs[0] = Operand(inputs[0].dtype)
    outputs = [Operand(str(rng.choice(STORED))) for _ in range(rng.integers(0, 3))]
    leaves = [load(i, o.dtype) for i, o in enumerate(inputs)]
    stages, reductions, stored = [], [], []
    for number in range(int(rng.integers(1, 4))):
        maker = Maker(rng, leaves + reductions + stored + ([index()] if rng.random() < 0.3 else []))
        maker.grow(int(rng.integers(1, 8)))
        made = [Reduction(kind, order_free(maker, kind)) for kind in random_kinds(rng)]
        wanted = [k for k in range(len(outputs)) if number == 0 or rng.random() < 0.5]
        stores = tuple((k, maker.stored(outputs[k].dtype)) for k in wanted)
        if not made and not stores:
            made = [Reduction("sum", order_free(maker, "sum"))]
        stages.append(Stage(stores, tuple(made)))
        first = sum(len(s.reductions) for s in stages[:-1])
        reductions += [reduction(first + i, f.dtype) for i, f in enumerate(made)]
        stored = [reload(k, o.dtype) for k, o in enumerate(outputs)]
    results = []
    for e in reductions:
        if not outputs or rng.random() < 0.5:
            results.append((len(outputs), e))
            outputs.append(Operand(e.dtype, True))
    per_row = [load(i, o.dtype) for i, o in enumerate(inputs) if o.per_row and o.dtype not in NARROW]
    if per_row and rng.random() < 0.5:
        results.append((len(outputs), apply("add", per_row[0], per_row[0])))
        outputs.append(Operand(per_row[0].dtype, True))
    return Loop("random", tuple(inputs), tuple(outputs), tuple(stages), tuple(results))


def random_kinds(rng):
    kinds = ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]
    return [str(kind) for kind in rng.choice(kinds, rng.integers(0, 3))]


def order_free(maker, kind):
    """A value whose reduction is the same in any order."""
    if kind in ("any", "all"):
        return maker.any_of(["bool"])
    e = maker.any_of(["f32", "f64"]) if maker.rng.random() < 0.6 else maker.any_of(["i8", "u8", "i16", "i32", "i64"])
    if e.dtype not in FLOATS or kind in ("argmax", "argmin"):
        return e
    if kind in ("max", "min"):
        return e + 0.0
    zero = const(0, e.dtype)
    if kind == "prod":
        signed = apply("where", apply("lt", e, zero), const(-1, e.dtype), const(1, e.dtype))
        return apply("where", apply("isnan", e), e, signed)
    small = apply("lt", apply("abs", e), 1000.0)
    finite = apply("where", small, expr("rint", (e,), e.dtype), apply("where", apply("isfinite", e), zero, e))
    return finite


# -- comparing ----------------------------------------------------------------------------------------------------


def meaning(loop, inputs):
    """What the loop computes, by the interpreter; rows lie along the last axis."""
    return interpret(loop, inputs, numpy_function)


def comparable(array):
    """An array that NumPy can compare: floats of other packages (bfloat16) as float32, or NaN is not equal to NaN."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def same(got, want, what=""):
    """Equal to the last bit, but for the signs of NaN."""
    assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{got.shape} {want.dtype}{want.shape}"
    got, want = comparable(got), comparable(want)
    np.testing.assert_array_equal(got, want, err_msg=str(what))
    if got.dtype.kind == "f":
        signs = np.where(np.isnan(want), False, np.signbit(got) != np.signbit(want))
        assert not signs.any(), f"signs of zero: {what}"


def row_loop(kind, dtype="f32", name="reduction"):
    """One reduction of every row."""
    made = Reduction(kind, load(0, dtype))
    return Loop(name, (Operand(dtype),), (Operand(made.dtype, True),), (Stage((), (made,)),),
                ((0, reduction(0, made.dtype)),))  # fmt: skip
