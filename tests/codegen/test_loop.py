"""The loop language by itself: expressions, what a loop looks like, the validator, the interpreter."""

import gc

import numpy as np
import pytest

from wayfare.codegen.loop.expr import NUMPY, apply, bits, call, cast, const, expr, index, load, reduction, reload
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise, exact, source, validate
from wayfare.codegen.math.library import KNOWN, loop_math, numpy_function
from wayfare.core.errors import LoopError

X, Y, H = load(0, "f32"), load(1, "f32"), load(0, "f16")
I, B = load(0, "i32"), load(0, "bool")


# -- expressions --------------------------------------------------------------------------------------------------


def test_the_same_expression_is_the_same_object():
    assert X * Y + 1.0 is X * Y + 1.0
    assert X * Y is not Y * X
    assert const(0.0, "f32") is not const(-0.0, "f32")
    assert const(float("nan"), "f64") is const(float("nan"), "f64")
    assert const(1, "i32") is not const(1, "i64")


def test_expressions_nobody_holds_are_forgotten():
    from wayfare.codegen.loop.expr import _TABLE

    gc.collect()
    before = len(_TABLE)
    # Numbers that no kernel of another test holds.
    made = [X + (n + 0.123456789) for n in range(1000, 1100)]
    assert len(_TABLE) >= before + 200
    del made
    gc.collect()
    assert len(_TABLE) <= before


def test_numbers_take_the_dtype_beside_them_and_mixtures_promote():
    assert (X + 1).dtype == "f32" and (1 - X).dtype == "f32" and (2.0 ** load(0, "f64")).dtype == "f64"
    assert (X + load(1, "f64")).dtype == "f64" and (I + load(1, "i64")).dtype == "i64"
    assert (I + load(1, "f32")).dtype == "f64" and (load(0, "u8") + load(1, "i8")).dtype == "i16"
    assert (X < Y).dtype == "bool" and apply("isnan", X).dtype == "bool"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bool(X > 0), "truth of a value"),
        (lambda: I + 0.5, "mixes i32 with a fraction"),
        (lambda: B + 1, "a mask and a number"),
        (lambda: I / 2, "divides i32"),
        (lambda: apply("add", 1, 2), "numbers only"),
        (lambda: bits(X, "f64"), "widths differ"),
        (lambda: const(0.5, "i32"), "cannot be written as i32"),
        (lambda: const(float("nan"), "i8"), "cannot be written as i8"),
        (lambda: const(256, "u8"), "256 does not fit into u8"),
        (lambda: load(0, "u8") - (-1), "-1 does not fit into u8"),
        (lambda: const(2**63, "i64"), "does not fit into i64"),
    ],
)
def test_a_formula_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(LoopError, match=message):
        make()


def test_an_unknown_function_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no function 'sausage'"):
        loop_math.sausage(X)


def test_expressions_are_written_as_one_would():
    assert repr((X + Y) * X - 1.5) == "(x0 + x1) * x0 - 1.5"
    assert repr(X - (Y - X)) == "x0 - (x1 - x0)"
    assert repr(-(X * Y)) == "-(x0 * x1)"
    assert repr(cast(apply("exp", X), "f16")) == "f16(exp(x0))"
    assert repr(const(float("inf"), "f32")) == "inf"


def test_a_very_deep_expression_can_be_shown_and_run():
    e = X
    for _ in range(3000):
        e = e * 0.5 + X
    assert "…" in repr(e)
    loop = elementwise("deep", ["f32"], e)
    text = source(loop)
    assert len(text) < 100_000 and "…" not in text
    x = np.array([1.0, -3.0], np.float32)
    np.testing.assert_array_equal(interpret(loop, [x], numpy_function)[0], 2 * x)


# -- loops --------------------------------------------------------------------------------------------------------


def softmax():
    e = apply("exp", X - reduction(0, "f32"))
    return Loop("softmax", (Operand("f32"),), (Operand("f32"),), (
        Stage((), (Reduction("max", X),)),
        Stage(((0, e),), (Reduction("sum", e),)),
        Stage(((0, reload(0, "f32") / reduction(1, "f32")),)),
    ))  # fmt: skip


def test_a_loop_is_printed_as_its_file_says():
    import wayfare.codegen.loop.language as module

    printed = "\n".join("    " + line for line in str(softmax()).splitlines())
    assert printed in module.__doc__


def test_exact_tells_apart_what_the_text_does_not():
    loops = [
        elementwise("f", ["f32"], X + 0.1), elementwise("f", ["f64"], load(0, "f64") + 0.1),
        elementwise("f", ["f32"], X + 0.10000000001), elementwise("f", ["f32"], X + 0.0),
        elementwise("f", ["f32"], X + -0.0), elementwise("g", ["f32"], X + 0.1),
        elementwise("f", ["f32", "f32"], X + 0.1),
        Loop("f", (Operand("f32", True),), (Operand("f32"),), (Stage(((0, X + 0.1),)),)),
        Loop("f", (Operand("f32"),), (Operand("f32"),), (Stage(((0, X + 0.1),), (Reduction("max", X),)),)),
        Loop("f", (Operand("f32"),), (Operand("f32"),), (Stage(((0, X + 0.1),), (Reduction("min", X),)),)),
    ]  # fmt: skip
    assert len({exact(loop) for loop in loops}) == len(loops)
    assert exact(softmax()) == exact(softmax())


def test_elementwise_is_what_has_no_rows():
    assert elementwise("f", ["f32"], X + 1.0).elementwise
    assert not softmax().elementwise
    assert not elementwise("f", ["f32"], cast(index(), "f32") + X).elementwise
    assert not Loop("f", (Operand("f32"), Operand("f32", True)), (Operand("f32"),), (Stage(((0, X + Y),)),)).elementwise


# -- the validator ------------------------------------------------------------------------------------------------


def loop_of(*values, inputs=("f32", "f32"), reductions=(), results=(), outputs=None):
    outputs = tuple(Operand(v.dtype) for v in values) if outputs is None else outputs
    stage = Stage(tuple(enumerate(values)), tuple(reductions))
    return Loop("bad", tuple(map(Operand, inputs)), outputs, (stage,), results)


PER_ROW = (Operand("f32", True),)
WRONG = {
    "no input": (loop_of(const(1, "f32"), inputs=()), "must have an input"),
    "no output": (loop_of(), "and an output"),
    "unknown dtype of an operand": (loop_of(X, inputs=("f32", "u64")), "'u64' is no dtype"),
    "unknown dtype of a value": (loop_of(cast(expr("cast", (X,), "c64"), "f32")), "'c64' is no dtype"),
    "missing input": (loop_of(load(2, "f32")), "no input x2 of f32"),
    "input of another dtype": (loop_of(load(0, "f64")), "no input x0 of f64"),
    "negative input": (loop_of(load(-1, "f32")), "no input x-1"),
    "missing output": (Loop("bad", (Operand("f32"),), (Operand("f32"),), (Stage(((1, X),)),)), "no output y1"),
    "output of another dtype": (loop_of(X, outputs=(Operand("f64"),)), "y0 is f64, the value stored is f32"),
    "store to a row's output": (loop_of(X, outputs=PER_ROW), "no output y0 with a value for each element"),
    "output never stored": (loop_of(X, outputs=(Operand("f32"), Operand("f32"))), r"outputs \[1\] are never stored"),
    "reload too early": (loop_of(reload(0, "f32")), "y0 is read before"),
    "reduction too early": (
        loop_of(reduction(0, "f32"), reductions=[Reduction("sum", X)]), "reduction r0 is used before"),
    "unknown reduction": (loop_of(X, reductions=[Reduction("median", X)]), "no reduction 'median'"),
    "any of numbers": (loop_of(X, reductions=[Reduction("any", X)]), "any cannot reduce f32"),
    "sum of masks": (loop_of(X, reductions=[Reduction("sum", X > 0)]), "sum cannot reduce bool"),
    "sum of halves": (loop_of(H, inputs=("f16",), reductions=[Reduction("sum", H)]), "sum cannot reduce f16"),
    "unknown function": (loop_of(expr("sausage", (X,), "f32")), "no function 'sausage'"),
    "mixed dtypes": (loop_of(expr("add", (X, cast(Y, "f64")), "f32")), "add mixes f32, f64"),
    "result of another dtype": (loop_of(expr("add", (X, Y), "f64")), "add of f32 is not f64"),
    "comparison that is no mask": (loop_of(expr("lt", (X, Y), "f32")), "lt of f32 is not f32"),
    "too many values": (loop_of(expr("add", (X, Y, X), "f32")), "add takes 2 values, not 3"),
    "too few values": (loop_of(expr("where", (X > 0, Y), "f32")), "where takes 3 values, not 2"),
    "no values": (loop_of(expr("neg", (), "f32")), "neg takes 1 values, not 0"),
    "choice by a number": (loop_of(expr("where", (X, Y, Y), "f32")), "where chooses between f32, f32, f32"),
    "choice of a mixture": (loop_of(expr("where", (X > 0, Y, cast(Y, "f64")), "f64")), "where chooses between"),
    "computing in halves": (loop_of(expr("add", (H, H), "f16"), inputs=("f16",)), "add computes in f16"),
    "bits of another width": (loop_of(expr("bits", (X,), "i64")), "bits of f32 cannot be read as i64"),
    "call of singles": (loop_of(expr("call", (X,), "f64", "sin")), "sin is a function of f64"),
    "root of whole numbers": (loop_of(expr("sqrt", (I,), "i32"), inputs=("i32",)), "no sqrt of i32"),
    "difference of masks": (loop_of(expr("sub", (B, B), "bool"), inputs=("bool",)), "no sub of bool"),
    "shift of floats": (loop_of(expr("shift_left", (X, X), "f32")), "no shift_left of f32"),
    "constant that does not fit": (loop_of(expr("const", (), "u8", 256)), "256 is no constant of u8"),
    "constant of another kind": (loop_of(expr("const", (), "f32", 1)), "1 is no constant of f32"),
    "index of another dtype": (loop_of(expr("index", (), "i32")), "the index is i64"),
    "result of elements": (
        loop_of(outputs=PER_ROW, reductions=[Reduction("sum", X)], results=((0, X),)), "of single elements"),
    "result of the index": (
        loop_of(outputs=(Operand("i64", True),), reductions=[Reduction("sum", X)], results=((0, index()),)),
        "single elements"),
    "result to no row's output": (loop_of(X, results=((0, const(1, "f32")),)), "no output y0 with one value per row"),
    "row's result of another dtype": (
        loop_of(outputs=PER_ROW, reductions=[Reduction("argmax", X)], results=((0, reduction(0, "i64")),)),
        "the result is i64"),
}  # fmt: skip


@pytest.mark.parametrize("rule", WRONG)
def test_a_loop_that_breaks_a_rule_is_refused(rule):
    loop, message = WRONG[rule]
    with pytest.raises(LoopError, match=f"loop bad: .*{message}"):
        validate(loop, KNOWN)


@pytest.mark.parametrize("loop", [softmax(), loop_of(X + Y), loop_of(cast(call("sin", X), "f16"))])
def test_a_good_loop_passes(loop):
    validate(loop, KNOWN)


# -- the interpreter ----------------------------------------------------------------------------------------------


def test_softmax_is_interpreted():
    x = np.array([[1.0, 2.0, 3.0], [-np.inf, 0.0, 0.0]], np.float32)
    (got,) = interpret(softmax(), [x], numpy_function)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_array_equal(got, e / e.sum(1, keepdims=True))


def test_whole_division_goes_towards_zero_and_by_zero_gives_zero():
    for dtype in ("i8", "i16", "i32", "i64"):
        low = np.iinfo(NUMPY[dtype]).min
        a = np.array([7, -7, 7, -7, 5, low, low], NUMPY[dtype])
        b = np.array([2, 2, -2, -2, 0, -1, 1], NUMPY[dtype])
        loop = elementwise("q", [dtype, dtype], apply("quotient", load(0, dtype), load(1, dtype)))
        np.testing.assert_array_equal(interpret(loop, [a, b], numpy_function)[0], [3, -3, -3, 3, 0, low, low])


def test_rounding_leaves_whole_numbers_as_they_are():
    x = np.array([-3, 0, 5], np.int32)
    for op in ("floor", "ceil", "trunc", "rint"):
        loop = elementwise(op, ["i32"], apply(op, I))
        (got,) = interpret(loop, [x], numpy_function)
        assert got.dtype == np.int32 and got.tolist() == [-3, 0, 5]


def test_the_interpreter_wants_as_many_arrays_as_there_are_inputs():
    with pytest.raises(LoopError, match="takes 1 arrays, not 2"):
        interpret(softmax(), [np.ones(3), np.ones(3)], numpy_function)
