"""Every op with an ONNX rule, exported alone and run in ONNX Runtime on the samples of its record."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.exporters.onnx.alone import check, onnxruntime, single, usable_samples
from tools.make_onnx_ops import without_rule
from wayfare.core.op import REGISTRY, NotExportable
from wayfare.exporters.onnx.builder import Builder, rule_of
from wayfare.ops._define import elementwise

ROOT = Path(__file__).resolve().parents[3]
ALL = sorted(REGISTRY)
WITH_RULE = [name for name in ALL if not isinstance(rule_of(REGISTRY[name]), NotExportable)]
WITHOUT = [name for name in ALL if name not in WITH_RULE]
# What ONNX Runtime has no double-precision kernels for.
SINGLE_ONLY = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "col2im", "conv", "conv_bias", "conv_input",
    "conv_weight", "cosh", "det", "erf", "erfc", "gelu", "gru_sequence", "im2col", "lstm_sequence", "ndtr",
    "pool_spread", "pool_sum", "rnn_relu_sequence", "rnn_tanh_sequence", "sinh", "tan",
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_RULE)
def test_exported_alone_it_does_the_same_in_onnx_runtime(name):
    count, _ = check(REGISTRY[name])
    assert count > 0


@pytest.mark.parametrize("name", sorted(set(WITH_RULE) - SINGLE_ONLY))
def test_in_double_precision(name):
    check(REGISTRY[name], np.float64)


@pytest.mark.parametrize("name", sorted(SINGLE_ONLY))
def test_what_is_said_to_be_single_only_is(name):
    # When ONNX Runtime learns it, it leaves the list.
    with pytest.raises(Exception, match="NOT_IMPLEMENTED|does not support double"):
        check(REGISTRY[name], np.float64)


@pytest.mark.parametrize("name", ["layer_norm", "gelu", "max_pool", "sum", "cumprod", "attention", "reshape", "sort",
                                  "inv", "gcd", "mode", "erfinv", "zeta", "conv_weight", "pool_spread",
                                  "max_pool_spread"])
@pytest.mark.parametrize("opset", [18, 19, 20, 22, 23])
def test_other_versions_of_the_operator_set(name, opset):
    check(REGISTRY[name], opset=opset)


def test_how_many_there_are(capsys):
    samples = sum(len(usable_samples(REGISTRY[name], np.float32)[0]) for name in WITH_RULE)
    with capsys.disabled():
        print(f"\n{len(WITH_RULE)} of {len(ALL)} ops have an ONNX rule, checked on {samples} samples by ONNX Runtime "
              f"{onnxruntime.__version__}; {len(WITHOUT)} have a reason why not.")  # fmt: skip
    assert len(WITH_RULE) >= 270 and samples > 1300


@pytest.mark.parametrize("name", WITHOUT)
def test_an_op_without_a_rule_says_why(name):
    rule = REGISTRY[name].onnx
    assert isinstance(rule, NotExportable) and len(rule.reason.split()) >= 4


def test_a_refused_op_is_named_with_its_reason():
    with pytest.raises(Exception, match="svd has no meaning in ONNX: the signs of its vectors"):
        single(REGISTRY["svd"], [np.eye(2, dtype=np.float32)], {"full_matrices": False})


def test_dropout_that_drops_is_refused_with_what_to_do():
    b = Builder()
    x = b.input("x", REGISTRY["cast"].samples(np.random.default_rng(0))[0].attrs["dtype"], (2,))
    with pytest.raises(Exception, match=r"dropout cannot be written in ONNX here: it drops .* call \.eval\(\)"):
        b.apply(REGISTRY["dropout"], [x], {"p": 0.5, "key": (1, 2), "shape": (2,)})


@pytest.fixture
def new_op():
    made = []

    def make(**parts):
        made.append(elementwise("new_for_the_tests", formula=lambda m, x: m.exp(x) * 2 + x, reference=abs, **parts))
        return made[-1]

    yield make
    for op in made:
        del REGISTRY[op.name]


def test_a_rule_is_derived_from_the_formula(new_op):
    assert check(new_op())[1] < 1e-5


def test_the_check_can_fail(new_op):
    with pytest.raises(AssertionError):
        check(new_op(onnx="Relu"))


def test_a_rule_of_the_wrong_dtype_is_found(new_op):
    with pytest.raises(Exception, match="the ONNX rule of new_for_the_tests gives .* where the op gives"):
        check(new_op(onnx=lambda b, x: x > 0))


def test_the_page_about_it_is_up_to_date():
    command = [sys.executable, "tools/make_onnx_ops.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_coverage_page_lists_what_has_no_rule():
    assert "\n".join(without_rule()) in (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
