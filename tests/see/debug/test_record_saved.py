"""A run outside of the program: pages and files, whatever happens while they are written, and what is read back."""

import errno
import html
import json
import os
import re

import pytest

import wayfare as wf
from wayfare import nn

HOSTILE = "</script><script>alert(1)</script>\u2028\"'&<!--"


@pytest.fixture
def run():
    net = nn.Linear(2, 1)
    with wf.debug.record(title="a step") as run:
        loss = net(wf.ones(3, 2)).sum()
        if loss > -100:
            loss.backward()
    return run


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_json_comes_back_as_it_was(run, tmp_path):
    path = tmp_path / "run.json"
    run.save(path)
    assert json.loads(path.read_text(), parse_constant=refuse) == run.document()
    again = wf.debug.load(path)
    assert str(again) == str(run)
    assert again.document() == run.document()
    assert [value.name for value in again.nodes] == [value.name for value in run.nodes]
    assert again.title == "a step"
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_what_is_not_a_number_is_no_number_in_the_file(tmp_path):
    with wf.debug.record() as run:
        x = wf.tensor([float("nan"), float("inf")]) * 2
        x.sum().item()
        wf.full((100, 100), float("nan")) * 1
    path = tmp_path / "run.json"
    run.save(path)
    json.loads(path.read_text(), parse_constant=refuse)
    assert "NaN" in str(run)
    assert str(wf.debug.load(path)) == str(run)


def test_the_page_holds_the_run_and_is_one_file(run, tmp_path):
    path = tmp_path / "run.html"
    run.save(str(path))
    text = path.read_text(encoding="utf-8")
    assert "a step" in text
    assert "net(wf.ones(3, 2)).sum()" in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", text)


def test_hostile_names_are_only_data(tmp_path):
    class Net(nn.Module):
        def forward(self, x):
            return x * 2

    Net.__name__ = HOSTILE
    with wf.debug.record(title=HOSTILE, module={HOSTILE: Net(), "other": Net()}) as run:
        Net()(wf.ones(2))
    path = tmp_path / "run.html"
    run.save(path)
    text = path.read_text(encoding="utf-8", errors="surrogatepass")
    assert "<script>alert(1)" not in text
    run.save(tmp_path / "run.json")
    assert wf.debug.load(tmp_path / "run.json").title == HOSTILE
    shown = run._repr_html_()
    assert shown.count("<iframe") == 1
    inside = re.search(r'srcdoc="([^"]*)"', shown)[1]
    assert "<" not in inside
    assert "<script>alert(1)" not in html.unescape(inside)


def test_lone_surrogates_can_be_saved(tmp_path):
    with wf.debug.record(title="\udcff") as run:
        wf.ones(1) * 1
    run.save(tmp_path / "run.json")
    run.save(tmp_path / "run.html")
    assert wf.debug.load(tmp_path / "run.json").title == "\udcff"


def test_a_full_disk_leaves_the_old_file_and_the_run(run, tmp_path, monkeypatch):
    path = tmp_path / "run.html"
    path.write_text("old")

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no room for") as caught:
            run.save(path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.html"]
    run.save(path)
    assert "a step" in path.read_text(encoding="utf-8")


def test_a_folder_that_is_not_there(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        run.save(tmp_path / "nowhere" / "run.html")


def test_a_folder_in_place_of_a_file(run, tmp_path):
    (tmp_path / "run.html").mkdir()
    with pytest.raises(OSError, match="is a folder"):
        run.save(tmp_path / "run.html")


def test_other_endings_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.html or \.json"):
        run.save(tmp_path / "run.png")


def damaged(document, **changes):
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("<html>", "not JSON"),
        ("[1, 2]", "not a run"),
        ('{"format": "other"}', "not a run"),
        ('{"format": "wayfare-run", "version": 99}', "format version 99"),
        ('{"format": "wayfare-run", "version": 1}', "there are no values"),
        ('{"format": "wayfare-run", "version": 1, "nodes": {"op": [1], "kind": []}}', "different lengths"),
        ('{"format": "wayfare-run", "version": 1, "nodes": {"op": []}}', "'strings' is missing"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_run_is_refused_with_a_sentence(text, says, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(wf.errors.FileFormatError, match=says):
        wf.debug.load(path)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        wf.debug.load(tmp_path / "run.json")
    with pytest.raises(OSError, match="is a folder, not a file"):
        wf.debug.load(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(wf.errors.FileFormatError, match="not JSON"):
        wf.debug.load(tmp_path / "run.json")


def test_show_opens_the_page_in_the_browser(run, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    run.show()
    assert opened[0].startswith("file://")
    assert opened[0].endswith(".html")
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    run.show()
    assert "the page is" in capsys.readouterr().out


def test_the_summary_adds_up(run):
    counts = run.stats()
    assert (counts.forward, counts.backward, counts.decisions) == (3, 2, 1)
    assert counts.by_op == {"linear": 1, "sum": 1, "gt": 1}
    assert counts.by_module == {"Linear": 1}
    assert sum(counts.by_line.values()) == 3
    assert counts.peak == max(run.document()["memory"])
    assert all(len(line) <= 80 for line in str(counts).splitlines())


def test_values_are_a_sequence(run):
    nodes = run.nodes
    assert nodes[-1].number == len(nodes) - 1
    assert [value.number for value in nodes[1:3]] == [1, 2]
    with pytest.raises(IndexError, match="there are"):
        nodes[len(nodes)]
    assert "linear f32[3,1]" in repr(next(value for value in nodes if value.op == "linear"))
    assert repr(run) == f"<a step: {len(run)} steps, {len(nodes)} values>"


def test_code_around_each_line_is_in_the_document(run):
    (file,) = run.document()["files"]
    assert file["name"] == "test_record_saved.py"
    lines = sorted(map(int, file["code"]))
    used = sorted({line for _, line, _ in run.document()["sites"]})
    assert lines == list(range(used[0] - 4, used[-1] + 5))
    assert file["code"][str(used[0])].strip() == "loss = net(wf.ones(3, 2)).sum()"


def test_code_without_a_file_is_recorded_without_text():
    space = {"wf": wf}
    with wf.debug.record() as run:
        exec(compile("y = wf.ones(2) * 3", "<prompt>", "exec"), space)
    assert run.nodes[-1].line == "<prompt>:1"
    assert run.nodes[-1].code == ""
    assert "<prompt>:1" in str(run)
