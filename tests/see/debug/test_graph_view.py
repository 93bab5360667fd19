"""Graphs and their differences as pages."""

import pytest

import wayfare as wf


@pytest.fixture
def cell():
    return wf.nn.Linear(2, 2)


def encode(cell, length):
    h = wf.ones(1, 2)
    for _ in range(length):
        h = cell(h).tanh()
    return h.sum()


def test_a_graph_is_saved_as_a_page(cell, tmp_path):
    path = tmp_path / "graph.html"
    wf.debug.view(wf.graph(encode(cell, 3), cell)).save(path)
    page = path.read_text(encoding="utf-8")
    assert "<!doctype html>" in page.lower()[:200] and '"wayfare-run"' in page and '"tanh"' in page


def test_a_difference_is_saved_and_read_again(cell, tmp_path):
    diff = wf.graph(encode(cell, 2), cell).diff(wf.graph(encode(cell, 4), cell))
    run = wf.debug.view(diff)
    run.save(tmp_path / "diff.json")
    again = wf.debug.load(tmp_path / "diff.json").document()
    assert again == run.document() and len(again["diff"]["added"]) == 4
    assert again["diff"]["summary"] == str(diff).splitlines()


def test_names_cannot_leave_the_page(tmp_path):
    w = wf.ones(1, requires_grad=True)
    path = tmp_path / "graph.html"
    wf.debug.view(wf.graph(w * w, modules={"</script><script>alert(1)": w})).save(path)
    assert "</script><script>alert" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("what", [3, None, "graph.html"])
def test_something_else_than_a_graph(what):
    with pytest.raises(TypeError, match=r"view: expected a graph or the difference of two.*Give wf.graph\(loss\)"):
        wf.debug.view(what)
