"""Live tensors by the line that made them, who holds them, and what has grown."""

import inspect

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core import node
from wayfare.errors import ArgumentTypeError, OperationError
from wayfare.see.graph import node_info

pytestmark = pytest.mark.usefixtures("all_objects_are_listed")


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def row_of(found, function, text):
    """The row of a line of a function."""
    number = line_of(function, text)
    (row,) = [row for row in found.rows if row.site is not None and row.site.line == number]
    return row


def collect_losses(steps):
    """A list that collects losses, each with its graph."""
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    losses = []
    before = wf.debug.leaks()
    for _ in range(steps):
        loss = net(wf.randn(16, 8)).pow(2).mean()
        losses.append(loss)
    return wf.debug.leaks().since(before)


def test_a_name_for_one_of_them_is_not_the_holder_of_all():
    net = nn.Linear(8, 1)
    before = wf.debug.leaks()
    losses = [net(wf.randn(16, 8)).sum() for _ in range(5)]
    first, last = losses[0], losses[-1]
    (row,) = [row for row in wf.debug.leaks().since(before).rows if row.tensors == 5]
    assert first is not last and row.holder.name == "losses"


def test_a_planted_leak_is_found_by_name():
    found = collect_losses(20)
    row = row_of(found, collect_losses, "loss = net")
    assert found.rows[0] is row
    assert row.tensors == 20 and row.nodes == 100
    # Of each step: the input, both sides of tanh, and what the square keeps.
    assert row.graph_bytes >= 20 * (16 * 8 + 16 * 32 + 16) * 4
    assert row.holder.name == "losses" and row.holder.kind == "list"
    text = str(found)
    assert "held by list `losses` in collect_losses (leak_checks.py:" in text
    assert "loss = net(wf.randn(16, 8)).pow(2).mean()" in text
    assert "each keeps its whole graph: collect .item() or .detach() instead" in text


def carry_a_state(steps, detach):
    """A state that is carried from step to step."""
    cell = nn.GRUCell(8, 32)
    h = wf.zeros(16, 32)
    h = cell(wf.randn(16, 8), h)
    before = wf.debug.leaks()
    for _ in range(steps):
        h = cell(wf.randn(16, 8), h.detach() if detach else h)
    return wf.debug.leaks().since(before)


def test_a_planted_stale_graph_is_found_by_name():
    found = carry_a_state(20, detach=False)
    row = row_of(found, carry_a_state, "if detach")
    assert found.rows[0] is row
    assert row.tensors == 1 and row.nodes >= 60 and row.holder.name == "h"
    text = str(found)
    assert "held by Tensor `h` in carry_a_state" in text
    assert "times in the graph, with the same parameters: it goes back over many steps" in text and ".detach()" in text
    more = carry_a_state(40, detach=False)
    assert row_of(more, carry_a_state, "if detach").graph_bytes > 1.9 * row.graph_bytes


def test_what_is_detached_does_not_grow():
    found = carry_a_state(20, detach=True)
    row = row_of(found, carry_a_state, "if detach")
    assert row.nodes <= 4 and "goes back over many steps" not in str(found)


class Trainer:
    def __init__(self):
        self.seen = {}

    def work(self, steps):
        with wf.debug.leaks() as found:
            for step in range(steps):
                with wf.no_grad():
                    self.seen[step] = wf.ones(100) * 2
        return found


def test_in_a_block_lines_are_known_of_what_has_no_gradient_too():
    trainer = Trainer()
    found = trainer.work(3)
    row = row_of(found, Trainer.work, "wf.ones(100)")
    assert row.tensors == 3 and row.bytes == 3 * 100 * 4 and row.nodes == 0
    assert str(row.holder).startswith("Trainer `self` in work (leak_checks.py:") and "self.seen[" in str(row.holder)
    assert trainer.work(0).tensors == 0


KEPT = []


def test_globals_closures_and_attributes_are_named():
    before = wf.debug.leaks()
    KEPT.append(wf.ones(1000))
    try:
        (row,) = wf.debug.leaks().since(before).rows
        assert str(row.holder) == "list `KEPT` of the module tests.see.debug.leak_checks as KEPT[0]"
    finally:
        KEPT.clear()

    def make():
        hidden = wf.ones(1000)
        return lambda: hidden

    before = wf.debug.leaks()
    kept = make()
    (row,) = wf.debug.leaks().since(before).rows
    assert row.holder.name == "kept" and row.holder.kind == "function" and callable(kept)


def test_parameters_and_their_gradients_are_the_models():
    before = wf.debug.leaks()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    (row,) = wf.debug.leaks().since(before).rows
    assert row.tensors == 4 and row.bytes == 2 * (16 + 4) * 4 and row.holder.name == "model"
    before = wf.debug.leaks()
    model(wf.ones(1, 4)).sum().backward()
    (row,) = wf.debug.leaks().since(before).rows
    assert row.tensors == 4 and row.holder.name == "model"


def test_memory_that_is_shared_counts_once():
    before = wf.debug.leaks()
    base = wf.ones(1000)
    views = [base[i:] for i in range(10)]
    found = wf.debug.leaks().since(before)
    assert found.tensors == 11 and found.bytes == 4000
    del views


def test_a_graph_that_no_tensor_leads_to_is_found_by_its_line():
    before = wf.debug.leaks()
    node = (wf.ones(1000, requires_grad=True) * 2).exp().grad_fn
    found = wf.debug.leaks().since(before)
    assert found.nodes == 2 and found.bytes >= 4000
    assert row_of(found, test_a_graph_that_no_tensor_leads_to_is_found_by_its_line, "grad_fn").nodes == 2
    del node


def test_a_snapshot_holds_nothing():
    def work():
        y = (wf.ones(1000, requires_grad=True) * 2).exp()
        return wf.debug.leaks(), y.shape

    before = wf.debug.leaks()
    there, _ = work()
    assert there.since(before).bytes >= 4000
    after = wf.debug.leaks().since(before)
    assert after.rows == [] and str(after) == "nothing has grown"


def test_steps_that_leak_nothing_grow_nothing():
    net = nn.Linear(3, 3)
    optimizer = wf.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        net(wf.randn(2, 3)).sum().backward()
        optimizer.step()

    step()
    before = wf.debug.leaks()
    for _ in range(10):
        step()
    assert wf.debug.leaks().since(before).tensors == 0


def test_bad_use_is_named():
    with pytest.raises(ArgumentTypeError, match="earlier wf.debug.leaks"):
        wf.debug.leaks().since(3)
    with wf.debug.leaks() as found, pytest.raises(OperationError, match="in use"):
        found.__enter__()
    with pytest.raises(OperationError, match="used already"):
        found.__enter__()


def test_after_an_error_the_block_still_tells():
    with pytest.raises(ZeroDivisionError), wf.debug.leaks() as found:
        kept = wf.ones(10) * 2
        1 / 0
    assert found.tensors == 1 and kept is not None


def test_a_tensor_that_only_changes_hands_is_no_new_one():
    boxes = {"first": [wf.randn(100)], "second": []}
    before = wf.debug.leaks()
    boxes["second"].append(boxes["first"].pop())
    renamed = boxes["second"][0]
    boxes.clear()
    assert wf.debug.leaks().since(before).tensors == 0 and renamed.numel() == 100


class Tripled(wf.autograd.Function):
    """Keeps an array of its own for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 3)
        return x[:1] * 2

    @staticmethod
    def backward(ctx, g):
        return None


def test_what_a_custom_function_and_a_compiled_call_keep_is_counted():
    x = wf.ones(1000, requires_grad=True)
    compiled = wf.compile(lambda x: (x.exp() @ x.tanh()).sin())
    compiled(x), compiled(x)
    for function in (Tripled.apply, compiled):
        held = []
        before = wf.debug.leaks()
        held = [function(x) for _ in range(5)]
        found = wf.debug.leaks().since(before)
        assert sum(row.graph_bytes for row in found.rows) >= len(held) * 4000


def test_a_long_list_of_tensors_without_a_line_has_its_holder():
    before = wf.debug.leaks()
    kept = [wf.ones(2) for _ in range(3000)]
    (row,) = wf.debug.leaks().since(before).rows
    assert row.tensors == len(kept) and row.holder.name == "kept"


def test_a_long_graph_is_located_once_for_each_place(monkeypatch):
    y = wf.ones(1, requires_grad=True)
    for _ in range(300):
        y = y * 1.5
    asked = []
    locate = node_info.locate
    monkeypatch.setattr(node_info, "locate", lambda *place: asked.append(place) or locate(*place))
    monkeypatch.setattr(node, "locate", lambda *place: asked.append(place) or locate(*place))
    wf.debug.leaks()
    assert 0 < len(asked) < 100
