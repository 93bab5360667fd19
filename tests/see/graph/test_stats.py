"""Numbers about a graph: totals, and by op, line and module."""

import pytest

import wayfare as wf
from wayfare import nn


@pytest.fixture
def net():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def loss_of(net, rows=3):
    y = net(wf.ones(rows, 6))
    return y.square().mean()


def test_totals(net):
    stats = wf.graph(loss_of(net)).stats()
    assert (stats.nodes, stats.depth, stats.leaves) == (5, 5, 4)
    assert stats.parameters == 6 * 5 + 5 + 5 * 2 + 2
    assert stats.parameter_bytes == 4 * stats.parameters
    assert stats.flops == 2 * 3 * 6 * 5 + 15 + 2 * 3 * 5 * 2 + 6 + 6
    assert stats.uncounted == 0
    assert stats.bytes == 4 * (15 + 15 + 6 + 6 + 1)


def test_kept_bytes_count_each_memory_once_and_no_parameters():
    x = wf.ones(4, 3, requires_grad=True)
    y = x.exp()
    # exp keeps its result, and so does the product: it is there once.
    assert wf.graph(y * y).stats().kept == 4 * 12
    assert wf.graph(x * x).stats().kept == 0
    # A view shows memory that is counted already.
    assert wf.graph(y.reshape(12).square()).stats().kept == 4 * 12
    loss = (y * y).sum()
    graph = wf.graph(loss)
    loss.backward()
    assert graph.stats().kept == 0 and graph.stats().flops == 12 + 12 + 12


def test_rows_add_up_and_the_most_arithmetic_is_first(net):
    stats = wf.graph(loss_of(net), net).stats()
    for by in ("op", "line", "module"):
        rows = stats.rows(by)
        assert sum(row.nodes for row in rows) == stats.nodes
        assert sum(row.flops for row in rows) == stats.flops
        assert sum(row.bytes for row in rows) == stats.bytes
        assert sum(row.kept for row in rows) == stats.kept
        assert [row.flops for row in rows] == sorted((row.flops for row in rows), reverse=True)
    assert [row.name for row in stats.by_module] == ["0", "2", "(no parameters)"]
    assert [row.nodes for row in stats.by_module] == [1, 1, 3]
    assert stats.by_op[0].name == "linear" and stats.by_op[0].nodes == 2
    line = loss_of.__code__.co_firstlineno
    assert [row.name.split()[0] for row in stats.by_line] == [f"test_stats.py:{line + n}" for n in (1, 2)]


def test_the_table_fits_in_eighty_columns(net):
    stats = wf.graph(loss_of(net), net).stats()
    text = str(stats)
    assert max(map(len, text.splitlines())) <= 80
    assert "5 nodes, 5 deep · 4 leaves of 47 numbers (188 B)" in text
    assert "by module" in text and "(no parameters)" in text
    assert stats.table("op").splitlines()[0].split() == ["by", "op", "nodes", "flops", "results", "kept"]
    assert "by module" not in str(wf.graph(loss_of(net)).stats())


def test_a_long_table_shows_the_most_and_says_how_many_more():
    w = wf.ones(2, requires_grad=True)
    h = w
    for op in ("exp", "tanh", "sin", "cos", "sqrt", "log1p", "square", "sigmoid", "relu", "abs", "neg", "erf", "atan"):
        h = getattr(wf, op)(h)
    table = wf.graph(h * h).stats().table("op")
    assert table.splitlines()[-1] == "… 2 more"


def test_wrong_questions(net):
    stats = wf.graph(loss_of(net)).stats()
    with pytest.raises(ValueError, match=r"modules are not known.*wf.graph\(loss, model\)"):
        stats.rows("module")
    with pytest.raises(ValueError, match="no rows by 'layer'.*Use 'op', 'line' or 'module'"):
        stats.table("layer")


def test_of_nothing():
    stats = wf.graph(wf.ones(2)).stats()
    assert (stats.nodes, stats.depth, stats.flops, stats.kept) == (0, 0, 0, 0)
    assert "0 nodes" in str(stats)


def test_shapes_that_are_not_known_any_more():
    weight = wf.ones(2, 1, 3)
    x = wf.ones(1, 1, 5, requires_grad=True)
    loss = wf.nn.functional.conv1d(x * 1, weight).sum()
    graph = wf.graph(loss)
    assert graph.stats().uncounted == 0
    loss.backward()
    # The frozen weight was kept for the gradient only, and is gone.
    assert graph.stats().uncounted == 1
