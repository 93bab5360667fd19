"""Few long rows in several threads: loops split into stages so that rows can be split."""

import math

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.loop.expr import cast, index, load, reduction, reload
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.math.library import loop_math
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.long_rows import can_split_rows
from wayfare.core.counters import COUNTERS

pytestmark = pytest.mark.skipif(not native.available(), reason="llvmlite is not there")


@pytest.fixture(autouse=True)
def three_threads():
    old = wf.get_num_threads()
    wf.set_num_threads(3)
    yield
    wf.set_num_threads(old)


def mean_square(dtype="f32"):
    x, count = load(0, dtype), load(1, dtype)
    return Loop("mean_square", (Operand(dtype), Operand(dtype, True)), (Operand(dtype, True),),
                (Stage(reductions=(Reduction("sum", x * x),)),), ((0, reduction(0, dtype) / count),))  # fmt: skip


def softmax(dtype="f32"):
    x = load(0, dtype)
    top, total = reduction(0, dtype), reduction(1, dtype)
    e = loop_math.exp(x - top)
    return Loop("softmax", (Operand(dtype),), (Operand(dtype), Operand(dtype, True)), (
        Stage(reductions=(Reduction("max", x),)),
        Stage(((0, e),), (Reduction("sum", e),)),
        Stage(((0, reload(0, dtype) / total),)),
    ), ((1, loop_math.log(total) + top),))  # fmt: skip


def split(kernel, *arguments):
    """The result, and whether the rows were split."""
    before = COUNTERS.kernels_split
    outs = kernel.rows(*arguments)
    return outs, COUNTERS.kernels_split > before


@pytest.mark.parametrize("size", [200_000, 200_003, 65_537])
def test_one_stage(size):
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    kernel = native.build(mean_square())
    (got,), was_split = split(kernel, [x, np.full(1, size, np.float32)], 0)
    assert was_split and got.shape == (1,)
    np.testing.assert_allclose(got, math.fsum((x.astype(float) ** 2).tolist()) / size, rtol=1e-6)
    (again,) = kernel.rows([x * 2, np.full(1, size, np.float32)], 0)
    np.testing.assert_allclose(again, got * 4, rtol=1e-6)


@pytest.mark.parametrize("dtype, rtol", [("f32", 1e-5), ("f64", 1e-12)])
def test_stages_follow_each_other(dtype, rtol):
    x = np.random.default_rng(0).normal(size=100_001).astype({"f32": np.float32, "f64": np.float64}[dtype]) * 3
    (got, total), was_split = split(native.build(softmax(dtype)), [x], 0)
    exact = np.exp(x.astype(float))
    assert was_split
    np.testing.assert_allclose(got, exact / exact.sum(), rtol=rtol)
    np.testing.assert_allclose(total, [np.log(exact.sum())], rtol=rtol)


def test_narrow_tables_and_several_axes():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50_000, 5))
    kernel = native.build(softmax("f64"))
    (got, _), was_split = split(kernel, [table], 0)
    assert was_split
    np.testing.assert_allclose(got, np.exp(table) / np.exp(table).sum(0), rtol=1e-12)
    block = rng.normal(size=(50, 40, 60))
    (got, total) = kernel.rows([block], (0, 1, 2))
    assert total.shape == (1, 1, 1)
    np.testing.assert_allclose(got, np.exp(block) / np.exp(block).sum(), rtol=1e-12)


@pytest.mark.parametrize("step", [2, -1])
def test_strided_rows(step):
    x = np.random.default_rng(0).normal(size=400_000)[::step]
    (got, _) = native.build(softmax("f64")).rows([x], 0)
    np.testing.assert_allclose(got, np.exp(x) / np.exp(x).sum(), rtol=1e-12)


def test_given_outputs_are_written():
    x = np.random.default_rng(0).normal(size=(1, 150_000))
    out, total = np.zeros((1, 300_000))[:, ::2], np.zeros((1, 1))
    native.build(softmax("f64")).rows([x], 1, [out, total])
    np.testing.assert_allclose(out, np.exp(x) / np.exp(x).sum(), rtol=1e-12)
    np.testing.assert_allclose(total, np.log(np.exp(x).sum()), rtol=1e-12)


def test_any_all_and_prod():
    x = load(0, "f64")
    loop = Loop("truths", (Operand("f64"),), tuple(Operand(d, True) for d in ("bool", "bool", "f64", "i64")), (
        Stage(reductions=(Reduction("any", x > 3), Reduction("all", x > -9), Reduction("prod", x),
                          Reduction("sum", cast(x > 0, "i64")))),
    ), tuple((k, reduction(k, d)) for k, d in enumerate(("bool", "bool", "f64", "i64"))))  # fmt: skip
    values = 1 + np.random.default_rng(0).normal(size=120_000) * 1e-3
    (some, every, product, count), was_split = split(native.build(loop), [values], 0)
    assert was_split and not some[0] and every[0] and count[0] == 120_000
    np.testing.assert_allclose(product[0], math.exp(math.fsum(np.log(values).tolist())), rtol=1e-9)
    values[77_777] = 4
    assert native.build(loop).rows([values], 0)[0][0]


def test_loops_that_read_the_index_are_not_split():
    x = load(0, "f32")
    at = Loop("at", (Operand("f32"),), (Operand("i64", True),),
              (Stage(reductions=(Reduction("argmax", x),)),), ((0, reduction(0, "i64")),))  # fmt: skip
    weighed = Loop("weighed", (Operand("f32"),), (Operand("f32", True),),
                   (Stage(reductions=(Reduction("sum", x * cast(index(), "f32")),)),),
                   ((0, reduction(0, "f32")),))  # fmt: skip
    assert not can_split_rows(at) and not can_split_rows(weighed) and can_split_rows(softmax())
    values = np.zeros(300_000, np.float32)
    values[200_000] = 1
    assert native.build(at).rows([values], 0)[0][0] == 200_000
    assert native.build(weighed).rows([values], 0)[0][0] == 200_000


def test_one_thread_and_several_agree():
    x = np.random.default_rng(0).normal(size=1_000_000).astype(np.float32)
    several = native.build(softmax()).rows([x], 0)[1]
    wf.set_num_threads(1)
    (_, total), was_split = split(native.build(softmax()), [x], 0)
    assert not was_split
    np.testing.assert_allclose(total, several, rtol=1e-6)
