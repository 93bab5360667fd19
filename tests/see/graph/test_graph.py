"""The graph as users see it: listing, nodes, source lines."""

import gc
import linecache

import pytest

import wayfare as wf
from wayfare.core.node import AccumulateGrad
from wayfare.errors import ArgumentTypeError


def model(x, w):
    h = x * w
    return (h + 1).sum()


@pytest.fixture
def loss():
    return model(wf.ones(2, 3), wf.ones(3, requires_grad=True))


def test_listing_shows_op_inputs_shape_line_and_text(loss):
    lines = str(wf.graph(loss)).splitlines()
    assert lines[0] == "graph of f32[] · 3 nodes, 1 leaf"
    assert lines[1].split() == ["%a", "leaf", "f32[3]"]
    first = model.__code__.co_firstlineno
    assert "mul(·, %a)" in lines[2] and "f32[2,3]" in lines[2]
    assert f"test_graph.py:{first + 1}" in lines[2] and lines[2].endswith("h = x * w")
    assert f"test_graph.py:{first + 2}" in lines[3] and "add(%0, ·)" in lines[3]
    assert "sum(%1, dim=(0, 1))" in lines[4]


def test_iteration_length_and_depth(loss):
    graph = wf.graph(loss)
    assert [node.op.name for node in graph] == ["mul", "add", "sum"]
    assert len(graph) == 3 and graph.depth == 3 and len(graph.leaves) == 1


def test_listing_of_several_outputs_and_shared_leaves():
    x = wf.tensor([3.0, 1.0], requires_grad=True)
    values, indices = x.sort()
    text = str(wf.graph((values * x).sum()))
    assert "mul(%0.0, %a)" in text
    assert indices.grad_fn is None


def test_a_leaf_alone_and_a_constant_alone():
    assert "0 nodes, 1 leaf" in str(wf.graph(wf.ones(2, requires_grad=True)))
    assert "0 nodes, 0 leaves" in str(wf.graph(wf.ones(2)))


def test_several_in_a_list_are_to_be_given_apart():
    with pytest.raises(ArgumentTypeError, match=r"not list .* wf.graph\(\*outputs\)"):
        wf.graph([wf.ones(1)])


def test_something_else_than_a_tensor():
    with pytest.raises(TypeError, match="expected a Tensor, not int"):
        wf.graph(3)


def test_next_functions_lead_to_accumulate_grad(loss):
    node = loss.grad_fn
    assert node.name() == "SumBackward0"
    (add, number), = node.next_functions
    assert add.name() == "AddBackward0" and number == 0
    mul = add.next_functions[0][0]
    assert mul.next_functions[0] == (None, 0)
    leaf = mul.next_functions[1][0]
    assert isinstance(leaf, AccumulateGrad) and leaf.name() == "AccumulateGrad"
    assert leaf.variable.requires_grad and leaf.next_functions == ()


def test_site_of_code_without_a_file(monkeypatch):
    # What Python 3.13 does for the code of `python -c`.
    monkeypatch.setitem(linecache.cache, "<string>", (7, None, ["seven()"], "<string>"))
    namespace = {"wf": wf}
    exec("y = wf.ones(2, requires_grad=True) * 2", namespace)
    site = namespace["y"].grad_fn.site
    assert str(site) == "<string>:1" and site.text == ""


def test_site_is_the_users_line_also_through_library_code():
    x = wf.ones(3, requires_grad=True)
    y = wf.nn.functional.mse_loss(x, wf.zeros(3))
    assert {str(node.site) for node in wf.graph(y)} == {f"test_graph.py:{here() - 1}"}


def here():
    import sys

    return sys._getframe(1).f_lineno


@pytest.mark.parametrize(
    ("name", "most"),
    [("mul", 5.1), ("exp", 5.1), ("unsqueeze", 10.1), ("select", 9.1), ("transpose", 11.1)],
)
def test_an_op_leaves_few_objects_for_the_garbage_collector(name, most):
    x = wf.ones(3, 4, requires_grad=True)
    works = {"mul": lambda: x * x, "exp": lambda: x.exp(), "unsqueeze": lambda: x.unsqueeze(0),
             "select": lambda: x[0], "transpose": lambda: x.transpose(0, 1)}  # fmt: skip
    work = works[name]
    work()
    kept = []
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        for _ in range(500):
            kept.append(work())
        assert (gc.get_count()[0] - before) / 500 <= most
    finally:
        gc.enable()


def test_the_path_of_a_view_of_a_view():
    x = wf.ones(3, 4)
    y = x[1].unsqueeze(0)
    assert y._view.base is x
    assert y._view.path == (("select", (("dim", 0), ("index", 1))), ("unsqueeze", (("shape", (1, 4)),)))
