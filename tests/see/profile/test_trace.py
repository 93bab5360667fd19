"""The trace file: valid trace events that lie inside each other, and pages with nothing unescaped."""

import json
import os
import re
from html import unescape

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import FileAccessError
from wayfare.see.profile import page


def profiled():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), wf.randn(3, 4)
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    with wf.profile() as p:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()  # <script>alert("x")</script>
            optimizer.step()
    return p


@pytest.fixture(scope="module")
def p():
    return profiled()


def events(p, tmp_path):
    p.trace(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))


def test_every_event_has_what_its_kind_needs(p, tmp_path):
    found = events(p, tmp_path)
    assert found["displayTimeUnit"] == "ms" and found["otherData"]["events left out"] == 0
    kinds = set()
    for event in found["traceEvents"]:
        kinds.add(event["ph"])
        assert {"name", "ph", "pid", "tid"} <= event.keys() and isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["cat"], str)
        elif event["ph"] == "C":
            assert event["ts"] >= 0 and event["args"]["bytes"] >= 0
        else:
            assert event["ph"] == "M" and "name" in event["args"]
    assert kinds == {"X", "C", "M"}


def test_events_lie_inside_each_other(p, tmp_path):
    complete = [e for e in events(p, tmp_path)["traceEvents"] if e["ph"] == "X"]
    assert complete == sorted(complete, key=lambda e: (e["ts"], -e["dur"]))
    open_until, parents = [], {}
    for e in complete:
        end = e["ts"] + e["dur"]
        while open_until and open_until[-1][0] <= e["ts"] + 1e-6:
            open_until.pop()
        if open_until:
            assert end <= open_until[-1][0] + 1e-6, (e, open_until[-1])
            parents.setdefault(e["name"], set()).add(open_until[-1][1])
        open_until.append((end, e["name"]))
    assert parents["linear"] == {"0", "2"}
    assert parents["0"] == parents["1"] == parents["2"] == {"Sequential"}
    assert parents["linear (gradient)"] == {"(backward pass)"}
    assert "SGD.step" not in parents


def test_counts_in_the_trace_are_those_of_the_table(p, tmp_path):
    names = [e["name"] for e in events(p, tmp_path)["traceEvents"] if e["ph"] == "X"]
    rows = {row.name: row for row in p.rows()}
    assert names.count("linear") == rows["linear"].calls == 4
    assert names.count("linear (gradient)") == rows["linear"].backward_calls == 4
    assert names.count("SGD.step") == 2 and names.count("Sequential") == 2


def test_an_event_names_line_and_module(p, tmp_path):
    event = next(e for e in events(p, tmp_path)["traceEvents"] if e["name"] == "linear")
    assert event["args"]["line"].startswith("test_trace.py:") and "model(x)" in event["args"]["code"]
    assert event["args"]["module"] == "Sequential.0" and event["cat"] == "forward"


def test_a_trace_of_nothing(tmp_path):
    with wf.profile() as p:
        pass
    assert [e["ph"] for e in events(p, tmp_path)["traceEvents"]] == ["M", "M"]
    assert "outside 100.0 %" in str(p) and "<svg" not in p.html()
    p.save(tmp_path / "p.html")


def test_the_page_stands_for_itself_and_is_escaped(p, tmp_path):
    p.save(tmp_path / "profile.html")
    text = (tmp_path / "profile.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "<svg" in text
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert "&lt;script&gt;" in text
    for title in ("By op", "By line", "By module", "Memory over time", "In use at the highest point"):
        assert title in text
    assert p.html() in text


def test_in_a_notebook_it_is_a_frame(p):
    # The page's own look must not become the notebook's.
    shown = p._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.endswith("</iframe>") and shown.count("<") == 2
    assert page.whole(p) in unescape(shown)
    assert 'sandbox=""' in shown and "Content-Security-Policy" in shown
    assert "default-src 'none'" in unescape(unescape(shown))


def test_bars_tell_forward_from_backward(p):
    rows = [row for row in p.rows("op") if row.forward_seconds and row.backward_seconds]
    assert rows
    for row in rows:
        back = row.share * row.backward_seconds / row.seconds
        parts = re.findall(r'class="fill( more)?" style="width:([\d.]+)%"', page.cost_sheet("op", [row], 1))
        assert [also for also, _ in parts] == ["", " more"]
        assert [float(width) for _, width in parts] == pytest.approx([100 * (row.share - back), 100 * back], abs=0.06)


def test_a_file_that_cannot_be_written_loses_nothing(p, tmp_path):
    target = tmp_path / "profile.html"
    target.write_text("old")
    with pytest.raises(FileAccessError, match="does not exist"):
        p.save(tmp_path / "missing" / "profile.html")
    with pytest.raises(FileAccessError, match="is a folder"):
        p.trace(tmp_path)
    if os.path.exists("/dev/full"):
        with pytest.raises(FileAccessError):
            p.save("/dev/full")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["profile.html"]
    p.save(str(target))
    assert "By op" in target.read_text(encoding="utf-8")
