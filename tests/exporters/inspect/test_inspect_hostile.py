"""Model files that are of another kind, or made to do harm: each is refused with a sentence that says why."""

import os
import pickle
import re
import shutil

import pytest

import wayfare as wf
from tests.exporters.inspect.by_hand import deep, field, with_graph
from tests.exporters.onnx.exporting import onnx
from wayfare.errors import FileAccessError, FileFormatError, MissingFileError

helper, DataType = onnx.helper, onnx.TensorProto


def refusal(path, contents=None, kind=FileFormatError):
    """The sentence that a file is refused with."""
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(kind) as caught:
        wf.onnx.inspect(path)
    text = str(caught.value)
    assert text.startswith("inspect: ") and text.isprintable() and len(text) < 600
    assert path.name in text
    return text


# -- files of other kinds


@pytest.mark.parametrize(("contents", "words"), [
    (b"", "is empty"), (b"\0" * 1000, "makes no sense"), (b"<!DOCTYPE html><html>", "is a web page"),
    (pickle.dumps({"a": 1}), "is a pickle, which could run any code"), (b"PK\x03\x04" + b"x" * 99, "is a zip archive"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
    (b"\x08\x0a", "no graph"), (b"\x08\x0a" + field(7, b""), "no operator set"),
    (b"\xff" * 100, "makes no sense"), (b"\x3b\x3c", "makes no sense"),
    (b"\x08\x0a\x12\x7fshort", "is cut off.* part of 127 bytes should begin at byte 4, and there are 5"),
    (with_graph(field(1, field(4, b"\xff\xfe"))), "a text that is not UTF-8 (op_type of a NodeProto)"),
    (deep(40), "nested more than 100 deep"),
])  # fmt: skip
def test_files_of_other_kinds_are_named(tmp_path, contents, words):
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), refusal(tmp_path / "m.onnx", contents))


def test_what_is_no_file(tmp_path):
    assert "is a folder" in refusal(tmp_path, kind=FileAccessError)
    assert "there is no file" in refusal(tmp_path / "none", kind=MissingFileError)
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or pipe" in refusal(tmp_path / "pipe", kind=FileAccessError)
    assert "is a device or pipe" in refusal(tmp_path.joinpath("/dev/zero"), kind=FileAccessError)
    wf.save({"a": wf.ones(2)}, tmp_path / "a.safetensors")
    assert "is a safetensors file" in refusal(tmp_path / "a.safetensors")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(3 << 30)  # takes no room on the disk
    assert "has 3,221,225,472 bytes, and an ONNX file at most" in refusal(tmp_path / "large")
    for wrong in (None, 3, b"m", "", "a\0b"):
        with pytest.raises((wf.errors.ArgumentError, wf.errors.ArgumentTypeError), match="inspect: .*path"):
            wf.onnx.inspect(wrong)


# -- graphs


def _float(name, *sizes):
    return helper.make_tensor_value_info(name, DataType.FLOAT, sizes)


def _identity(source, made, **options):
    return helper.make_node("Identity", [source], [made], name=f"to_{made}", **options)


def _weight(**changes):
    tensor = helper.make_tensor("w", DataType.FLOAT, [2, 3], bytes(24), raw=True)
    for name, value in changes.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        elif isinstance(value, list):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


def _written(path, nodes=(), inputs=(), outputs=(), weights=(), metadata=None):
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())


def _inner(*nodes, outputs=()):
    return helper.make_graph(list(nodes), "inner", [], list(outputs))


GRAPHS = {
    "uses 'b' in the node 'to_a' (Identity) before it is made: its nodes are out of order, or go in a circle":
        {"nodes": [_identity("b", "a"), _identity("a", "b")]},
    "uses 'nothing' in the node 'to_a' (Identity), and nothing makes that": {"nodes": [_identity("nothing", "a")]},
    "uses 'a' in the node 'to_a' (Identity) before": {"nodes": [_identity("a", "a")]},
    "two values with the name 'a', one of them a result of the node 'to_a' (Identity)":
        {"nodes": [_identity("x", "a"), _identity("x", "a")], "inputs": [_float("x", 2)]},
    "two values with the name 'x', one of them an input": {"inputs": [_float("x", 2), _float("x", 2)]},
    "two values with the name 'w', one of them a weight": {"weights": [_weight(), _weight()]},
    "two values with the name 'w', one of them a result": {"nodes": [_identity("w", "w")], "weights": [_weight()]},
    "the output 'y', which nothing makes": {"outputs": [_float("y", 2)]},
    "an input without a name": {"inputs": [_float("", 2)]},
    "a weight without a name": {"weights": [_weight(name="")]},
    "a node without an operator": {"nodes": [helper.make_node("", [], ["a"])]},
    r"uses '\x07' in the node '\x1b' (E\x1b[2J), and": {"nodes": [helper.make_node("E\x1b[2J", ["\7"], [], "\x1b")]},
    "a size of -5": {"inputs": [_float("x", -5)]},
    "the unknown element type 99": {"inputs": [helper.make_tensor_value_info("x", 99, [2])]},
    "uses 'b' in the node 'to_c' (Identity)": {
        "nodes": [helper.make_node("If", ["w"], ["y"], then_branch=_inner(_identity("b", "c")), else_branch=_inner()),
                  _identity("w", "b")], "weights": [_weight()]},
    "the output 'q', which": {"nodes": [helper.make_node("If", ["w"], [], then_branch=_inner(outputs=[_float("q")]))],
                              "weights": [_weight()]},
    "as 'wayfare.notes' in its metadata": {"metadata": {"wayfare.notes": "{}"}},
    "a list of texts as 'wayfare.notes'": {"metadata": {"wayfare.notes": "[1]"}},
    "ranges of sizes as 'wayfare.sizes'": {"metadata": {"wayfare.sizes": '{"a": [1]}'}},
    "else than ranges of sizes": {"metadata": {"wayfare.sizes": "[" * 100_000}},
    "than ranges of sizes": {"metadata": {"wayfare.sizes": '{"a": [1, ' + "9" * 5000 + "]}"}},
}  # fmt: skip


@pytest.mark.parametrize("words", GRAPHS)
def test_graphs_that_make_no_sense(tmp_path, words):
    _written(tmp_path / "m.onnx", **GRAPHS[words])
    assert words in refusal(tmp_path / "m.onnx")


@pytest.mark.parametrize(("changes", "words"), [
    ({"dims": [2, 4]}, "24 bytes for the weight 'w', and float32[2, 4] takes 32"),
    ({"dims": [2, 2]}, "takes 16"), ({"dims": []}, "takes 4"), ({"dims": [0]}, "takes 0"),
    ({"dims": [-2, -3]}, "the impossible shape [-2, -3]"), ({"dims": [1] * 65}, "the impossible shape"),
    ({"dims": [2**62, 8]}, "too large to count"), ({"dims": [2**40] * 60}, "too large to count"),
    ({"data_type": 0}, "the unknown element type 0"), ({"data_type": 77}, "the unknown element type 77"),
    ({"data_type": -1}, "the unknown element type -1"),
    ({"float_data": [1.0]}, "stored as raw_data and float_data"),
    ({"raw_data": b"", "float_data": [1.0]}, "1 elements for the weight 'w', and float32[2, 3] takes 6"),
    ({"raw_data": b"", "int64_data": [1] * 6}, "stored as int64_data"),
    ({"data_location": 1}, "both in itself and in another file"),
    ({"data_type": 8}, "stored as raw_data"),
])  # fmt: skip
def test_weights_that_do_not_fit_their_shape(tmp_path, changes, words):
    for where in ("weights", "nodes"):
        tensor = _weight(**changes)
        given = tensor if where == "weights" else helper.make_node("Constant", [], ["c"], value=tensor)
        _written(tmp_path / "m.onnx", **{where: [given]})
        assert words in refusal(tmp_path / "m.onnx")


# -- weights in other files


def _beside(path, entries, dims=(2, 3), names=("w",)):
    tensors = []
    for name, each in zip(names, entries, strict=True):
        tensor = _weight(name=name, dims=dims, data_location=1)
        tensor.ClearField("raw_data")
        for key, value in each:
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    _written(path, weights=tensors)


@pytest.fixture
def model(tmp_path):
    """A folder with a model's place, a good file of weights in it, and a file outside."""
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "good.data").write_bytes(bytes(100))
    (folder / "sub" / "deep.data").write_bytes(bytes(24))
    (tmp_path / "secret").write_bytes(bytes(100))
    return folder / "m.onnx"


@pytest.mark.parametrize("location", ["good.data", "./good.data", "sub/deep.data", "sub//deep.data"])
def test_a_file_in_the_folder_is_fine(model, location, monkeypatch):
    _beside(model, [[("location", location), ("offset", "0"), ("checksum", "?")]])
    assert wf.onnx.inspect(model).weights["w"].file == location
    monkeypatch.chdir(model.parent)
    assert wf.onnx.inspect("m.onnx").weights["w"].bytes == 24


@pytest.mark.parametrize(("location", "words"), [
    ("../secret", "leads out of the model's folder"), ("sub/../../secret", "leads out"), ("..", "leads out"),
    ("/etc/passwd", "is not relative to the model's folder"), ("//server/share", "is not relative"),
    ("", "names no file"), (".", "names no file"), ("/", "names no file"), ("./.", "names no file"),
    ("..\\secret", "is a path of Windows"), ("C:\\secret", "of Windows"), ("c:secret", "of Windows"),
    ("\\\\server\\share", "of Windows"), ("good.data\0", "cannot be printed"), ("a\x1b[2J", "cannot be printed"),
    ("sub", "'sub' is a folder, not a file"), ("good.data/x", "'good.data' is a file, not a folder"),
    ("pipe", "'pipe' is a device or pipe, not a file"), ("link", "'link' is a symbolic link, not a file"),
    ("broken", "'broken' is a symbolic link"), ("here", "'here' is a symbolic link"),
    ("away/secret", "'away' is a symbolic link, not a folder"), ("hard", "has another name elsewhere (a hard link)"),
])  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(model, location, words):
    folder = model.parent
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("../secret")
    (folder / "here").symlink_to("sub/deep.data")  # even one that stays inside: it can be changed
    (folder / "broken").symlink_to("nowhere")
    (folder / "away").symlink_to("..")
    os.link(folder.parent / "secret", folder / "hard")
    _beside(model, [[("location", location)]])
    assert words in refusal(model)


def test_a_weight_is_found_wherever_it_hides(model):
    """In branches, in constants, sparse, and in the defaults of functions."""
    hidden = _weight(data_location=1)
    hidden.ClearField("raw_data")
    hidden.external_data.add(key="location", value="../secret")
    constant = helper.make_node("Constant", [], ["c"], value=hidden)
    graph = helper.make_graph([], "inner", [], [], [hidden])
    sparse = onnx.SparseTensorProto(values=hidden, indices=_weight(), dims=[2])
    function = helper.make_function("d", "F", [], [], [], [helper.make_opsetid("", 21)], attributes=[])
    function.attribute_proto.append(helper.make_attribute("default", hidden))
    graphs = {
        "constant": helper.make_graph([constant], "g", [], []),
        "branch": helper.make_graph([helper.make_node("If", [], [], then_branch=graph)], "g", [], []),
        "branches": helper.make_graph([helper.make_node("Many", [], [], bodies=[graph])], "g", [], []),
        "tensors": helper.make_graph([helper.make_node("Many", [], [], values=[hidden])], "g", [], []),
        "sparse": helper.make_graph([], "g", [], [], sparse_initializer=[sparse]),
        "sparse constant": helper.make_graph([helper.make_node("Constant", [], [], sparse_value=sparse)], "g", [], []),
    }  # fmt: skip
    models = {name: helper.make_model(each) for name, each in graphs.items()}
    models["function"] = helper.make_model(helper.make_graph([], "g", [], []), functions=[function])
    models["training"] = helper.make_model(helper.make_graph([], "g", [], []))
    models["training"].training_info.add().algorithm.CopyFrom(graph)
    for each in models.values():
        assert "leads out of the model's folder" in refusal(model, each.SerializeToString())


def test_a_file_that_is_not_there_is_named(model):
    for location in ("none.data", "sub/none", "none/none", "*/_ORT_MEM_ADDR_/*"):
        _beside(model, [[("location", location)]])
        assert "there is no such file" in refusal(model, kind=MissingFileError)
    _beside(model, [[("location", "x" * 5000)]])
    assert "File name too long" in refusal(model, kind=FileAccessError)


@pytest.mark.parametrize(("entries", "words"), [
    ([("offset", "-1")], "has the offset '-1', which is not a number of bytes"),
    ([("length", "-24")], "has the length '-24'"), ([("offset", "1e1")], "not a number"),
    ([("offset", "")], "not a number"),
    ([("offset", "0x10")], "not a number"), ([("offset", " 1")], "not a number"), ([("offset", "1_0")], "not a number"),
    ([("offset", "٣")], "not a number"), ([("offset", "9" * 5000)], "not a number"),
    ([("offset", "77")], "should end at byte 101 of 'good.data', which has 100"),
    ([("offset", str(2**63))], "should end at byte"), ([("length", str(2**63))], "takes 24 bytes by its shape"),
    ([("length", "23")], "takes 24 bytes by its shape, and 23 in 'good.data'"),
    ([("offset", "0"), ("offset", "8")], "has two entries 'offset'"),
    ([("location", "../secret")], "has two entries 'location'"),
])  # fmt: skip
def test_stretches_that_do_not_fit_their_file(model, entries, words):
    _beside(model, [[("location", "good.data"), *entries]])
    assert words in refusal(model)


def test_stretches_that_overlap_are_refused_however_the_file_is_named(model):
    for second, offset in (("good.data", "23"), ("./good.data", "0"), ("sub/../good.data", "0")):
        _beside(model, [[("location", "good.data")], [("location", second), ("offset", offset)]], names=("v", "w"))
        assert re.search("overlaps the weight|leads out", refusal(model))
    _beside(model, [[("location", "good.data")], [("location", "good.data"), ("offset", "24")]], names=("v", "w"))
    assert len(wf.onnx.inspect(model).weights) == 2
    _beside(model, [[("location", "good.data")]] * 2, names=("v", "w"), dims=(0, 3))
    assert len(wf.onnx.inspect(model).weights) == 2


def test_a_model_that_is_reached_by_a_link_has_its_weights_beside_the_link(model, tmp_path):
    _beside(model, [[("location", "good.data")]])
    (tmp_path / "link.onnx").symlink_to(model)
    assert "there is no such file" in refusal(tmp_path / "link.onnx", kind=MissingFileError)
    shutil.copy(model.parent / "good.data", tmp_path)
    assert wf.onnx.inspect(tmp_path / "link.onnx").weights["w"].file == "good.data"
