"""Ops as models of their own, run in ONNX Runtime."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from wayfare.api.testing.every_op import samples_of  # noqa: E402
from wayfare.core.spec import OF_NUMPY  # noqa: E402
from wayfare.errors import ExportError  # noqa: E402
from wayfare.exporters.onnx.builder import Builder  # noqa: E402
from wayfare.exporters.onnx.graph import OnnxGraph, number_of  # noqa: E402

onnxruntime.set_default_logger_severity(4)
OPSET = 21


def listed(made):
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _attribute(value, open_axes):
    if isinstance(value, OnnxGraph):
        return to_graph(value, open_axes)
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def to_graph(graph, open_axes=False):
    def described(v):
        shape = None if v.shape is None else [None if open_axes else int(n) for n in v.shape]
        return helper.make_tensor_value_info(v.name, number_of(v.dtype), shape)

    nodes = [
        helper.make_node(
            n.kind, n.inputs, n.outputs, n.name, **{k: _attribute(v, open_axes) for k, v in n.attributes.items()}
        )
        for n in graph.nodes
    ]
    return helper.make_graph(
        nodes, graph.name, [described(v) for v in graph.inputs], [described(v) for v in graph.outputs],
        [numpy_helper.from_array(np.array(a, order="C"), k) for k, a in graph.initializers.items()],
    )  # fmt: skip


def finished(builder, open_axes=False):
    """The model of a builder, checked with full shape inference."""
    versions = [helper.make_opsetid("", builder.opset)]
    model = helper.make_model(to_graph(builder.graph, open_axes), opset_imports=versions, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model, arrays):
    """What ONNX Runtime makes of it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, (np.array(a, order="C") for a in arrays), strict=True)))


def write(b, op, arrays, attrs):
    """Enter an op with inputs and outputs of its own; those of its results that are there, by number."""
    inputs = [b.input("input", OF_NUMPY[a.dtype], a.shape) for a in arrays]
    made = listed(b.apply(op, inputs, attrs))
    for value in made:
        if value is not None:
            b.output("output", value, value.shape)
    return [i for i, value in enumerate(made) if value is not None]


def single(op, arrays, attrs=None, opset=OPSET):
    """The results of one op on some arrays, by ONNX Runtime."""
    b = Builder(opset)
    write(b, op, arrays, attrs or {})
    return run(finished(b), arrays)


def usable_samples(op, dtype):
    """The samples of an op in a dtype, but for those that its rule refuses: dropout that drops."""
    usable, refused = [], 0
    for sample in samples_of(op):
        arrays = [a.astype(dtype) if a.dtype == np.float64 else a for a in sample.inputs]
        try:
            write(Builder(OPSET), op, arrays, sample.attrs)
            usable.append((arrays, sample.attrs))
        except ExportError as error:
            assert "at random" in str(error), error
            refused += 1
    return usable, refused


def check(op, dtype=np.float32, opset=OPSET):
    """All samples of an op in one model, by ONNX Runtime against the op itself; how many, and the greatest error."""
    samples, _ = usable_samples(op, dtype)
    assert samples, f"{op.name}: its rule refuses every sample"
    b = Builder(opset)
    given, want = [], []
    for arrays, attrs in samples:
        given += arrays
        made = [np.asarray(m) for m in listed(op.forward(*arrays, **attrs))]
        want += [(made[i], attrs) for i in write(b, op, arrays, attrs)]
    worst = 0.0
    for got, (expected, attrs) in zip(run(finished(b), given), want, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape, f"{op.name} {attrs}: {got.dtype}{got.shape}"
        near = 1e-5 if dtype == np.float32 else 1e-7
        np.testing.assert_allclose(got, expected, rtol=5 * near, atol=near, err_msg=f"{op.name} {attrs}")
        if expected.dtype.kind == "f" and expected.size:
            finite = np.isfinite(expected)
            worst = max(worst, float(np.abs(got[finite] - expected[finite]).max(initial=0)))
    return len(samples), worst
