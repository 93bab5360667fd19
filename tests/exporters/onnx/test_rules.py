"""ONNX rules where they are tested hardest: every dtype, values at the edges, broadcasting, refusals."""

import numpy as np
import pytest

from tests.exporters.onnx.alone import finished, run, samples_of, single, write
from wayfare.core.op import REGISTRY, NotExportable
from wayfare.core.spec import OF_NUMPY, float32
from wayfare.exporters.onnx.builder import Builder, rule_of

ELEMENTWISE = [
    name for name, op in sorted(REGISTRY.items())
    if op.family == "elementwise" and not isinstance(rule_of(op), NotExportable)
    and name not in ("cast", "at_index", "frexp")
]  # fmt: skip
# Given fractions, these leave the integers; nobody calls them so.
NOT_FOR_INTEGERS = {"hardtanh", "nan_to_num", "round", "threshold", "heaviside"}
DIVIDING = {"floor_divide", "remainder", "fmod"}

FLOATS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -2.5, 3.5, 1e-6, -1e-6, 1e-4, 100, -100, 3e4, 0.3])


def _integers(dtype):
    edges = np.iinfo(dtype)
    numbers = [edges.min, edges.max, 0, 1, 2, 3, 7, 100] + ([-1, -2, -3, -7] if edges.min else [])
    return np.unique(np.array(numbers, dtype))


def _pairs(values, name):
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    return (a[b != 0], b[b != 0]) if name in DIVIDING and values.dtype.kind != "f" else (a, b)


def _attrs_of(op):
    return {repr(s.attrs): s.attrs for s in samples_of(op)}.values()


def _check(name, values, near):
    """The op on all values, or all pairs of them, against itself: every set of attributes in one model."""
    op = REGISTRY[name]
    count = len(next(iter(samples_of(op))).inputs)
    a, b = _pairs(values, name)
    third = [a > 0, a, b] if name == "where" else [a, b, np.zeros_like(a)]
    arrays = [values] if count == 1 else [a, b] if count == 2 else third
    if name in ("pow", "bitwise_left_shift", "bitwise_right_shift") and values.dtype.kind != "f":
        fits = (abs(a.astype(float)) < 4) & (b >= 0) & (b < 5)
        arrays = [a[fits], b[fits]]
    builder, want = Builder(), []
    for attrs in _attrs_of(op):
        with np.errstate(all="ignore"):
            want.append(np.asarray(op.forward(*arrays, **attrs)))
        write(builder, op, arrays, attrs)
    for got, expected in zip(run(finished(builder), arrays * len(want)), want, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=5 * near, atol=near, err_msg=name)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_values_at_the_edges(name):
    if "f" in REGISTRY[name].kinds:
        _check(name, FLOATS.astype(np.float32), 1e-5)
        _check(name, FLOATS.astype(np.float16), 2e-3)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_every_integer_dtype(dtype):
    kind = np.dtype(dtype).kind
    names = [n for n in ELEMENTWISE if kind in REGISTRY[n].kinds and n not in NOT_FOR_INTEGERS]
    if kind == "b":
        names = [n for n in names if n not in DIVIDING]
    assert len(names) > 20
    for name in names:
        _check(name, np.array([True, False]) if kind == "b" else _integers(dtype), 0)


DTYPES = [d for d in OF_NUMPY.values() if d.name != "bfloat16"]  # which a model file refuses


@pytest.mark.parametrize("source", [d.name for d in DTYPES])
def test_casts_between_all_dtypes(source):
    values = np.array([0, 1, 2, 100]).astype(source)
    for dtype in DTYPES:
        (got,) = single(REGISTRY["cast"], [values], {"dtype": dtype})
        np.testing.assert_array_equal(got, values.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_what_moves_and_folds_numbers_takes_every_dtype(dtype):
    x = np.array([[3, 0, 1], [2, 2, 0]]).astype(dtype)
    calls = {
        "reshape": {"shape": (3, 2)}, "permute": {"dims": (1, 0)}, "expand": {"shape": (2, 2, 3)},
        "basic_index": {"index": (1, (0, 3, 2))}, "flip": {"dims": (1,)},
        "pad": {"amounts": ((1, 0), (0, 2)), "value": 1},
        "sum": {"dim": (0,), "keepdim": False}, "any": {"dim": (1,), "keepdim": True},
        "amax": {"dim": (0, 1), "keepdim": False}, "argmax": {"dim": (1,), "keepdim": False},
        "cumsum": {"dim": 1, "reverse": False}, "topk": {"dim": 1, "k": 2, "largest": True},
        "tril": {"diagonal": 0}, "roll": {"shifts": (1,), "dims": (1,)},
    }  # fmt: skip
    missing = {"int16": {"pad", "tril"}, "uint8": {"tril"}, "float16": {"tril"}}.get(dtype, set())
    for name, attrs in calls.items():
        op = REGISTRY[name]
        if x.dtype.kind not in op.kinds or name in missing:
            continue
        made = op.forward(x, **attrs)
        for got, want in zip(single(op, [x], attrs), made if isinstance(made, tuple) else (made,), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {dtype}")


def test_shapes_that_broadcast():
    rng = np.random.default_rng(0)
    for shapes in (((2, 1, 3), (4, 1)), ((), (2, 0)), ((1,), (3, 1)), ((5,), (1, 1, 5))):
        a, b = (rng.normal(size=s).astype(np.float32) for s in shapes)
        for name in ("add", "maximum", "gt", "pow", "atan2", "remainder"):
            with np.errstate(all="ignore"):
                want = REGISTRY[name].forward(a, b)
            (got,) = single(REGISTRY[name], [a, b])
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_nan_is_the_largest_and_infinity_comes_next():
    row = np.array([2.0, np.nan, np.inf, -np.inf, np.nan, 5.0], np.float32)
    values, places = single(REGISTRY["sort"], [row], {"dim": 0, "descending": True})
    assert places.tolist() == [1, 4, 2, 5, 0, 3]
    np.testing.assert_array_equal(values, row[places])
    assert single(REGISTRY["argmax"], [row], {"dim": (0,), "keepdim": False}) == [1]
    assert single(REGISTRY["argmin"], [row], {"dim": (0,), "keepdim": False}) == [1]


def test_a_query_that_sees_nothing_gets_nothing():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    out, weights, _ = single(REGISTRY["attention"], [q, k, v, mask], {"scale": 0.5, "causal": True})
    assert not out[1].any() and not weights[1].any() and not np.isnan(out).any()


def test_negative_places_count_from_the_end():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (got,) = single(REGISTRY["index"], [x, np.array([-1, 0]), np.array([0, -2])], {"dims": (0, 1)})
    np.testing.assert_array_equal(got, x[[-1, 0], [0, -2]])


def test_nodes_are_named_for_where_they_are():
    b = Builder()
    x = b.input("x", float32, (2,))
    b.place = "encoder/norm"
    y = b.ops.relu(b.ops.relu(x))
    assert [n.name for n in b.graph.nodes] == ["encoder/norm/Relu", "encoder/norm/Relu_2"]
    assert y.name == "encoder/norm/Relu_2" and b.graph.nodes[0].op == "relu"


def test_equal_constants_are_kept_once():
    b = Builder()
    x = b.input("x", float32, (2,))
    _ = (x * 2 + 2) / 2
    assert len(b.graph.initializers) == 1


def test_numbers_with_labels_beyond_the_alphabet_are_refused():
    with pytest.raises(Exception, match="einsum cannot be written in ONNX here: it has more labels"):
        single(REGISTRY["einsum"], [np.ones((2, 2), np.float32)], {"equation": "ĀĀ->Ā"})
