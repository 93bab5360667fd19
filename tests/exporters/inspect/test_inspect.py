"""What `wf.onnx.inspect` and `wayfare inspect` say of good files."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.bundle.models import doubled, make_net
from tests.exporters.onnx.exporting import export, onnx
from wayfare import nn
from wayfare.cli.main import main
from wayfare.exporters.inspect.layout import plain

helper, DataType = onnx.helper, onnx.TensorProto


@pytest.fixture
def net():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 2))


def clipped(x):
    if x.norm() > 1:
        x = x / x.norm()
    return x * 2


def built(nodes, inputs=(), outputs=(), weights=(), **options):
    """A model of ONNX's own making."""
    graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], **options)


def test_the_text_of_a_file_of_ours(path, net):
    export(net, (wf.ones(2, 3),), path, ["x"], dynamic_axes={"x": {0: "batch"}}, metadata={"licence": "MIT"})
    assert str(wf.onnx.inspect(path)) == f"""\
model.onnx: 4 nodes, 9.38 KB of weights, opset 21
  written   by wayfare {wf.__version__} from Sequential
  name      model
  inputs    x float32[batch, 3]
  outputs   output float32[batch, 2]
  operators Gemm ×2; Identity; Relu
  weights   4 tensors, 9.38 KB, in the file
  sizes     batch from 1 to 257; others were not tried
  metadata  licence = MIT"""


def test_its_parts(path, net):
    report = export(net, (wf.ones(2, 3),), path, ["x"], dynamic_axes={"x": {0: "batch"}})
    found = wf.onnx.inspect(path)
    assert (found.inputs, found.outputs, found.opset) == (report.inputs, report.outputs, report.opset)
    assert found.sizes == report.ranges == {"batch": (1, 257)} and found.notes == []
    assert found.operators == {"Gemm": 2, "Relu": 1, "Identity": 1} and found.opsets == {"ai.onnx": 21}
    assert found.producer == f"wayfare {wf.__version__}" and found.name == "model" and found.fault == ""
    assert found.path == path and found.bytes == path.stat().st_size
    first = found.nodes[0]
    assert (first.name, first.operator, first.op) == ("0/Gemm", "Gemm", "linear")
    assert first.line.startswith("exporting.py:") or first.line.startswith("test_inspect.py:")
    weight = found.weights["0.weight"]
    assert (weight.dtype, weight.shape, weight.bytes, weight.file) == ("float32", (400, 3), 4800, "")
    assert str(weight) == "float32[400, 3]"


def test_weights_beside_the_file_are_found_and_not_opened(path, net, monkeypatch):
    export(net, (wf.ones(2, 3),), path, external_data=True)
    real, opened = os.open, []
    monkeypatch.setattr(os, "open", lambda *args, **options: (opened.append(args[0]), real(*args, **options))[1])
    found = wf.onnx.inspect(path)
    assert [os.path.basename(name) for name in opened] == ["model.onnx"]
    assert "3 tensors, 9.38 KB, in model.onnx.data; 1 tensor, 8 B, in the file" in " ".join(str(found).split())
    assert found.weights["2.weight"].file == "model.onnx.data"


def test_nodes_inside_decisions_and_loops_count(path):
    examples = [(wf.tensor([0.1, 0.2]),), (wf.tensor([3.0, 4.0]),)]
    report = export(clipped, examples, path)
    found = wf.onnx.inspect(path)
    assert len(found.nodes) == report.nodes and found.operators["Div"] == found.operators["If"] == 1
    assert next(n for n in found.nodes if n.operator == "Div").op == "div"
    export(doubled, (wf.ones(3),), path)
    assert wf.onnx.inspect(path).operators["Loop"] == 1


def test_notes_are_shown(path):
    def two(x):
        if x.sum() > 0:
            x = x + 1
        return x * 2 if x.max() > 1 else x

    shown = [(wf.tensor([0.1, 0.2]),), (wf.tensor([-3.0, -4.0]),), (wf.tensor([2.0, 3.0]),)]
    with pytest.warns(UserWarning, match="combinations"):
        report = export(two, shown, path)
    found = wf.onnx.inspect(path)
    assert found.notes == report.notes and "note" in str(found)


def test_files_of_others(path):
    """Sequences, optional inputs, other operator sets, functions, weights inside branches, every element type."""
    tensor_type = helper.make_tensor_type_proto(DataType.FLOAT, ["n", None, 3])
    inputs = [
        helper.make_value_info("s", helper.make_sequence_type_proto(tensor_type)),
        helper.make_value_info("o", helper.make_optional_type_proto(tensor_type)),
        helper.make_value_info("m", helper.make_map_type_proto(DataType.INT64, tensor_type)),
        helper.make_sparse_tensor_value_info("p", DataType.DOUBLE, [2, 2]),
        helper.make_value_info("free", helper.make_tensor_type_proto(DataType.STRING, None)),
        helper.make_tensor_value_info("c", DataType.BOOL, []), helper.make_tensor_value_info("w", DataType.FLOAT, [2]),
    ]  # fmt: skip
    branch = [helper.make_graph([helper.make_node("Identity", ["k"], [f"r{i}"])], "b", [],
                                [helper.make_tensor_value_info(f"r{i}", DataType.FLOAT, [1])],
                                [helper.make_tensor("k", DataType.FLOAT, [1], [i])]) for i in range(2)]  # fmt: skip
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
             helper.make_node("Half", ["y"], ["z"], domain="mine")]  # fmt: skip
    function = helper.make_function("mine", "Half", ["a"], ["b"], [helper.make_node("Identity", ["a"], ["b"])],
                                    [helper.make_opsetid("", 21)])  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", DataType.FLOAT, None)],
                              [helper.make_tensor("w", DataType.FLOAT, [2], [1, 2])])  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 3)]
    onnx.save(helper.make_model(graph, functions=[function], opset_imports=opsets), path)
    found = wf.onnx.inspect(path)
    assert found.inputs == {
        "s": "sequence of float32[n, ?, 3]", "o": "optional of float32[n, ?, 3]",
        "m": "map from int64 to float32[n, ?, 3]", "p": "sparse float64[2, 2]", "free": "string[…]", "c": "bool[]",
    }  # fmt: skip
    assert found.opsets == {"ai.onnx": 21, "mine": 3} and "opsets    mine 3" in str(found)
    assert found.operators == {"Identity": 3, "If": 1, "mine.Half": 1}
    assert set(found.weights) == {"w", "k", "k (2)"} and "'shape' of 'type' is required" in found.fault


@pytest.mark.parametrize("number", sorted(n for n in DataType.DataType.values() if n))
@pytest.mark.parametrize("raw", [True, False])
def test_every_element_type_has_its_size(path, number, raw):
    values = [b"a", b"bcd", b""] if number == DataType.STRING else np.zeros(3)
    if raw and number != DataType.STRING:
        tensor = onnx.numpy_helper.from_array(np.zeros(3, helper.tensor_dtype_to_np_dtype(number)), "w")
        assert tensor.data_type == number
    else:
        tensor = helper.make_tensor("w", number, [3], values)
    onnx.save(built([], weights=[tensor]), path)
    found = wf.onnx.inspect(path).weights["w"]
    bits = re.search(r"\d+", found.dtype.replace("bool", "8"))
    assert found.bytes == (4 if bits is None else (3 * int(bits[0]) + 7) // 8) and found.shape == (3,)
    tensor.dims[0] = 900
    onnx.save(built([], weights=[tensor]), path)
    with pytest.raises(wf.errors.FileFormatError, match=r"for the weight 'w', and \w+\[900\] takes"):
        wf.onnx.inspect(path)


def test_what_the_checker_says_is_shown_and_no_reason_to_refuse(path):
    x, y = (helper.make_tensor_value_info(n, DataType.FLOAT, [2]) for n in "xy")
    onnx.save(built([helper.make_node("Add", ["x"], ["y"])], [x], [y]), path)
    found = wf.onnx.inspect(path)
    assert "input size" in found.fault and "  fault     " in str(found)


def test_at_most_80_columns_and_so_many_of_each(path):
    nodes = [helper.make_node("Operator" * 30 + str(i), ["x" * 200], [f"y{i}"], domain="d") for i in range(100)]
    inputs = [helper.make_tensor_value_info(name, DataType.FLOAT, [2] * 60)
              for name in ["x" * 200, *map(str, range(99))]]  # fmt: skip
    model = built(nodes, inputs, producer_name="p" * 300)
    helper.set_model_props(model, {f"key{i}": "long " * 400 for i in range(100)})
    onnx.save(model, path)
    found = wf.onnx.inspect(path)
    assert len(found.nodes) == len(found.inputs) == 100
    assert max(map(len, str(found).splitlines())) <= 80 and "and 60 more" in str(found)
    assert len(str(found)) < 60_000


def test_control_characters_do_not_reach_a_terminal(path):
    model = built([helper.make_node("Identity", ["x\x1b[2J"], ["y\u202e"], name="n\x9b", domain="d\r")],
                  [helper.make_tensor_value_info("x\x1b[2J", DataType.FLOAT, ["b\x07"])],
                  [helper.make_tensor_value_info("y\u202e", DataType.FLOAT, [])], producer_name="p\x1b]0;t\x07")
    helper.set_model_props(model, {"a\x1bc": "v\n\x1b[31m", "wayfare.notes": '["n\\u001b[1m"]'})
    onnx.save(model, path)
    found = wf.onnx.inspect(path)
    assert str(found).replace("\n", "").isprintable() and r"x\x1b[2J float32[b\x07]" in str(found)
    assert found.notes == ["n\x1b[1m"] and list(found.inputs) == ["x\x1b[2J"]  # the parts are as they are
    assert plain("a\tb\ud800") == r"a\tb\ud800" and plain("größe") == "größe"


# -- the command


def test_the_command_shows_models(path, net, capsys):
    export(net, (wf.ones(2, 3),), path)
    assert main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out == f"{wf.onnx.inspect(path)}\n"


def test_the_command_shows_programs_whatever_they_are_called(path, capsys):
    make_net(path)
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["model.onnx: 38 steps, 4.21 KB of weights", "  written   by wf.export from Net",
                         "  inputs    ids i64[batch, time]; scale f32[5]"]  # fmt: skip
    assert lines[-1] == "  weights   23 tensors, 4.21 KB, in the file" and max(map(len, lines)) <= 80
    with pytest.raises(wf.errors.FileFormatError, match=r"is a safetensors file.*wf\.load_program"):
        wf.onnx.inspect(path)


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    for contents, words in ((b"<html>", "is a web page"), (b"", "is empty"), (b"\0" * 99, "makes no sense")):
        (tmp_path / "a\x1b.onnx").write_bytes(contents)
        assert main(["inspect", str(tmp_path / "a\x1b.onnx")]) == 1
        said = capsys.readouterr().err
        assert said.startswith("wayfare inspect: '") and words in said and said.count("\n") == 1
        assert said.rstrip("\n").isprintable()
    wf.save({"a": wf.ones(2)}, tmp_path / "a.wf")
    assert main(["inspect", str(tmp_path / "a.wf")]) == 1
    assert "wayfare inspect: " in (said := capsys.readouterr().err) and "holds tensors and no program" in said


def test_without_the_package_the_way_out_is_named(path):
    path.write_bytes(b"")
    code = "import sys; sys.modules['onnx'] = None; import wayfare as wf; wf.onnx.inspect(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert 'inspect: the package onnx is not installed' in done.stderr and "wayfare[onnx]" in done.stderr
