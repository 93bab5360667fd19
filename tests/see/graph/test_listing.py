"""The text of a graph: names of parameters, values, folded loops, escaping; and graphs too long to recurse into."""

from html import unescape

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.see.graph.drawing import LARGEST
from wayfare.see.graph.listing import described


def model():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def chain(length, w):
    h = w
    for _ in range(length):
        h = h * w
    return h


def test_parameters_have_their_names():
    net = model()
    loss = net(wf.ones(2, 4)).sum()
    text = str(wf.graph(loss, net))
    assert "linear(·, 0.weight, 0.bias)" in text and "linear(%1, 2.weight, 2.bias)" in text
    assert "%a" not in text
    assert str(wf.graph(loss, modules=net)) == text
    assert "linear(·, net.0.weight, net.0.bias)" in str(wf.graph(loss, modules={"net": net}))


def test_tensors_have_names_too_and_the_others_keep_their_letters():
    w, b = wf.ones(2, requires_grad=True), wf.ones(2, requires_grad=True)
    text = str(wf.graph((w * b).sum(), modules={"w": w}))
    assert "mul(w, %a)" in text


@pytest.mark.parametrize("modules", [3, {"x": 3}, {4: model()}, "net", [model()]])
def test_something_else_than_modules(modules):
    with pytest.raises(TypeError, match="graph: .*Give a module, or a dictionary"):
        wf.graph(wf.ones(1, requires_grad=True), modules=modules)


def test_a_model_alone_is_not_a_tensor():
    with pytest.raises(TypeError, match=r"expected a Tensor, not Sequential.*wf.graph\(loss, model\)"):
        wf.graph(model())
    with pytest.raises(TypeError, match="expected at least one Tensor"):
        wf.graph()
    with pytest.raises(TypeError, match="expected a Tensor, not Sequential"):
        wf.graph(model(), wf.ones(1))


def test_values_are_shown_where_something_keeps_them():
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    h = x.exp()
    loss = (h * 0.5).sum()
    lines = wf.graph(loss).text(values=True).splitlines()
    under = {line.split()[0]: lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if line.startswith("  %")}
    assert under["%a"] == "= [1, 2]"
    assert under["%0"] == "= [2.718, 7.389]"
    assert under["%2"] == "= 5.054"
    assert "mul(%0, 0.5)" in "\n".join(lines), "a number that the gradient rule keeps"
    # The product is kept by nobody.
    assert under["%1"].startswith("%2")
    assert wf.graph(loss).values()[loss.grad_fn, 0] is loss._array


def test_large_values_are_summarised_and_bad_numbers_are_counted():
    x = wf.arange(1000, dtype=wf.float32).requires_grad_()
    loss = (x / 0).exp().sum()
    text = wf.graph(loss).text(values=True)
    assert "in [0, 999], mean 499.5, std 288.7" in text
    assert "1 NaN (first at [0]), 999 infinite (first at [1])" in text
    y = wf.cat([x.detach() / 1000, wf.tensor([float("nan"), float("inf")])]).requires_grad_()
    bad = "1 NaN (first at [1000]), 1 infinite (first at [1001])"
    assert f"in [0, 0.999], mean 0.4995, std 0.2887, {bad}" in wf.graph(y).text(values=True)
    half = (wf.ones(100000, dtype=wf.float16) * 1000).requires_grad_()
    assert "mean 1000" in wf.graph(half).text(values=True)
    assert "3 of 8 true" in described(np.arange(8) < 3)


def test_after_backward_little_is_left():
    x = wf.ones(3, requires_grad=True)
    h = x.exp()
    loss = h.sum()
    graph = wf.graph(loss)
    loss.backward()
    assert set(graph.values()) == {(loss.grad_fn, 0)}
    assert "exp(%a)" in graph.text(values=True)


def test_loops_are_folded_when_asked():
    w = wf.ones(2, requires_grad=True)
    h = w
    for _ in range(37):
        h = h * w
        h = h + 1
    graph = wf.graph(h.sum())
    assert "×" not in str(graph)
    lines = graph.text(fold=True).splitlines()
    assert lines[2].strip() == "┌ ×37 · 2 nodes each, to %73"
    assert lines[3].split()[:2] == ["│", "%0"] and "mul(%a, %a)" in lines[3]
    assert len(lines) == 7


def test_loops_in_loops_are_folded_twice():
    w = wf.ones(2, requires_grad=True)
    h = w
    for _ in range(5):
        for _ in range(3):
            h = h * w
        h = h.tanh()
    text = wf.graph(h).text(fold=True)
    assert "┌ ×5 · 4 nodes each" in text and "│ ┌ ×3 · 1 node each" in text


def test_the_key_of_random_numbers_is_not_shown():
    x = wf.ones(4, requires_grad=True)
    text = str(wf.graph(wf.nn.functional.dropout(x, 0.5)))
    assert "dropout(%a, p=0.5" in text and "key" not in text


def test_an_attribute_that_cannot_be_shown_is_said_so():
    class Rude:
        def __repr__(self):
            raise ValueError("no")

    y = wf.ones(2, requires_grad=True) * 2
    y.grad_fn.attrs = {"thing": Rude(), "long": "x" * 100}
    text = str(wf.graph(y))
    assert "<Rude: ValueError in its repr>" in text and "xxx…" in text


def test_a_long_listing_shows_its_ends_or_all():
    w = wf.ones(1, requires_grad=True)
    graph = wf.graph(chain(1000, w))
    lines = str(graph).splitlines()
    assert len(lines) == 202 and "801 more" in lines[101]
    assert lines[-1].split()[0] == "%999"
    assert len(graph.text(whole=True).splitlines()) == 1002


def test_a_chain_of_a_hundred_thousand():
    w = wf.ones(1, requires_grad=True)
    graph = wf.graph(chain(100_000, w))
    assert len(graph) == graph.depth == 100_000
    assert "99801 more" in str(graph)
    assert "┌ ×100000 · 1 node each, to %99999" in graph.text(fold=True)
    stats = graph.stats()
    assert stats.flops == 100_000 and stats.by_op[0].nodes == 100_000
    assert not graph.diff(wf.graph(chain(100_000, w)))


def framed(graph):
    """The page in the frame that a notebook shows: it runs nothing and sees nothing."""
    shown = graph._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count("<") == 2 and 'sandbox=""' in shown
    page = unescape(shown)
    assert "Content-Security-Policy" in page and "default-src 'none'" in unescape(page)
    return page


class TestNotebook:
    def test_a_small_graph_is_drawn(self):
        net = model()
        html = framed(wf.graph(net(wf.ones(2, 4)).sum(), net))
        assert html.count("<rect") == 4 + 4 and html.count("<path") == 4 + 3
        assert "0.weight" in html and "tanh" in html

    def test_a_large_one_is_listed(self):
        w = wf.ones(1, requires_grad=True)
        html = framed(wf.graph(chain(LARGEST, w)))
        assert "<pre>" in html and "<svg" not in html and "×200" in html

    def test_names_are_escaped(self):
        w = wf.ones(1, requires_grad=True)
        for length in (1, LARGEST):
            html = framed(wf.graph(chain(length, w), modules={"<script>alert(1)</script>&'\"": w}))
            assert "<script" not in html and "&lt;script&gt;" in html

    def test_a_leaf_and_a_constant(self):
        assert "<rect" in wf.graph(wf.ones(1, requires_grad=True)).svg()
        assert "<rect" not in wf.graph(wf.ones(1)).svg()

    def test_the_drawing_is_well_formed_and_boxes_do_not_overlap(self):
        import xml.etree.ElementTree as xml

        net = model()
        root = xml.fromstring(wf.graph(net(wf.ones(2, 4)).sum(), net).svg())
        boxes = [{k: float(r.get(k)) for k in ("x", "y", "width", "height")}
                 for r in root.iter("{http://www.w3.org/2000/svg}rect")]  # fmt: skip
        for i, a in enumerate(boxes):
            assert a["x"] >= 0 and a["x"] + a["width"] <= float(root.get("width"))
            for b in boxes[i + 1 :]:
                assert a["y"] != b["y"] or a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
