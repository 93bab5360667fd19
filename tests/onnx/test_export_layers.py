"""Every layer of the library is exported and run in ONNX Runtime at other sizes than its example's."""

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import wayfare as wf
from tests.onnx.layers import ALL, LAYERS, REASONS
from wayfare.onnx.examples import Examples

CASES = [(name, number) for name, cases in LAYERS.items() for number in range(len(cases))]


def test_every_layer_is_tried_or_has_a_reason():
    assert set(ALL) == set(LAYERS) | set(REASONS)
    assert not set(LAYERS) & set(REASONS)


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{number}" for name, number in CASES])
def test_a_layer_gives_the_same_in_onnx_runtime(name, number, tmp_path):
    layer, inputs, axes = LAYERS[name][number]
    names = Examples(layer, inputs, None, None).names
    given = dict(zip(names, axes, strict=True))
    report = wf.onnx.export(layer, inputs, tmp_path / "layer.onnx", dynamic_axes=given, timed=False)
    if any(axes):
        sizes = {tuple(c.sizes.items()) for c in report.checked}
        assert len(sizes) >= 2
    assert report.checked and layer.training
