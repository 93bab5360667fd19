"""Every record whose formula becomes a loop, in CUDA C: elementwise forwards and gradients, reductions, composites.

Each test takes one record: all its loops, for every dtype and several layouts. They are compiled for a GPU (PTX), and
run in emulation against the interpreter.
"""

import zlib

import numpy as np
import pytest

from tests.gpu.cases import Case, compile_cases, needs_compiler, needs_nvrtc, recorded, run_cases
from tests.test_every_record_native import DTYPES, FORMS, GRADIENTS, grown, has_form, layouts
from wayfare.api.testing.every_op import samples_of
from wayfare.codegen.runtime import kernel
from wayfare.core.op import REGISTRY, joint, raw_ops
from wayfare.core.spec import OF_NUMPY as DTYPE_OF
from wayfare.core.spec import Spec
from wayfare.errors import DTypeError

pytestmark = [
    pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
# The layouts that lead to different texts; the others differ in sizes and strides only.
LAYOUTS = ("contiguous", "transposed", "backwards", "columns", "numbers")


def distinct_samples(op):
    seen = set()
    for sample in samples_of(op):
        if repr(sample.attrs) not in seen and all(a.size for a in sample.inputs):
            seen.add(repr(sample.attrs))
            yield sample


def forward_cases(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for sample in distinct_samples(op):
        for dtype in DTYPES:
            inputs = grown(op, sample, dtype, rng)
            if inputs is None or not has_form(op, inputs, sample.attrs):
                continue
            native, numbers = op.large.find(tuple(inputs), sample.attrs)
            for how, arrays in layouts(inputs):
                if how in LAYOUTS:
                    yield Case(native.loop, [*arrays, *numbers], None, f"{name} {dtype} {how} {sample.attrs}")


def gradient_cases(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for sample in distinct_samples(op):
        for dtype in sorted({"float32", "float64", "float16"} & set(DTYPES)):
            inputs = grown(op, sample, dtype, rng)
            if inputs is None:
                continue
            y = op.forward(*inputs, **sample.attrs)
            if y.dtype.kind != "f":
                continue
            g = rng.standard_normal(y.shape).astype(y.dtype)
            kept = op.packer((True,) * len(inputs))(y, *inputs)
            found = []
            with recorded(found):
                op.large_vjp(g, kept, (True,) * len(inputs), sample.attrs)
            for case in found:
                case.what = f"gradient of {name} {dtype} {sample.attrs}"
            yield from found


SHAPES = [((70, 33), (0,)), ((70, 33), (1,)), ((70, 33), (0, 1)), ((5, 40, 9), (1,)), ((3, 1, 4), (1,)),
          ((9, 600), (1,)), ((1000,), (0,))]  # fmt: skip


def reduction_cases(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for dtype in DTYPES:
        kind = np.dtype(dtype)
        if kind.kind not in op.kinds:
            continue
        for shape, dim in SHAPES:
            if name in ("argmax", "argmin") and len(dim) > 1:
                continue
            x = (
                rng.uniform(0.5, 1.5, shape).astype(kind)
                if kind.kind == "f"
                else rng.integers(0, 2, shape).astype(kind)
            )
            try:
                op.infer(Spec(shape, DTYPE_OF[kind]), dim=dim, keepdim=False)
            except DTypeError:
                continue
            found = []
            with recorded(found):
                for array in (x, np.asfortranarray(x)[::-1]):
                    op.large(array, dim=dim, keepdim=False)
            for case in found:
                case.what = f"{name} {dtype} {shape} {dim}"
            yield from found


REDUCTIONS = sorted(op.name for op in REGISTRY.values() if op.loop_reduction)
# Records made of several ops, and gradient rules that are: fusion makes rows with several stages of them.
COMPOSITES = sorted(op.name for op in REGISTRY.values()
                    if op.family in ("reduction", "normalisation", "softmax", "loss")
                    and not op.loop_reduction)  # fmt: skip


def composite_cases(name):
    op = REGISTRY[name]
    for sample in samples_of(op):
        for dtype in (np.float64, np.float32, np.float16):
            inputs = [a.astype(dtype) if a.dtype == np.float64 else a for a in sample.inputs]
            found = []
            with recorded(found):
                y = (op.large or op.forward)(*inputs, **sample.attrs)
                run_rules(op, inputs, y, sample.attrs)
            for case in found:
                case.what = f"{name} {np.dtype(dtype)} {sample.attrs}"
            yield from found


def run_rules(op, inputs, y, attrs):
    """Run the gradient rules of an op with one floating-point output."""
    if op.vjp is None or isinstance(y, tuple) or np.asarray(y).dtype.kind != "f":
        return
    g = np.random.default_rng(0).standard_normal(np.shape(y)).astype(np.asarray(y).dtype)
    needs = tuple(a.dtype.kind == "f" for a in inputs)
    kept = op.packer(needs)(np.asarray(y), *inputs)
    if isinstance(op.vjp, joint):
        op.vjp.rule(raw_ops, needs, g, *kept, **attrs)
        return
    for rule, needed in zip(op.vjp, needs, strict=True):
        if rule is not None and needed and not getattr(rule, "refuses", False):
            rule(raw_ops, g, *kept, **attrs)


FAMILIES = {"forward": (forward_cases, FORMS), "gradient": (gradient_cases, GRADIENTS),
            "reduction": (reduction_cases, REDUCTIONS), "composite": (composite_cases, COMPOSITES)}  # fmt: skip
ALL = [(family, name) for family, (_, names) in FAMILIES.items() for name in names]
# Gradients that pass unchanged or have no loop, and records whose samples run no kernel of their own.
WITHOUT = {
    *(("gradient", name) for name in ("add", "digamma", "frac")),
    *(("composite", name) for name in ("adaptive_max_pool", "floored_variance", "max_at", "max_pool", "min_at",
                                       "pool_sum", "sum_to")),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("family, name", ALL)
def test_kernels_agree_with_the_interpreter(family, name):
    cases = list(FAMILIES[family][0](name))
    assert bool(cases) != ((family, name) in WITHOUT), f"{name} gave {len(cases)} kernels"
    run_cases(cases)


@needs_nvrtc
@pytest.mark.parametrize("family, name", ALL)
def test_kernels_compile_for_a_gpu(family, name):
    compile_cases(list(FAMILIES[family][0](name)))
