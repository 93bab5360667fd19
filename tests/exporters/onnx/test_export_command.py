"""`wayfare export` from the command line."""

# ruff: noqa: E402 - without the packages there is nothing to import for

import sys

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import wayfare as wf
from wayfare.cli.main import main

SOURCE = """
import wayfare as wf
from wayfare import nn

net = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 2))

def double(x):
    return x * 2

def calls():
    return [(wf.ones(3),)]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine_to_ship.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_to_ship", None)


def test_a_module_with_inputs_that_are_described(folder, capsys):
    assert main(["export", "mine_to_ship:net", "--out", "m.onnx", "--input", "words=int64[batch=2,5]<50"]) == 0
    assert "words int64[batch, 5]" in capsys.readouterr().out
    assert onnx.load(folder / "m.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_function_with_examples_of_its_own(folder):
    assert main(["export", "mine_to_ship:double", "--out", "m.onnx", "--examples", "mine_to_ship:calls"]) == 0
    assert (folder / "m.onnx").exists()


def test_a_program_of_wayfares_own(folder, capsys):
    arguments = ["export", "mine_to_ship:double", "--out", "m.wf", "--input", "x=float32[length=3]"]
    assert main(arguments) == 0
    assert "m.wf: 1 step" in capsys.readouterr().out
    assert wf.load_program("m.wf")(wf.ones(7)).tolist() == [2.0] * 7
    assert main([*arguments, "--opset", "20"]) == 1
    assert "wayfare export: a program (.wf) has no operator set" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), [
    (["mine_to_ship:nothing"], "mine_to_ship has no 'nothing'"),
    (["not_there:f"], "there is no module 'not_there'"),
    (["mine_to_ship"], "is not of the form module:function"),
    (["mine_to_ship:double"], "there are no examples"),
    (["mine_to_ship:double", "--input", "x=3"], "cannot read the input 'x=3'"),
    (["mine_to_ship:double", "--input", "x=float99[2]"], "there is no dtype 'float99'"),
    (["mine_to_ship:double", "--input", "x=float32[a]"], "'a' is not a size"),
])  # fmt: skip
def test_what_is_wrong_is_said_and_the_status_is_1(folder, capsys, arguments, words):
    assert main(["export", *arguments, "--out", "m.onnx"]) == 1
    assert words in capsys.readouterr().err


def test_the_line_of_whoever_started_the_command_is_not_named(folder, capsys):
    assert main(["export", "mine_to_ship:double", "--out", "m.onnx"]) == 1
    assert "test_export_command" not in capsys.readouterr().err
