"""Traces of several ranks side by side: one clock, and who waited for whom."""

import json

import pytest

import wayfare as wf
from tests.distributed.ranks import needs_mpi, passes


def event(name, start, seconds, cat="forward"):
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": cat, "ts": 1e6 * start, "dur": 1e6 * seconds}


def written(folder, rank, events, **more):
    path = folder / f"{rank}.json"
    path.write_text(json.dumps({"otherData": {"rank": rank, **more}, "traceEvents": events}))
    return path


@pytest.fixture
def two(tmp_path):
    """Rank 0 works 1 s and waits 2 s, then works 3 s; rank 1 works 2.9 s, then 1 s and waits. Clocks differ by 100."""
    first = [event("mm", 0, 1), event("backward", 1, 2), event("(waiting: all_reduce)", 1, 2, "waiting"),
             event("mm", 3, 3), event("(waiting: all_reduce)", 6, 0.1, "waiting"), event("end", 6.1, 0.4)]  # fmt: skip
    second = [event("mm", 100, 2.9), event("(waiting: all_reduce)", 102.9, 0.1, "waiting"),
              event("mm", 103, 1), event("(waiting: all_reduce)", 104, 2.1, "waiting")]  # fmt: skip
    return [written(tmp_path, 1, second), written(tmp_path, 0, first)]


def test_who_waited_for_whom(two):
    merged = wf.profile.merge(two)
    assert merged.ranks == [0, 1]
    first, second = merged.waits
    assert (first.last, second.last) == (1, 0)
    assert first.late(0) == pytest.approx(1.9)
    assert second.late(1) == pytest.approx(2.0)
    assert first.sending == pytest.approx(0.1)
    assert merged.waited(0) == merged.waited_for(0, 1) == pytest.approx(1.9)
    assert merged.waited_for(0, 0) == 0
    assert merged.sending == pytest.approx(0.2)
    assert merged.seconds == pytest.approx(6.5)
    text = str(merged)
    assert "2 ranks, 6.5 s, 2 meetings" in text
    assert "rank 1: 1.9 s" in text and "rank 0: 2 s" in text


def test_a_trace_with_one_row_for_each_rank(two, tmp_path):
    wf.profile.merge(two).trace(tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "rank 0", 2: "rank 1"}
    ends = {}
    for e in events:
        if e["name"] == "(waiting: all_reduce)":
            ends.setdefault(e["pid"], []).append(round((e["ts"] + e["dur"]) / 1e6, 3))
    assert ends[1] == ends[2] == [3.0, 6.1]  # what ranks do together ends at once
    outer = next(e for e in events if e["name"] == "backward")
    inner = next(e for e in events if e["pid"] == 1 and e.get("cat") == "waiting")
    assert outer["ts"] <= inner["ts"] and outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]


def test_a_page(two, tmp_path):
    merged = wf.profile.merge(two)
    merged.save(tmp_path / "ranks.html")
    page = (tmp_path / "ranks.html").read_text()
    assert page.count('class="wait"') == 2 and "for rank 1" in page and "<script" not in page
    assert "iframe" in merged._repr_html_()


def test_ranks_that_did_different_things(tmp_path):
    first = written(tmp_path, 0, [event("a", 0, 1, "waiting"), event("b", 2, 1, "waiting")])
    second = written(tmp_path, 1, [event("a", 0, 1, "waiting"), event("<b>", 2, 1, "waiting")])
    merged = wf.profile.merge([first, second])
    assert len(merged.waits) == 1 and "different calls at meeting 2" in merged.note
    assert "<b>" not in merged.html()
    third = written(tmp_path, 2, [])
    assert "only the first 0" in wf.profile.merge([first, third]).note


def test_what_is_no_trace(tmp_path):
    with pytest.raises(TypeError, match="takes a list of files"):
        wf.profile.merge("rank0.json")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        wf.profile.merge([tmp_path / "nothing.json"])
    (tmp_path / "other.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    with pytest.raises(ValueError, match="is not a trace"):
        wf.profile.merge([tmp_path / "other.json"])


@needs_mpi
def test_the_traces_of_two_ranks(tmp_path):
    passes(2, "profiled.py", tmp_path)
    merged = wf.profile.merge(sorted(tmp_path.glob("*.json")))
    assert merged.ranks == [0, 1] and len(merged.waits) == 5
    assert merged.waited_for(0, 1) > 0.1  # 5 steps of 50 ms
