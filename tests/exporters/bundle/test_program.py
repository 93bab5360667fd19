"""wf.export and wf.load_program: a file that does what the function did, without the function."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.bundle.models import doubled, make_net, repeated, unpacked
from wayfare.errors import ArgumentError, DTypeError, ExportError, FileFormatError, MissingFileError, ShapeError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.wf"
    module, program = make_net(path)
    return module, program, path


def _same(got, want):
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (list, tuple)):
        for a, b in zip(got, want, strict=True):
            _same(a, b)
    elif isinstance(want, wf.Tensor):
        assert got.dtype is want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    else:
        assert got == want


@pytest.mark.parametrize("batch, time", [(2, 6), (1, 2), (5, 9), (3, 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_it_does_what_the_module_does_at_other_sizes(net, batch, time, sign):
    module, program, _ = net
    ids, scale = wf.randint(0, 7, (batch, time)), wf.ones(5) * sign
    with wf.no_grad():
        _same(program(ids, scale), module(ids, scale))
        _same(program(scale=scale, ids=ids), module(ids, scale))


def test_calls_are_replayed(tmp_path):
    program = wf.export(wf.nn.Linear(5, 3), (wf.rand(5),), tmp_path / "a.wf")
    with wf.no_grad():
        for _ in range(8):
            program(wf.rand(5))
    said = str(program._run.explain())
    assert "because it calls" not in said and re.search(r"Linear: 8 calls, [1-9]\d* replayed", said), said


def test_it_tells_what_it_is(net):
    module, program, _ = net
    assert repr(program).startswith("<program Net(ids: i64[batch, time], scale: f32[5]) → joined, at, pooled, ")
    assert program.ops["lstm_sequence"] == 1 and program.ops["if"] == 1
    weights = program.state_dict()
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(weights[name].numpy(), parameter.detach().numpy())


def test_gradients_go_through(net):
    _, program, _ = net
    scale = wf.ones(5).requires_grad_()
    program(wf.randint(0, 7, (2, 3)), scale)["joined"].sum().backward()
    assert scale.grad is not None and np.isfinite(scale.grad.numpy()).all()


def test_a_loop_over_a_size(tmp_path):
    program = wf.export(repeated, (wf.randn(3, 5),), tmp_path / "a.wf", dynamic_axes={"x": {0: "batch", 1: "time"}})
    assert program.ops["loop"] == 1
    for shape in ((3, 5), (2, 9), (4, 1)):
        x = wf.randn(*shape)
        _same(program(x), repeated(x))


def test_a_loop_that_nothing_depends_on_is_left_out(tmp_path):
    def f(x):
        unused, kept = x[0], x[0]
        for row in x:
            unused = unused + row
        for row in x:
            kept = (kept + row).tanh()
        return kept

    program = wf.export(f, (wf.randn(3, 5),), tmp_path / "a.wf", dynamic_axes={"x": {0: "batch"}})
    assert program.ops["loop"] == 1
    for rows in (3, 1, 6):
        x = wf.randn(rows, 5)
        _same(program(x), f(x))


def test_a_loop_until_a_value(tmp_path):
    program = wf.export(doubled, (wf.ones(3),), tmp_path / "a.wf")
    for x in (wf.ones(3), wf.ones(3) * 0.01, wf.ones(3) * 90):
        _same(program(x), doubled(x))


def test_both_ways_of_a_decision_inside_another(tmp_path):
    def f(x):
        if x.sum() > 0:
            return x * 2 if x[0] > 1 else x + 5
        return x - 1

    examples = [(wf.tensor([2.0, 1.0]),), (wf.tensor([0.5, 1.0]),), (wf.tensor([-2.0, 1.0]),)]
    program = wf.export(f, examples, tmp_path / "a.wf")
    for (x,) in examples:
        _same(program(x), f(x))


def test_results_keep_their_form(tmp_path):
    def f(x):
        return {"a": [x, (x + 1,)], "b": 2.5, "c": None, "d": "text", "e": True}

    x = wf.randn(2)
    _same(wf.export(f, (x,), tmp_path / "a.wf")(x), f(x))


@pytest.mark.parametrize("dtype", [wf.float64, wf.float16, wf.int64, wf.uint8, wf.bool])
def test_every_dtype(tmp_path, dtype):
    def f(x):
        return wf.cat([x, x]).flip(0), (x == x).sum()

    x = wf.tensor([1, 0, 1]).to(dtype)
    _same(wf.export(f, (x,), tmp_path / "a.wf")(x), f(x))


def test_numbers_that_json_has_not(tmp_path):
    def f(x):
        return x.clamp(-float("inf"), 1.0).masked_fill(x > 2, -float("inf")), wf.nan_to_num(x, nan=float("inf"))

    x = wf.tensor([1.0, 3.0, float("nan")])
    _same(wf.export(f, (x,), tmp_path / "a.wf")(x), f(x))


def test_it_runs_where_the_source_is_not(net, tmp_path):
    module, _, path = net
    ids, scale = wf.randint(0, 7, (2, 4)), wf.ones(5)
    wf.save({"ids": ids, "scale": scale}, tmp_path / "in.safetensors")
    script = (
        "import sys, wayfare as wf\n"
        "program = wf.load_program(sys.argv[1])\n"
        "given = wf.load(sys.argv[2])\n"
        "wf.save(program(**given), sys.argv[3])\n"
        "assert 'onnx' not in sys.modules and not any(name.startswith('tests') for name in sys.modules)\n"
    )
    files = [str(path), str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors")]
    done = subprocess.run([sys.executable, "-c", script, *files], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr
    with wf.no_grad():
        _same(wf.load(tmp_path / "out.safetensors"), module(ids, scale))


def test_without_compiling(net):
    module, _, path = net
    program = wf.load_program(path, compiled=False)
    with wf.no_grad():
        ids, scale = wf.randint(0, 7, (3, 4)), -wf.ones(5)
        _same(program(ids, scale), module(ids, scale))


def test_the_graph_names_ops_and_nothing_else(net):
    document, _ = unpacked(net[2])
    text = str(document)
    assert "tests" not in text and ".py" not in text and "lambda" not in text


# -- bad input --------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named(net):
    _, program, _ = net
    ids, scale = wf.randint(0, 7, (2, 4)), wf.ones(5)
    with pytest.raises(ArgumentError, match="takes ids, scale; it was given 1 in order"):
        program(ids)
    with pytest.raises(ArgumentError, match="takes ids, scale"):
        program(ids, ids=ids)
    with pytest.raises(TypeError, match="input 'ids' must be a tensor, not list"):
        program([1], scale)
    with pytest.raises(DTypeError, match=r"input 'ids' must be i64\[batch, time\], it is f32"):
        program(ids.float(), scale)
    with pytest.raises(ShapeError, match=r"input 'scale' must be f32\[5\], it is f32\[4\]"):
        program(ids, scale[:4])
    with pytest.raises(ShapeError, match="input 'ids' must be"):
        program(ids[0], scale)


def test_arguments_that_fitted_once_say_nothing_of_others(tmp_path):
    program = wf.export(lambda x, y: x + y, (wf.ones(2, 3), wf.ones(3)), tmp_path / "a.wf", ["x", "y"],
                        dynamic_axes={"x": {0: "batch"}})  # fmt: skip
    for _ in range(3):
        assert program(wf.ones(2, 3), wf.ones(3)).shape == (2, 3)
    for x, y, error in ((wf.ones(2, 4), wf.ones(3), ShapeError), (wf.ones(2, 3), wf.ones(1), ShapeError),
                        (wf.ones(2, 3, dtype=wf.float64), wf.ones(3), DTypeError)):  # fmt: skip
        with pytest.raises(error, match="program: input"):
            program(x, y)
    with pytest.raises(ArgumentError, match="takes x, y"):
        program(wf.ones(2, 3))
    for batch in range(1, 200):
        assert program(wf.ones(batch, 3), wf.ones(3)).shape == (batch, 3)
    assert len(program._fitting) <= 64


def test_equal_names_are_equal_sizes(tmp_path):
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    program = wf.export(lambda x, y: x + y, (wf.ones(3), wf.ones(3)), tmp_path / "a.wf", dynamic_axes=axes)
    with pytest.raises(ShapeError, match="'x' and 'y' must have equal sizes .* not 4 and 5"):
        program(wf.ones(4), wf.ones(5))


def test_files_that_are_no_programs(tmp_path, net):
    with pytest.raises(MissingFileError, match="there is no file"):
        wf.load_program(tmp_path / "none.wf")
    wf.save({"x": wf.ones(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(FileFormatError, match="holds tensors and no program"):
        wf.load_program(tmp_path / "plain.safetensors")
    (tmp_path / "text.wf").write_text("hello, this is no safetensors file")
    with pytest.raises(FileFormatError):
        wf.load_program(tmp_path / "text.wf")
    with pytest.raises(ArgumentError, match="limit must be a number of bytes"):
        wf.load_program(net[2], limit=0)


def test_what_a_file_cannot_hold(tmp_path):
    with pytest.raises(ExportError, match="random"):
        wf.export(lambda x: x + wf.rand(2), (wf.ones(2),), tmp_path / "a.wf")
    with pytest.raises(ExportError, match="keys are not strings"):
        wf.export(lambda x: {1: x}, (wf.ones(2),), tmp_path / "a.wf")
    assert not (tmp_path / "a.wf").exists()


def test_the_limit_holds_for_other_sizes_too(tmp_path):
    wf.export(lambda x: x[:, None] * x, (wf.ones(4),), tmp_path / "a.wf", dynamic_axes={"x": {0: "n"}})
    program = wf.load_program(tmp_path / "a.wf", limit=4000)
    assert program(wf.ones(30)).shape == (30, 30)
    with pytest.raises(RuntimeError, match=r"mul would make a value of shape \[32, 32\], over the 4,000 bytes allowed"):
        program(wf.ones(32))


@pytest.mark.parametrize("compiled", [True, False])
def test_a_loop_that_never_ends_is_ended(tmp_path, compiled):
    def f(x):
        return wf.while_loop(lambda v: v.sum() > -1e9, lambda v: (v * 1,), (x,))

    wf.export(f, (wf.full((3,), -1e10),), tmp_path / "f.wf")
    program = wf.load_program(tmp_path / "f.wf", turns=1000, compiled=compiled)
    with pytest.raises(wf.errors.OperationError, match="turned 1,000 times"):
        program(wf.ones(3))
    with pytest.raises(wf.errors.ArgumentError, match="turns must be a number"):
        wf.load_program(tmp_path / "f.wf", turns=0)


def test_places_that_are_rounded_down(tmp_path):
    def twice(x):
        return x[wf.tensor(np.arange(2 * x.shape[0]) // 2)]

    program = wf.export(twice, (wf.randn(4, 2),), tmp_path / "f.wf", dynamic_axes={"x": {0: "rows"}})
    x = wf.randn(7, 2)
    assert (program(x) == twice(x)).all()
