"""`wayfare view`: which page it opens, and what it says about files that are none."""

import json
import os
import webbrowser
from pathlib import Path

import pytest

from tests.see.viewer import documents
from wayfare.cli import main
from wayfare.see.viewer import page


@pytest.fixture
def opened(monkeypatch):
    """The addresses a browser was asked to open; it says that it did."""
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def test_a_page_opens_as_it_is(tmp_path, opened, capsys):
    file = tmp_path / "run.html"
    file.write_text(page(documents.small()), encoding="utf-8")
    assert main.main(["view", str(file)]) == 0
    assert opened == [file.resolve().as_uri()]
    assert capsys.readouterr().out == f"Opened {file.resolve()}\n"


def test_a_document_becomes_a_page_beside_it(tmp_path, opened):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(documents.small()))
    assert main.main(["view", str(file)]) == 0
    made = tmp_path / "run.html"
    assert opened == [made.resolve().as_uri()]
    assert made.read_text(encoding="utf-8") == page(documents.small())
    # And again, over the page of before.
    assert main.main(["view", str(file)]) == 0
    assert sorted(os.listdir(tmp_path)) == ["run.html", "run.json"]


def test_a_page_of_something_else_is_not_written_over(tmp_path, opened):
    (tmp_path / "run.json").write_text(json.dumps(documents.small()))
    (tmp_path / "run.html").write_text("<p>mine</p>")
    assert main.main(["view", str(tmp_path / "run.json")]) == 0
    assert (tmp_path / "run.html").read_text() == "<p>mine</p>"
    [address] = opened
    assert address != (tmp_path / "run.html").resolve().as_uri()


def test_without_a_browser_the_path_is_printed(tmp_path, monkeypatch, capsys):
    file = tmp_path / "run.html"
    file.write_text(page(documents.small()), encoding="utf-8")
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert main.main(["view", str(file)]) == 0
    assert main.main(["view", "--no-browser", str(file)]) == 0
    assert capsys.readouterr().out == f"The page is {file.resolve()}\n" * 2


def test_a_link_beside_the_document_is_not_written_through(tmp_path, opened):
    """The link was made by somebody else: what it names could be run at the next start of Python."""
    file, outside = tmp_path / "run.json", tmp_path / "evil.pth"
    file.write_text(json.dumps({**documents.small(), "title": "a\nimport os; os.abort()\nb"}))
    for target in (None, b"mine"):
        if target is not None:
            outside.write_bytes(target)
        (tmp_path / "run.html").unlink(missing_ok=True)
        (tmp_path / "run.html").symlink_to(outside)
        assert main.main(["view", str(file)]) == 0
        assert (tmp_path / "run.html").is_symlink()
        assert outside.read_bytes() == target if target is not None else not outside.exists()
    made = Path.from_uri(opened[-1]) if hasattr(Path, "from_uri") else Path(opened[-1].removeprefix("file://"))
    assert made.parent != tmp_path and "import os" in made.read_text(encoding="utf-8")
    # A title is one line, whatever the document says.
    assert not any(line.startswith("import") for line in made.read_text(encoding="utf-8").splitlines())


def test_what_is_no_file_does_not_keep_it_waiting(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "pipe.html"):
        if not (tmp_path / name).exists():
            (tmp_path / name).symlink_to("/dev/zero")
        assert main.main(["view", str(tmp_path / name)]) == 1
        assert "is a device or pipe, not a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("gone.html", None, "there is no file"),
        ("gone.json", None, "there is no file"),
        ("other.html", b"<p>hello</p>", "is not the page of a run. Make one with run.save('other.html')."),
        ("half.json", b'{"format": "wayf', "is not JSON"),
        ("binary.json", b"\xff\xfe\x00", "is not JSON"),
        ("deep.json", b"[" * 200000, "nested too deeply"),
        ("list.json", b"[]", "not a run"),
        ("other.json", b'{"format": "x"}', "not a run"),
        ("run.png", b"", "is neither .html nor .json"),
        ("folder.json", "folder", "is a folder, not a file"),
        ("many.json", b"[" + b"[]," * (1 << 24) + b"0]", "has more than 16,777,216 values"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, opened, capsys, name, contents, says):
    file = Path(tmp_path / name)
    if contents == "folder":
        file.mkdir()
    elif contents is not None:
        file.write_bytes(contents)
    assert main.main(["view", str(file)]) == 1
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert opened == []
