"""Straight models: names, sizes, constants, files, and what is refused."""

from collections import namedtuple

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, onnx, run
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, ExportError, MissingFileError

BATCH = {"x": {0: "batch"}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


def test_names_come_from_modules_and_parameters(path):
    net = Net()
    report = export(net, (wf.randn(2, 4),), path, dynamic_axes=BATCH)
    model = onnx.load(path)
    assert [n.name for n in model.graph.node] == ["body.0/Gemm", "body.1/Relu", "head/Gemm", "Identity"]
    assert {t.name for t in model.graph.initializer} == {n for n, _ in net.named_parameters()}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.producer_name == "wayfare" and model.opset_import[0].version == 21
    assert {p.key for p in model.metadata_props} >= {"wayfare.function", "wayfare.examples"}
    assert report.nodes == 4 and net.training and net.body[2].training
    (got,) = run(path, np.ones((7, 4), np.float32))
    net.eval()
    assert np.allclose(got, net(wf.ones(7, 4)).detach().numpy(), atol=1e-6)


def test_dropout_is_left_out_and_the_report_says_where(path):
    report = export(lambda x: nn.functional.dropout(x, 0.5) + 1, (wf.randn(2, 4),), path, check_results=False)
    (line,) = report.dropped
    assert line.startswith("test_export.py:") and line in str(report) and list(report.ops) == ["add", ""]


def test_a_size_that_is_not_dynamic_is_checked_by_the_model(path):
    export(Net(), (wf.randn(2, 4),), path)
    with pytest.raises(Exception, match="Got invalid dimensions"):
        run(path, np.ones((3, 4), np.float32))


def test_the_report_fits_a_terminal(path):
    report = wf.onnx.export(Net(), (wf.randn(2, 4),), path, dynamic_axes=BATCH)
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "linear → Gemm ×2" in text and "batch from 1 to 257" in text and "output float32[batch, 3]" in text
    assert set(report.seconds) == {"ONNX Runtime", "Wayfare, compiled"}
    assert report.errors["output"] < 1e-5 and sum(c.fresh for c in report.checked) == 6


def of_sizes(x):
    n, m = x.shape
    flat = x.reshape(n * m)
    mean = x.sum(0) / n
    scaled = x * (1 / m) + x * m**-0.5
    ramp = wf.arange(m) * 2 + wf.arange(1, n + 1)[:, None]
    grid = wf.zeros(n + 1, m) + 3
    part = x[: n // 2, 1:].sum()
    return flat, mean, scaled + ramp, grid, part, wf.full((m,), True), x[n - 1], x.repeat(2, 1)


def test_numbers_that_follow_from_sizes(path):
    axes = {"x": {0: "rows", 1: "columns"}}
    export(of_sizes, (wf.randn(4, 6),), path, dynamic_axes=axes)
    for shape in ((2, 2), (13, 3), (1, 9)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for got, wanted in zip(run(path, x), of_sizes(wf.tensor(x)), strict=True):
            assert got.shape == tuple(wanted.shape) and np.allclose(got, wanted.numpy(), atol=1e-5)


def test_writes_in_place_and_views(path):
    def f(x):
        y = x.clone()
        y[:, 1] = 0
        top = y[0]
        top += 5
        y.mul_(2)
        return y, top

    export(f, (wf.randn(3, 4),), path, dynamic_axes=BATCH)


def test_structures_of_arguments_and_results(path):
    def f(pair, scale, options):
        a, b = pair
        return {"sum": a + b * scale, "rest": [options["w"] - a]}

    report = export(f, ((wf.randn(2, 3), wf.randn(2, 3)), 2.0, {"w": wf.randn(3)}), path)
    assert list(report.inputs) == ["pair_0", "pair_1", "options_w"]
    assert list(report.outputs) == ["sum", "rest"]


def test_tensors_from_outside_keep_their_names(path):
    weight = wf.randn(4, 2)
    export(lambda x: x @ weight, (wf.randn(3, 4),), path, dynamic_axes=BATCH)
    assert "weight" in onnx.load(path).graph.initializer[0].name


def test_constants_are_folded_and_equal_steps_done_once(path):
    weight = wf.randn(4, 4)

    def f(x):
        return (x @ (weight * 2 + 1)).tanh() + (x @ (weight * 2 + 1)).tanh()

    report = export(f, (wf.randn(3, 4),), path, dynamic_axes=BATCH)
    assert report.ops["matmul"].total() == 1 and report.ops["tanh"].total() == 1 and "mul" not in report.ops


def test_what_nobody_uses_is_left_out(path):
    def f(x):
        x.exp().sum()
        return x + 1

    assert "exp" not in export(f, (wf.randn(3),), path).ops


def test_large_weights_go_beside_the_file(tmp_path):
    net = nn.Linear(64, 64)
    report = export(net, (wf.randn(2, 64),), tmp_path / "m.onnx", external_data=True)
    assert [f.name for f in report.files] == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 5000
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    places = [e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"]
    assert places and set(places) == {"m.onnx.data"}


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_other_operator_sets(path, opset):
    export(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), (wf.randn(2, 4),), path, opset=opset)
    assert onnx.load(path).opset_import[0].version == opset


def test_float64_and_integers(path):
    export(lambda x, n: (x.exp() * n.sum(), n // 2), (wf.randn(3, dtype=wf.float64), wf.arange(5)), path)


def test_modules_of_a_function_are_put_into_eval_mode(path):
    norm = nn.BatchNorm1d(4)
    before = norm.running_mean.clone()
    export(lambda x: norm(x), (wf.randn(3, 4),), path, dynamic_axes=BATCH)
    assert norm.training and wf.equal(norm.running_mean, before)


def frozen(x):
    """A branch on a size that none of the examples takes shows when the file is tried."""
    return x * 2 if x.shape[0] > 1 else x + 100


@pytest.mark.parametrize(("function", "example", "words"), [
    (lambda x: x * x.sum().item(), (wf.randn(3),), "item\\(\\) reads a number that depends on the input"),
    (lambda x: wf.tensor(x.tolist()), (wf.randn(3),), "tolist\\(\\) reads"),
    (lambda x: x[x > 0], (wf.randn(3),), "a mask as index: how many elements there are"),
    (lambda x: x + wf.randn(3), (wf.randn(3),), "draws random numbers"),
    (lambda x: 3, (wf.randn(3),), "returns no tensor"),
    (lambda x: object(), (wf.randn(3),), "returns an object of type object"),
])  # fmt: skip
def test_what_cannot_be_exported_is_refused_with_the_line(path, function, example, words):
    with pytest.raises(ExportError, match=words) as caught:
        export(function, example, path)
    assert "test_export.py:" in str(caught.value)
    assert not path.exists()


def test_a_branch_on_a_size_is_not_frozen(path):
    path.write_bytes(b"what was there before")
    with pytest.raises(ExportError, match="batch=1 .*other numbers|different things at different sizes"):
        export(frozen, (wf.randn(2, 3),), path, dynamic_axes=BATCH)
    assert path.read_bytes() == b"what was there before"
    assert [f.name for f in path.parent.iterdir()] == [path.name]


def test_a_node_may_be_called_as_an_output_is(path):
    export(lambda x: x.relu() + 1, (wf.randn(3),), path, output_names=["Relu"])


def test_a_write_to_a_tensor_from_outside_is_refused(path):
    counter = nn.Module()
    counter.register_buffer("calls", wf.zeros(1))

    def f(x):
        counter.calls += 1
        return x + counter.calls

    with pytest.raises(ExportError, match="writes in place to"):
        export(f, (wf.randn(3),), path)


@pytest.mark.parametrize(("options", "kind", "words"), [
    ({"dynamic_axes": {"y": {0: "b"}}}, ArgumentError, "names 'y', and the inputs are x, the outputs output"),
    ({"dynamic_axes": {"x": {5: "b"}}}, ArgumentError, "no axis 5"),
    ({"dynamic_axes": {"x": {0: "a b"}}}, ArgumentError, "cannot be 'a b'"),
    ({"input_names": ["a", "b"]}, ArgumentError, "takes 1 tensors"),
    ({"output_names": ["a", "a"]}, ArgumentError, "returns 1 tensors"),
    ({"output_names": ["x"]}, ArgumentError, "'x' is the name of an input and of an output"),
    ({"opset": 3}, ArgumentError, "opset must be from 18 to"),
])  # fmt: skip
def test_wrong_options_are_named(path, options, kind, words):
    with pytest.raises(kind, match=words):
        export(lambda x: x + 1, (wf.randn(2, 3),), path, **options)


def test_wrong_functions_and_examples_are_named(path, tmp_path):
    with pytest.raises(ArgumentTypeError, match="takes a module or a function, not int"):
        export(3, (wf.randn(2),), path)
    with pytest.raises(ArgumentError, match="has no tensor in it"):
        export(lambda x: x, (3,), path)
    with pytest.raises(ArgumentError, match="list of examples is empty"):
        export(lambda x: x, [], path)
    with pytest.raises(ArgumentError, match="have another form"):
        export(lambda x, n: x + n, [(wf.randn(2), 1), (wf.randn(2), 2)], path)
    with pytest.raises(ArgumentError, match="is not among the dynamic axes"):
        export(lambda x: x, [(wf.randn(2),), (wf.randn(3),)], path)
    with pytest.raises(ArgumentError, match="'n' is 2 elsewhere and 3"):
        axes = {"x": {0: "n"}, "y": {0: "n"}}
        export(lambda x, y: x.sum() + y.sum(), (wf.randn(2), wf.randn(3)), path, dynamic_axes=axes)
    with pytest.raises(MissingFileError, match="there is no folder"):
        export(lambda x: x + 1, (wf.randn(2),), tmp_path / "none" / "m.onnx")
    with pytest.raises(ExportError, match="runs at no other sizes than the example's"):
        export(lambda x: x + wf.ones(2), (wf.randn(2),), path, dynamic_axes=BATCH)


def test_import_does_not_need_onnx():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['onnx'] = None; import wayfare as wf; wf.onnx\n"
        "try: wf.onnx.export(lambda x: x, (wf.ones(2),), 'm.onnx')\n"
        "except wf.errors.ExportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "wayfare[onnx]"' in done.stdout


def test_nothing_dead_is_written_and_maxima_have_no_places(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 2)).eval()
    path = tmp_path / "net.onnx"
    wf.onnx.export(model, (wf.randn(2, 1, 8, 8),), path, dynamic_axes={"input": {0: "batch"}})
    graph = onnx.load(path).graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(read & set(node.output) for node in graph.node)
    assert [len(node.output) for node in graph.node if node.op_type == "MaxPool"] == [1]
    assert {tensor.name for tensor in graph.initializer} <= read


# -- sizes


@pytest.mark.parametrize("function", [
    lambda x: nn.functional.pad(x, (0, x.shape[1] % 4)),
    lambda x: nn.functional.pad(x, (0, -x.shape[1] % 8)),
    lambda x: x[:, : min(5, x.shape[1])],
    lambda x: x.sum(1, keepdim=True).expand(-1, max(6, x.shape[1])),
    lambda x: x[::2, ::3].reshape(-1),
    lambda x: x[1:].reshape(-1)[: x.shape[0] // 2 * 3],
])  # fmt: skip
def test_sizes_that_follow_from_sizes(path, function):
    export(function, (wf.randn(4, 7),), path, dynamic_axes={"x": {0: "rows", 1: "columns"}})
    for shape in ((2, 2), (3, 5), (5, 6), (7, 16), (2, 33)):
        x = wf.randn(*shape)
        np.testing.assert_allclose(run(path, x.numpy())[0], function(x).numpy(), rtol=1e-5)


@pytest.mark.parametrize("function", [
    lambda x: x + wf.linspace(-1, 1, x.shape[1]),
    lambda x: x @ wf.eye(x.shape[1], x.shape[1]) + wf.eye(x.shape[0], x.shape[1]),
    lambda x: x * (x.shape[0] / x.shape[1]) + 2 / x.shape[0],
    lambda x: x.chunk(2, 1)[0],
])  # fmt: skip
@pytest.mark.parametrize("write", [export, wf.export])
def test_constants_that_follow_from_sizes(path, function, write):
    made = write(function, (wf.randn(4, 5),), path, dynamic_axes={"x": {0: "rows", 1: "columns"}})
    for shape in ((1, 1), (3, 2), (7, 6), (2, 33)):
        x = wf.randn(*shape)
        got = run(path, x.numpy())[0] if write is export else made(x).numpy()
        np.testing.assert_allclose(got, function(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_rank_that_depends_on_a_size_is_refused(path):
    with pytest.raises(ExportError, match=r"squeeze gives 2 and 0 dimensions .* rows=1, columns=1 .*squeeze\(dim\)"):
        export(lambda x: x.squeeze(), (wf.randn(4, 5),), path, dynamic_axes={"x": {0: "rows", 1: "columns"}})


def test_a_size_that_the_first_runs_did_not_explain_is_learnt_from_one_that_differs(path):
    patch = nn.Conv2d(3, 4, 4, 4)

    def f(image):
        return patch(image).flatten(2)

    export(f, (wf.randn(2, 3, 16, 16),), path, dynamic_axes={"image": {2: "height", 3: "width"}})
    for height, width in ((4, 9), (23, 29), (15, 40)):
        image = wf.randn(2, 3, height, width)
        assert np.allclose(run(path, image.numpy())[0], f(image).detach().numpy(), atol=1e-5)


# -- integers, and numbers that modules count with


def test_integers_divided_by_integers(path):
    def f(a, b):
        return a // b, a % b, wf.div(a, b, rounding_mode="trunc")

    export(f, (wf.tensor([7, -7, 8]), wf.tensor([2, 3, -3])), path, dynamic_axes={"a": {0: "n"}, "b": {0: "n"}})
    a, b = wf.tensor([-9, 9, 5, -5]), wf.tensor([4, -4, 5, -2])
    for got, wanted in zip(run(path, a.numpy(), b.numpy()), f(a, b), strict=True):
        assert got.tolist() == wanted.tolist()
    with pytest.raises(Exception, match="zero"):
        run(path, a.numpy(), b.numpy() * 0)


def test_a_number_that_a_module_changes_is_a_note(path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * (2 if self.calls > 1000 else 1)

    with pytest.warns(UserWarning, match="Counting.calls changes from call to call"):
        report = export(Counting(), (wf.ones(2),), path)
    assert len(report.notes) == 1


Ends = namedtuple("Ends", "first last")


@pytest.mark.parametrize(("function", "names"), [
    (lambda x: {"scores": x * 2, "parts": (x, x + 1)}, ["scores", "parts_0", "parts_1"]),
    (lambda x: Ends(x[0], x[-1]), ["first", "last"]),
    (lambda x: (x + 1, (x, x * 2)), ["output_0", "output_1", "output_2"]),
    (lambda x: [x + 1], ["output"]),
    (lambda x: {"x": x + 1, "y": x}, ["output_x", "output_y"]),
    (lambda x: {0: x + 1, 1: x}, ["output_0", "output_1"]),
    (lambda x: {"": x + 1}, ["output"]),
])  # fmt: skip
def test_outputs_have_the_names_they_are_returned_by(path, function, names):
    assert list(export(function, (wf.randn(3),), path).outputs) == names


def test_inputs_in_a_dictionary_are_named_by_its_keys(path):
    def f(batch, pair):
        return batch["words"] * pair[0] + batch["tags"] * pair[1]

    given = ({"words": wf.ones(3), "tags": wf.ones(3)}, (wf.ones(3), wf.ones(3)))
    assert list(export(f, given, path).inputs) == ["batch_words", "batch_tags", "pair_0", "pair_1"]


def test_dynamic_axes_may_name_outputs_whose_sizes_follow(path):
    report = export(lambda x: x * 2, (wf.ones(3),), path, dynamic_axes={"x": {0: "n"}, "output": {0: "n"}})
    assert report.outputs == {"output": "float32[n]"}
