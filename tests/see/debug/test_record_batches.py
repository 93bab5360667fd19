"""Recording `wf.map` and compiled functions: examples, groups, why calls ran apart, which op became which kernel."""

import threading

import pytest

import wayfare as wf
from tests.see.debug.documents import consistent
from wayfare import nn
from wayfare.batch.frontend import running_example
from wayfare.codegen.runtime import kernel as native


class Reader(nn.Module):
    """Reads a sequence, and looks at what it has read."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, steps):
        h = wf.zeros(4)
        for x in steps:
            h = self.cell(x, h)
            if h.sum() > 0.2:
                h = h * 0.5
        return self.out(h)


def sequences(*lengths):
    return [[wf.randn(3) for _ in range(n)] for n in lengths]


def total(outs):
    return wf.stack(outs).square().sum()


def test_a_batched_map_shows_its_calls_and_groups():
    net, data = Reader(), sequences(2, 3, 3)
    with wf.debug.record(module=net) as run:
        total(wf.map(net, data)).backward()
    document = consistent(run)
    batching = document["batching"]
    calls, strings = batching["calls"], document["strings"]
    assert batching["examples"] == 3
    assert {len(column) for column in calls.values()} == {batching["stats"]["nodes"]}
    assert len(batching["groups"]) == batching["stats"]["groups"]
    cells = [i for i, name in enumerate(calls["name"]) if strings[name] == "GRUCell"]
    # Two, three and three steps.
    assert sorted(calls["example"][i] for i in cells) == [0, 0, 1, 1, 1, 2, 2, 2]
    sizes = [group["size"] for group in batching["groups"] if strings[group["name"]] == "GRUCell"]
    assert sizes == [3, 3, 2]
    for number, group in enumerate(batching["groups"]):
        assert calls["group"].count(number) == group["size"]
        first, behind = group["nodes"]
        assert 0 <= first <= behind <= len(document["nodes"]["op"])
    for call, inputs in enumerate(calls["inputs"]):
        assert all(i < call and calls["depth"][i] < calls["depth"][call] for i in inputs)
        assert all(calls["example"][i] == calls["example"][call] for i in inputs)
    files = {document["files"][document["sites"][site][0]]["name"] for site in calls["site"]}
    assert files == {"test_record_batches.py"}


def test_what_examples_saw_is_noted_with_their_number():
    net, data = Reader(), sequences(1, 1, 1, 1)
    with wf.debug.record() as run:
        wf.map(net, data)
    batched = [(step.example, step.outcome, step.code) for step in run if step.kind == "decision"]
    with wf.debug.record() as run:
        wf.map(net, data, batch=False)
    assert batched == [(step.example, step.outcome, step.code) for step in run if step.kind == "decision"]
    assert [example for example, _, _ in batched] == [0, 1, 2, 3]


def test_gradients_of_a_batched_map_are_seen_at_the_leaves_and_at_the_results():
    net, data = Reader(), sequences(2, 3)
    with wf.debug.record() as run:
        total(wf.map(net, data)).backward()
    consistent(run)
    seen = {value.name: value.grad_elements for value in run.nodes if value.op == "leaf"}
    assert seen["out.bias"] == pytest.approx(net.out.bias.grad.tolist(), rel=1e-4)
    rows = [value for value in run.nodes if value.op == "row"]
    assert sorted(value.example for value in rows) == [0, 1]
    assert all(value.grad is not None and value.inputs[0].op == "linear" for value in rows)


def test_groups_are_joined_to_those_they_read():
    w = wf.randn(3, 3, requires_grad=True)
    with wf.debug.record() as run:
        wf.map(lambda x: (w @ x).tanh().sum(), [wf.randn(3) for _ in range(4)])
    consistent(run)
    # Rows that lie together are what the group before made.
    assert [value.op for value in run.nodes if not value.is_leaf][-3:] == ["matmul", "tanh", "sum"]
    assert [value.op for value in run.nodes[-1].inputs] == ["tanh"]
    assert [value.op for value in run.nodes[-2].inputs] == ["matmul"]


def test_rows_brought_together_are_joined_to_all_they_come_from():
    w = wf.randn(3, requires_grad=True)

    def example(x, turns):
        y = w * x
        for _ in range(turns):
            y = y.tanh()
        return y.exp()

    with wf.debug.record() as run:
        wf.map(example, [wf.ones(3)] * 3, [0, 1, 2])
    consistent(run)
    exp = next(value for value in run.nodes if value.op == "exp")
    (rows,) = exp.inputs
    assert (rows.op, rows.is_leaf) == ("rows", False)
    assert sorted(value.op for value in rows.inputs) == ["mul", "tanh", "tanh"]


def test_why_two_groups_of_one_name_ran_apart():
    w = wf.randn(3, requires_grad=True)

    def example(x):
        y = (w * x[:3]).sum()
        return (y * w[0]).tanh() if y > 0 else y.tanh().tanh()

    data = [wf.ones(3), -wf.ones(3), wf.ones(3)]
    with wf.debug.record() as run:
        wf.map(example, data)
    document = consistent(run)
    batching, strings = document["batching"], document["strings"]
    assert batching["apart"]
    for first, second, reason in batching["apart"]:
        groups = [batching["calls"]["group"][call] for call in (first, second)]
        assert groups[0] != groups[1]
        names = {strings[batching["calls"]["name"][call]] for call in (first, second)}
        assert len(names) == 1
        assert strings[reason].startswith(f"both are {names.pop()}, but")
    assert len({reason for _, _, reason in batching["apart"]}) >= 2


def test_line_by_line_ops_know_their_example():
    w = wf.randn(3, requires_grad=True)
    with wf.debug.record() as run:
        wf.map(lambda x: (w * x).sum(), [wf.ones(3)] * 3, batch=False)
    consistent(run)
    assert [(value.op, value.example) for value in run.nodes if not value.is_leaf] == [
        ("mul", 0), ("sum", 0), ("mul", 1), ("sum", 1), ("mul", 2), ("sum", 2),
    ]  # fmt: skip


def test_the_example_that_runs_is_known():
    def number(_):
        found = running_example()
        return None if found is None else found.number

    assert running_example() is None
    assert wf.map(number, range(3)) == [0, 1, 2]
    assert wf.map(number, range(3), batch=False) == [0, 1, 2]
    inner = wf.map(lambda i: wf.map(number, range(2)), range(2))
    assert inner == [[0, 1], [0, 1]]
    with wf.batching():
        assert running_example() is None
    assert running_example() is None
    seen = []
    thread = threading.Thread(target=lambda: seen.append(running_example()))
    wf.map(lambda _: (thread.start(), thread.join()) if not seen else None, range(2))
    assert seen == [None]


def test_modules_are_kept_apart_by_example():
    class Inner(nn.Module):
        def forward(self, x):
            y = x * 2
            return y * 3 if y.sum() > 0 else y * 4

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x).sum()

    net = Outer()
    with wf.debug.record() as run:
        wf.map(net, [wf.ones(2), -wf.ones(2), wf.ones(2)])
    document = consistent(run)
    strings, modules = document["strings"], document["modules"]
    parents = {}
    for at, (module, parent, _) in enumerate(document["calls"]):
        parents[at] = (strings[modules[module][1]], parent)
    inside = [parents[parent][0] for kind, parent in parents.values() if kind == "Inner"]
    # Batching may run a module once more, to see whether its calls can be taken as one.
    assert len(inside) >= 3
    assert set(inside) == {"Outer"}
    assert all(parent == -1 for kind, parent in parents.values() if kind == "Outer")


def test_an_error_in_an_example_is_told_and_the_run_stays():
    w = wf.randn(3, requires_grad=True)
    with pytest.raises(wf.errors.ShapeError, match="example 17"), wf.debug.record() as run:
        wf.map(lambda x: w @ x, [wf.ones(4 if i == 17 else 3) for i in range(20)])
    consistent(run)
    assert "example 17" in run.error


def test_calls_and_tensors_are_let_go():
    import gc
    import weakref

    net = Reader()
    reference = weakref.ref(net.cell.weight_ih)
    with wf.debug.record() as run:
        total(wf.map(net, sequences(2, 2))).backward()
    del net
    gc.collect()
    assert reference() is None
    assert run.document()["batching"]["examples"] == 2


# -- compiled functions


def test_a_compiled_function_is_seen_op_by_op_with_its_kernels():
    w = wf.randn(4, 4, requires_grad=True)

    @wf.compile
    def step(x):
        y = (x @ w).tanh() * 2 + 1
        return y.exp() if y.sum() > -1000 else y

    x = wf.ones(3, 4)
    for _ in range(4):
        step(x)
    hits = step.explain().data["replayed"]
    with wf.debug.record() as run:
        step(x)
    document = consistent(run)
    assert step.explain().data["replayed"] == hits
    assert [value.op for value in run.nodes if not value.is_leaf] == [
        "matmul", "tanh", "mul", "add", "sum", "gt", "exp",
    ]  # fmt: skip
    (plan,) = document["plans"]
    assert (plan["function"], plan["paths"], plan["hits"]) == ("step", 1, hits)
    assert plan["text"] == str(step.explain())
    kernels = {tuple(run.nodes[at].op for at in kernel["nodes"]) for kernel in plan["kernels"]}
    assert ("matmul",) in kernels
    if native.available():
        assert any({"tanh", "mul", "add"} <= set(kernel) for kernel in kernels)
    matched = [at for kernel in plan["kernels"] for at in kernel["nodes"]]
    assert len(matched) == len(set(matched))
    step(x)
    assert step.explain().data["replayed"] == hits + 1


def test_a_function_that_was_never_planned_has_no_kernels():
    step = wf.compile(lambda x: x * 2)
    with wf.debug.record() as run:
        step(wf.ones(2))
        step(wf.ones(2))
    (plan,) = consistent(run)["plans"]
    assert (plan["kernels"], plan["hits"], plan["paths"]) == (None, 0, 0)


def test_a_compiled_step_with_its_backward():
    net = nn.Linear(3, 2)

    @wf.compile
    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        net.zero_grad()
        step(wf.ones(5, 3))
    net.zero_grad()
    with wf.debug.record() as run:
        step(wf.ones(5, 3))
    document = consistent(run)
    bias = next(value for value in run.nodes if value.name == "bias")
    assert bias.grad_elements == pytest.approx(net.bias.grad.tolist(), rel=1e-4)
    assert document["plans"][0]["kernels"]
