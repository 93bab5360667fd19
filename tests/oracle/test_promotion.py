"""Type promotion side by side: all dtype pairs, zero-dimensional tensors, Python scalars, many operations."""

from __future__ import annotations

import operator

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree, disagreement

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
SCALARS = (True, 2, 2.5)

OPERATIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "eq": operator.eq,
    "lt": operator.lt,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
}

IN_PLACE = {
    "iadd": operator.iadd,
    "isub": operator.isub,
    "imul": operator.imul,
    "itruediv": operator.itruediv,
    "ifloordiv": operator.ifloordiv,
    "ipow": operator.ipow,
    "iand": operator.iand,
}

FUNCTIONS = {
    "maximum": lambda m, a, b: m.maximum(a, b),
    "fmin": lambda m, a, b: m.fmin(a, b),
    "atan2": lambda m, a, b: m.atan2(a, b),
    "hypot": lambda m, a, b: m.hypot(a, b),
    "where": lambda m, a, b: m.where(m.tensor(MASK), a, b),
    "cat": lambda m, a, b: m.cat([m.atleast_1d(a), m.atleast_1d(b)]),
    "stack": lambda m, a, b: m.stack([a, b]),
    "result_type": lambda m, a, b: m.result_type(a, b),
    "copysign": lambda m, a, b: m.copysign(a, b),
    "fmod": lambda m, a, b: m.fmod(a, b),
    "logical_and": lambda m, a, b: m.logical_and(a, b),
    "div_floor": lambda m, a, b: m.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda m, a, b: m.div(a, b, rounding_mode="trunc"),
}

MASK = [True, False, True]
VALUES = {"left": [1, 2, 5], "right": [2, 1, 3]}


def _tensor(m, side, dtype, *, scalar):
    values = VALUES[side]
    return m.tensor(values[1] if scalar else values, dtype=getattr(m, dtype))


def _check_all(snippets):
    """Runs named snippets and reports every one that differs."""
    wrong = []
    for name, snippet in snippets:
        found = disagreement(snippet, any_error=True)
        if found is not None:
            wrong.append(f"{name}: {found}")
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong)


def _pairs(left, apply):
    """A snippet for every dtype on the right and every choice of zero-dimensional sides."""
    for right in DTYPES:
        for left_scalar in (False, True):
            for right_scalar in (False, True):
                name = f"{left}{'' if left_scalar else '[3]'} with {right}{'' if right_scalar else '[3]'}"

                def snippet(m, right=right, left_scalar=left_scalar, right_scalar=right_scalar):
                    a = _tensor(m, "left", left, scalar=left_scalar)
                    b = _tensor(m, "right", right, scalar=right_scalar)
                    return apply(m, a, b)

                yield name, snippet


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operator_on_two_tensors(operation, left):
    _check_all(_pairs(left, lambda m, a, b: operation(a, b)))


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("operation", IN_PLACE.values(), ids=IN_PLACE)
def test_in_place_operator(operation, left):
    _check_all(_pairs(left, lambda m, a, b: operation(a, b)))


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_function_of_two_tensors(function, left):
    _check_all(_pairs(left, function))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operator_with_a_python_number(operation, dtype):
    def snippets():
        for number in SCALARS:
            for scalar in (False, True):
                what = f"{dtype}{'' if scalar else '[3]'}"
                yield (
                    f"{what} with {number}",
                    lambda m, number=number, scalar=scalar: operation(_tensor(m, "left", dtype, scalar=scalar), number),
                )
                yield (
                    f"{number} with {what}",
                    lambda m, number=number, scalar=scalar: operation(number, _tensor(m, "left", dtype, scalar=scalar)),
                )

    _check_all(snippets())


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_with_python_numbers(dtype):
    def snippets():
        for number in SCALARS:
            yield (
                f"{dtype}, {number}",
                lambda m, n=number: m.where(m.tensor(MASK), _tensor(m, "left", dtype, scalar=False), n),
            )
            yield (
                f"{number}, {dtype}",
                lambda m, n=number: m.where(m.tensor(MASK), n, _tensor(m, "left", dtype, scalar=False)),
            )

    _check_all(snippets())


_UNARY = (
    "neg abs sign sqrt exp log sin tanh sigmoid relu floor ceil round trunc reciprocal square logical_not "
    "bitwise_not isnan isfinite erf sum prod mean cumsum cumprod max min argmax any all amax std median "
    "softmax count_nonzero bool int float half double long clone nonzero sort"
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_type_of_one_tensor(dtype):
    def call(m, name):
        tensor = _tensor(m, "left", dtype, scalar=False)
        takes_dim = name in ("cumsum", "cumprod", "softmax")
        return getattr(tensor, name)(*([0] if takes_dim else []))

    _check_all((name, lambda m, name=name: call(m, name)) for name in _UNARY.split())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["sum", "prod", "cumsum", "mean"])
def test_reduction_with_dtype(reduction, dtype):
    def call(m, wanted):
        arguments = {"dtype": getattr(m, wanted)}
        if reduction == "cumsum":
            arguments["dim"] = 0
        return getattr(m, reduction)(_tensor(m, "left", dtype, scalar=False), **arguments)

    _check_all((wanted, lambda m, wanted=wanted: call(m, wanted)) for wanted in DTYPES)


CREATIONS = {
    "list of bools": lambda m: m.tensor([True, False]),
    "list of ints": lambda m: m.tensor([1, 2]),
    "list of floats": lambda m: m.tensor([1.0, 2.0]),
    "mixed list": lambda m: m.tensor([1, 2.5]),
    "bools and ints": lambda m: m.tensor([True, 2]),
    "empty list": lambda m: m.tensor([]),
    "nested empty": lambda m: m.tensor([[], []]),
    "number": lambda m: m.tensor(3),
    "nested": lambda m: m.tensor([[1, 2], [3, 4]]),
    "ragged": lambda m: m.tensor([[1, 2], [3]]),
    "text": lambda m: m.tensor(["a"]),
    "tensors in a list": lambda m: m.tensor([m.tensor(1), m.tensor(2)]),
    "arange ints": lambda m: m.arange(5),
    "arange floats": lambda m: m.arange(0, 1, 0.25),
    "arange float end": lambda m: m.arange(3.0),
    "arange backwards": lambda m: m.arange(5, 0, -2),
    "arange impossible": lambda m: m.arange(5, 0),
    "full int": lambda m: m.full((2,), 3),
    "full float": lambda m: m.full((2,), 3.0),
    "full bool": lambda m: m.full((2,), True),
    "full_like keeps dtype": lambda m: m.full_like(m.tensor([1, 2]), 2.7),
    "zeros": lambda m: m.zeros(2, 3),
    "ones of a size": lambda m: m.ones((2, 3), dtype=m.int8),
    "eye": lambda m: m.eye(2, 3),
    "linspace": lambda m: m.linspace(0, 1, 5),
    "scalar_tensor": lambda m: m.scalar_tensor(2),
    "as_tensor of a tensor": lambda m: m.as_tensor(m.tensor([1]), dtype=m.float64),
    "overflow wraps": lambda m: m.tensor([200], dtype=m.uint8) + m.tensor([100], dtype=m.uint8),
    "negative modulo": lambda m: m.tensor([-7, 7, -7, 7]) % m.tensor([3, -3, -3, 3]),
    "negative floor division": lambda m: m.tensor([-7, 7, -7, 7]) // m.tensor([3, -3, -3, 3]),
    "float modulo": lambda m: m.tensor([-7.5, 7.5]) % 2,
    "fmod": lambda m: m.fmod(m.tensor([-7.5, 7.5]), 2),
    "integer division by zero": lambda m: m.tensor([1]) // m.tensor([0]),
    "integer modulo zero": lambda m: m.tensor([1]) % m.tensor([0]),
    "float division by zero": lambda m: m.tensor([1.0, -1.0, 0.0]) / 0,
    "int to negative power": lambda m: m.tensor([2]) ** -1,
    "int tensor to negative tensor power": lambda m: m.tensor([2, 1, -1]) ** m.tensor([-1, -1, -1]),
    "negation of bool": lambda m: -m.tensor([True]),
    "bool subtraction": lambda m: m.tensor([True]) - m.tensor([False]),
    "one minus bool": lambda m: 1 - m.tensor([True]),
    "invert": lambda m: (~m.tensor([True, False]), ~m.tensor([1, 2])),
    "invert float": lambda m: ~m.tensor([1.0]),
    "float to int truncates": lambda m: m.tensor([1.9, -1.9]).to(m.int64),
    "can_cast": lambda m: [m.can_cast(a, b) for a, b in ((m.float32, m.int32), (m.int32, m.float16))],
    "promote_types": lambda m: m.promote_types(m.int32, m.float16),
    "shift of floats": lambda m: m.tensor([1.0]) << 1,
    "bool sum": lambda m: m.tensor([True, True]).sum(),
    "mean of ints": lambda m: m.tensor([1, 2]).mean(),
    "addcmul with int value": lambda m: m.addcmul(m.tensor([1, 2]), m.tensor([1, 2]), m.tensor([3, 4])),
    "lerp with number": lambda m: m.lerp(m.tensor([0.0, 1.0]), m.tensor([10.0, 11.0]), 0.3),
    "clamp int with float bound": lambda m: m.tensor([1, 5]).clamp(max=2.5),
    "half and python float": lambda m: m.tensor([1.0], dtype=m.float16) + 1e-3,
    "item of each kind": lambda m: [m.tensor(True).item(), m.tensor(2).item(), m.tensor(0.5).item()],
    "tolist": lambda m: m.tensor([[1.5, 2.0], [3.0, 4.0]]).tolist(),
    "comparison chain": lambda m: (m.tensor([1, 2, 3]) > 1.5) & (m.tensor([1, 2, 3]) < 3),
}


@pytest.mark.parametrize("snippet", CREATIONS.values(), ids=CREATIONS)
def test_creation_and_arithmetic(snippet):
    agree(snippet, any_error=True)


def test_default_dtype_decides_what_python_floats_become():
    def snippet(m):
        m.set_default_dtype(m.float64)
        try:
            made = [
                m.tensor([1.5]),
                m.ones(2),
                m.tensor([1, 2]) / 2,
                m.arange(0.0, 1.0, 0.5),
                m.tensor([1]) * 1.5,
            ]
            return [tensor.dtype for tensor in made] + [m.get_default_dtype()]
        finally:
            m.set_default_dtype(m.float32)

    agree(snippet)
