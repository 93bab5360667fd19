"""Exports without timing, and the files they write run in ONNX Runtime."""

from functools import partial

import numpy as np
import pytest

import wayfare as wf

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

# No function of ours between: errors name the line that exports.
export = partial(wf.onnx.export, timed=False)


def run(path, *arrays):
    """What a file gives for these, in the order of its inputs."""
    session = runtime.InferenceSession(str(path))
    return session.run(None, {i.name: np.asarray(a) for i, a in zip(session.get_inputs(), arrays, strict=True)})


def same(path, function, *inputs):
    """Does the file give what the function gives on these?"""
    made = function(*inputs)
    wanted = made if isinstance(made, tuple) else (made,)
    for g, w in zip(run(path, *[i.numpy() for i in inputs]), wanted, strict=True):
        np.testing.assert_allclose(g, w.detach().numpy(), rtol=1e-4, atol=1e-5)


def kinds(path):
    """The operators of a model, those inside others too."""
    found, waiting = [], [onnx.load(path).graph]
    while waiting:
        for node in waiting.pop().node:
            found.append(node.op_type)
            waiting += [a.g for a in node.attribute if a.HasField("g")]
    return found
