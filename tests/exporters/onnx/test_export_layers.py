"""Every layer of the library is exported and run in ONNX Runtime at other sizes than its example's."""

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import wayfare as wf
from tests.exporters.onnx.layers import ALL, LAYERS, REASONS
from wayfare.exporters.examples import Examples

CASES = [(name, number) for name, cases in LAYERS.items() for number in range(len(cases))]


def test_every_layer_is_tried_or_has_a_reason():
    assert set(ALL) == set(LAYERS) | set(REASONS)
    assert not set(LAYERS) & set(REASONS)


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{number}" for name, number in CASES])
def test_a_layer_gives_the_same_in_onnx_runtime(name, number, tmp_path):
    layer, inputs, axes = LAYERS[name][number]
    names = Examples(layer, inputs[0] if isinstance(inputs, list) else inputs, None, None).names
    given = dict(zip(names, axes, strict=True))
    report = wf.onnx.export(layer, inputs, tmp_path / "layer.onnx", dynamic_axes=given, timed=False)
    if any(axes):
        sizes = {tuple(c.sizes.items()) for c in report.checked}
        assert len(sizes) >= 2
    assert report.checked and layer.training


def test_what_changes_the_table_or_draws_is_refused_with_what_to_do(tmp_path):
    words = wf.tensor([[1, 2], [0, 3]])
    for layer in (wf.nn.Embedding(4, 3, max_norm=1.0), wf.nn.EmbeddingBag(4, 3, max_norm=1.0)):
        with pytest.raises(wf.errors.ExportError, match="max_norm writes to the table; scale the whole table once"):
            wf.onnx.export(layer, (words,), tmp_path / "layer.onnx")
    with pytest.raises(wf.errors.ExportError, match="draws random numbers.*Take them as an input"):
        wf.onnx.export(wf.nn.FractionalMaxPool2d(2, output_size=2), (wf.randn(1, 1, 5, 5),), tmp_path / "layer.onnx")


def test_fractional_pooling_with_samples_as_an_input(tmp_path):
    def pool(x, samples):
        return wf.nn.functional.fractional_max_pool2d(x, 2, (3, 2), _random_samples=samples)

    axes = {"x": {0: "batch"}, "samples": {0: "batch"}}
    given = (wf.randn(2, 3, 7, 6), wf.rand(2, 3, 2))
    report = wf.onnx.export(pool, given, tmp_path / "pool.onnx", dynamic_axes=axes, timed=False)
    assert len({tuple(c.sizes.items()) for c in report.checked}) >= 2


def test_an_example_of_which_no_other_size_can_be_made(tmp_path):
    layer, axes = wf.nn.EmbeddingBag(10, 4), {"input": {0: "length"}, "offsets": {0: "bags"}}
    short, long = ((wf.tensor([1, 2]), wf.tensor([0, 1])), (wf.tensor([1, 2, 3, 4, 5]), wf.tensor([0, 1, 1, 3])))
    with pytest.raises(wf.errors.ExportError, match="at no other sizes.*Begin with an example that can be cut short"):
        wf.onnx.export(layer, [short, long], tmp_path / "layer.onnx", dynamic_axes=axes)
    wf.onnx.export(layer, [long, short], tmp_path / "layer.onnx", dynamic_axes=axes, timed=False)
