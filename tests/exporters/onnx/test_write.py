"""Where an export writes: links are replaced and not followed, and what was there is intact after an error."""

import os
import stat

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, onnx, run
from wayfare import nn
from wayfare.errors import ExportError, FileAccessError
from wayfare.exporters.onnx import write

WEIGHTS = wf.arange(600).float().reshape(2, 300)


def doubled(x):
    return x @ WEIGHTS


def ship(path, **options):
    return export(doubled, (wf.ones(3, 2),), path, external_data=True, check_results=False, **options)


@pytest.fixture
def outside(tmp_path):
    """A file of somebody else, and the folder it is in."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("keep me")
    return folder


@pytest.fixture
def path(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "model.onnx"


def beside(path):
    return path.with_name(f"{path.name}.data")


@pytest.mark.parametrize("which", ["model.onnx", "model.onnx.data"])
@pytest.mark.parametrize("kind", ["symbolic", "hard", "nowhere", "to a folder"])
def test_a_link_is_replaced_and_not_written_through(path, outside, which, kind):
    link = path.with_name(which)
    if kind == "hard":
        os.link(outside / "file", link)
    else:
        link.symlink_to({"symbolic": outside / "file", "nowhere": outside / "new", "to a folder": outside}[kind])
    report = ship(path)
    assert report.files == [path, beside(path)]
    assert [f.name for f in outside.iterdir()] == ["file"] and (outside / "file").read_text() == "keep me"
    assert not link.is_symlink() and stat.S_ISREG(link.stat().st_mode) and link.stat().st_nlink == 1
    np.testing.assert_array_equal(run(path, np.ones((1, 2), np.float32).repeat(3, 0))[0][0],
                                  WEIGHTS.numpy().sum(0))  # fmt: skip


@pytest.mark.parametrize(("which", "kind"), [("model.onnx", "folder"), ("model.onnx.data", "folder"),
                                              ("model.onnx", "pipe"), ("model.onnx.data", "pipe")])  # fmt: skip
def test_what_is_no_file_is_not_replaced_and_nothing_else_is_either(path, which, kind):
    ship(path)
    old = {f.name: f.read_bytes() for f in path.parent.iterdir() if f.name != which}
    path.with_name(which).unlink()
    (os.mkdir if kind == "folder" else os.mkfifo)(path.with_name(which))
    with pytest.raises(FileAccessError, match=f"{which}' is a {'folder' if kind == 'folder' else 'device or pipe'}"):
        ship(path, metadata={"new": "yes"})
    assert {f.name: f.read_bytes() for f in path.parent.iterdir() if f.name != which} == old
    assert len(list(path.parent.iterdir())) == 2


def test_a_write_protected_file_is_kept(path, monkeypatch):
    ship(path)
    old = path.read_bytes()
    # Permissions mean nothing to an administrator, so the system's answer is given for it.
    monkeypatch.setattr(write.os, "access", lambda place, mode: str(place) != str(beside(path)))
    with pytest.raises(FileAccessError, match=r"model\.onnx\.data' is write-protected"):
        ship(path, metadata={"new": "yes"})
    assert path.read_bytes() == old


@pytest.mark.parametrize(("before", "failing"), [(False, 0), (False, 1), (True, 0), (True, 1), (True, 2), (True, 3)])
def test_old_files_are_back_wherever_a_move_fails(path, monkeypatch, before, failing):
    if before:
        ship(path)
    old = {f.name: f.read_bytes() for f in path.parent.iterdir()}
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) == failing + 1:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(write.os, "replace", replace)
    with pytest.raises(FileAccessError, match="cannot write .*No space left on device"):
        ship(path, metadata={"new": "yes"})
    assert {f.name: f.read_bytes() for f in path.parent.iterdir()} == old


def test_an_export_that_fails_leaves_what_was_there(path):
    ship(path)
    old = {f.name: f.read_bytes() for f in path.parent.iterdir()}
    other = wf.ones(2, 300)
    with pytest.raises(ExportError):
        export(lambda x: x @ other if x.shape[0] < 1000 else x @ -other, (wf.ones(3, 2),), path,
               external_data=True, dynamic_axes={"x": {0: "n"}})  # fmt: skip
    assert {f.name: f.read_bytes() for f in path.parent.iterdir()} == old


@pytest.mark.parametrize("name", ["..", ".", "models\\model.onnx", "C:model.onnx", "a\x1b[31m.onnx", "a\udc80.onnx"])
def test_names_of_files_that_cannot_lie_beside_a_model(path, name):
    with pytest.raises((ExportError, FileAccessError), match="cannot have the name|is a folder|cannot write"):
        ship(path.parent / name)
    assert list(path.parent.iterdir()) == []


# -- names inside the file


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "C:\\x", "<script>", "a b", "größe"])
def test_any_printable_name_is_only_a_name(path, outside, name):
    export(doubled, (wf.ones(3, 2),), path, [name], [f"{name}."], external_data=True, dynamic_axes={name: {0: "n"}})
    assert {f.name for f in path.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
    model = onnx.load(path, load_external_data=False)
    assert model.graph.input[0].name == name
    assert {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"} == {
        "model.onnx.data"}  # fmt: skip
    assert wf.onnx.inspect(path).inputs == {name: "float32[n, 2]"}


@pytest.mark.parametrize("name", ["a\x1b[31mred", "a\nb", "a\0b", "a\ud800", "a\u202eb"])
def test_names_that_cannot_be_printed_are_refused(path, name):
    net = nn.Sequential()
    net.add_module(name, nn.Linear(2, 2))
    for function, options in ((doubled, {"input_names": [name]}), (doubled, {"output_names": [name]}), (net, {})):
        with pytest.raises(ExportError, match="has a character in it that cannot be printed") as caught:
            export(function, (wf.ones(3, 2),), path, check_results=False, **options)
        assert str(caught.value).isprintable()
    assert list(path.parent.iterdir()) == []


def test_half_a_character_in_metadata_and_names_of_functions(path):
    def function(x):
        return x + 1

    function.__name__ = "f\ud800"
    export(function, (wf.ones(2),), path, metadata={"k\ud800": "v\ud800", "list": ["\ud800"]})
    found = wf.onnx.inspect(path)
    assert found.metadata["k?"] == "v?" and found.metadata["wayfare.function"] == "f?"
