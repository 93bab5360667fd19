"""`wf.profile()`: every call is counted once, on its line and in its module, and the time adds up."""

import threading

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.runtime import kernel
from wayfare.core.mode import watcher
from wayfare.core.op import REGISTRY
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError, WayfareError
from wayfare.see.profile import stopwatch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.rest(self.first(x))


def rows(p, by="op"):
    return {row.name: row for row in p.rows(by)}


def line_of(p, text):
    (row,) = [row for row in p.rows("line") if text in row.text]
    return row


def test_calls_and_flops_and_bytes_of_ops():
    net, x = Net(), wf.randn(5, 4)
    with wf.profile() as p:
        for _ in range(3):
            net(x).sum().backward()
    by_op = rows(p)
    assert {name: (row.calls, row.backward_calls) for name, row in by_op.items() if row.kind == "op"} == {
        "linear": (6, 6), "relu": (3, 3), "sum": (3, 3),
    }  # fmt: skip
    assert by_op["linear"].flops == 3 * (2 * 5 * 4 * 8 + 2 * 5 * 8 * 2)
    assert by_op["sum"].flops == 3 * 10
    # Forward: the results. Backward: gradients of weights and biases, and of the hidden layer.
    made = 5 * 8 + 5 * 2
    gradients = 4 * 8 + 8 + 8 * 2 + 2 + 5 * 8
    assert by_op["linear"].bytes == 3 * 4 * (made + gradients)
    assert by_op["(backward pass)"].backward_calls == 3


def test_lines():
    x = wf.randn(6, 4)
    w = wf.randn(4, 2).requires_grad_()
    with wf.profile() as p:
        for _ in range(4):
            y = x @ w
            z = (y * y).sum()
        z.backward()
    assert line_of(p, "y = x @ w").calls == 4
    assert line_of(p, "z = (y * y)").calls == 8
    assert line_of(p, "z = (y * y)").backward_calls == 2
    assert line_of(p, "y = x @ w").name.startswith("test_block.py:")
    assert line_of(p, "z.backward()").calls == 0


def test_lines_without_a_graph():
    x = wf.randn(3)
    with wf.profile() as p, wf.no_grad():
        y = x.exp()
        y = y.exp() + y
    assert line_of(p, "y = x.exp()").calls == 1
    assert line_of(p, "y = y.exp() + y").calls == 2


def test_modules():
    net, x = Net(), wf.randn(5, 4)
    with wf.profile() as p:
        for _ in range(2):
            net(x).sum().backward()
    found = rows(p, "module")
    assert {name: (row.calls, row.text) for name, row in found.items() if row.text} == {
        "Net": (2, "Net"), "first": (2, "Linear"), "rest": (2, "Sequential"), "rest.0": (2, "ReLU"),
        "rest.1": (2, "Linear"),
    }  # fmt: skip
    assert found["first"].flops == 2 * 2 * 5 * 4 * 8
    assert found["first"].backward_calls == 2 and found["first"].backward_seconds > 0
    assert found["(in no module)"].flops == 2 * 10
    assert found["Net"].total_seconds >= found["rest"].total_seconds >= found["rest.1"].total_seconds > 0


def test_two_outermost_modules_are_told_apart():
    a, b, x = Net(), nn.Sequential(nn.Linear(4, 1)), wf.randn(2, 4)
    with wf.profile() as p:
        a(x), b(x)
    assert {"Net.first", "Sequential.0"} <= rows(p, "module").keys()


def test_a_module_that_calls_itself_is_timed_once():
    class Tree(nn.Module):
        def forward(self, depth):
            return wf.ones(2) * 2 if depth == 0 else self(depth - 1) + 1

    with wf.profile() as p:
        Tree()(5)
    row = rows(p, "module")["Tree"]
    assert row.calls == 6 and row.total_seconds <= p.seconds


@pytest.mark.parametrize("by", ["op", "line", "module"])
def test_shares_add_up(by):
    net, x = Net(), wf.randn(5, 4)
    with wf.profile() as p:
        net(x).sum().backward()
        sum(range(1000))
    found = p.rows(by)
    assert sum(row.share for row in found) == pytest.approx(1)
    assert sum(row.seconds for row in found) == pytest.approx(p.seconds)
    assert any(row.kind == "outside" and row.seconds > 0 for row in found)
    assert [row.seconds for row in found] == sorted([row.seconds for row in found], reverse=True)


def test_an_optimiser():
    net, x = Net(), wf.randn(5, 4)
    optimizer = wf.optim.Adam(net.parameters())
    with wf.profile() as p:
        for _ in range(3):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
    row = rows(p)["Adam.step"]
    assert (row.calls, row.kind) == (3, "optimiser")
    assert line_of(p, "optimizer.step()").calls == 3


def test_a_compiled_function_runs_its_plan_and_is_one_row():
    net, x = Net(), wf.randn(5, 4)
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)

    @wf.compile
    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    with wf.profile() as first:
        for _ in range(4):
            step(x)
    with wf.profile() as again:
        for _ in range(3):
            step(x)
        step(wf.randn(6, 4))
    assert first.compiled[0].calls == 4 and first.compiled[0].recorded >= 1
    (found,) = again.compiled
    assert (found.name, found.calls, found.hits, found.recorded, found.plain) == ("step", 4, 3, 1, 0)
    assert found.kernels + found.products > 0 or not kernel.available()
    assert [row.calls for row in again.rows("kernel")] == [4]
    assert line_of(again, "step(x)").calls == 3
    assert rows(again)["step (compiled)"].calls == 4
    assert "3 replayed, 1 recorded" in str(again)


def test_batched_examples_stay_batched():
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)

    def score(steps):
        h = wf.zeros(4)
        for x in steps:
            h = cell(x, h)
        return head(h).sum()

    examples = [wf.randn(n, 3) for n in (2, 3, 4)]
    wf.map(score, examples, batch=True)
    with wf.profile() as p:
        for _ in range(2):
            results = wf.map(score, examples, batch=True)
            sum(results).backward()
    told = p.batching
    stats = wf.batching.last()
    assert (told.sessions, told.calls, told.groups, told.rounds) == (
        2, 2 * stats.nodes, 2 * stats.groups, 2 * stats.rounds,
    )  # fmt: skip
    assert told.kinds["GRUCell"].calls == 2 * 9 and told.kinds["GRUCell"].groups == 2 * 4
    assert told.kinds["GRUCell"].largest == 3
    assert {row.name: row.calls for row in p.rows("group")}["GRUCell"] == 18
    assert rows(p)["(batching: recording)"].calls == 2
    # Ops of a group stand on the line of the calls, and in the module that was called.
    assert line_of(p, "h = cell(x, h)").seconds > 0
    assert rows(p, "module")["GRUCell"].seconds > 0
    assert "2 sessions" in str(p)


def test_ops_inside_a_custom_backward_are_backward():
    class Double(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = wf.ones(3).requires_grad_()
    with wf.profile() as p:
        Double.apply(x).sum().backward()
    assert (rows(p)["mul"].calls, rows(p)["mul"].backward_calls) == (1, 1)


def test_an_error_in_the_block_passes_on_and_the_numbers_stay():
    x = wf.ones(2, 3)
    with pytest.raises(WayfareError), wf.profile() as p:
        x + 1
        x @ x
    assert rows(p)["add"].calls == 1 and "matmul" not in rows(p)
    assert watcher() is None
    assert "add" in str(p)


def test_an_op_that_failed_leaves_nothing_behind():
    x = wf.ones(2, 3)
    with wf.profile() as p:
        for _ in range(3):
            try:
                x @ x
            except WayfareError:
                pass
            x + 1
    assert rows(p)["add"].calls == 3
    assert sum(row.seconds for row in p.rows()) == pytest.approx(p.seconds)


def test_blocks_inside_blocks():
    x = wf.ones(3)
    with wf.profile() as outer:
        x + 1
        with wf.profile() as inner:
            x + 1
            x * 2
        x + 1
    assert {name: row.calls for name, row in rows(inner).items() if row.kind == "op"} == {"add": 1, "mul": 1}
    assert {name: row.calls for name, row in rows(outer).items() if row.kind == "op"} == {"add": 3, "mul": 1}


def test_a_block_begun_inside_a_module():
    class Inner(nn.Module):
        def forward(self, x):
            self.p = wf.profile()
            with self.p:
                x = x + 1
            return x

    inner = Inner()
    inner(wf.ones(2))
    assert rows(inner.p)["add"].calls == 1


def test_each_thread_is_profiled_for_itself():
    x, found = wf.ones(3), []

    def work():
        x * 2
        with wf.profile() as p:
            x + 1
        found.append(p)

    with wf.profile() as p:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        x - 1
    assert {name for name, row in rows(p).items() if row.kind == "op"} == {"sub"}
    assert {name for name, row in rows(found[0]).items() if row.kind == "op"} == {"add"}


def test_fit_is_seen_like_any_code():
    net = Net()
    batches = [(wf.randn(4, 4), wf.randint(0, 2, (4,))) for _ in range(3)]
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    with wf.profile() as p:
        wf.train.fit(net, batches, optimizer=optimizer, loss=nn.functional.cross_entropy, epochs=2, progress=False)
    assert rows(p)["cross_entropy"].calls == rows(p)["SGD.step"].calls == 6
    assert rows(p, "module")["first"].calls == 6


def test_events_have_a_limit_and_sums_have_none():
    x = wf.ones(3)
    with wf.profile(events=10) as p:
        for _ in range(50):
            x + 1
    assert rows(p)["add"].calls == 50
    assert p.left_out == 40 and len(p._watch.events) == 10
    assert "40 more" in str(p)


def test_what_is_remembered_of_nodes_is_bounded(monkeypatch):
    monkeypatch.setattr(stopwatch, "_NODES", 64)
    monkeypatch.setattr(stopwatch, "_SHAPES", 4)
    x = wf.ones(3).requires_grad_()
    with wf.profile() as p:
        watch = p._watch
        for n in range(1000):
            wf.ones(n % 17 + 1) * 2
            x + 1
            assert len(watch._place_of) <= 64
        assert max(len(place.known) for place in watch.places.values()) <= 4
    assert rows(p)["mul"].flops == sum(n % 17 + 1 for n in range(1000))


def test_sorted_and_cut():
    x = wf.ones(100)
    with wf.profile() as p:
        for _ in range(5):
            x + 1
        wf.ones(100, 100) @ wf.ones(100, 100)
    assert p.rows(sort="calls")[0].name == "add"
    assert p.rows(sort="flops")[0].name == "matmul"
    assert p.rows(sort="bytes")[0].name == "matmul"
    assert len(p.rows(top=1)) == 1
    assert "2 more" in p.table(sort="calls", top=1)


def test_a_table_fits_in_80_columns():
    a_name_that_is_much_longer_than_any_table_has_room_for = wf.ones(3)
    with wf.profile() as p:
        a_name_that_is_much_longer_than_any_table_has_room_for + a_name_that_is_much_longer_than_any_table_has_room_for
    for text in (str(p), *[p.table(by) for by in ("op", "line", "module", "kernel", "group")]):
        assert all(len(line) <= 80 for line in text.split("\n"))


def test_bad_arguments():
    with wf.profile() as p:
        wf.ones(1) + 1
    with pytest.raises(ArgumentError, match="by must be one of op, line, module, kernel, group, not 'foo'"):
        p.rows(by="foo")
    with pytest.raises(ArgumentError, match="sort must be one of time"):
        p.table(sort="name")
    with pytest.raises(ArgumentError, match="top is how many rows"):
        p.table(top=0)
    with pytest.raises(ArgumentError, match="top is how many rows"):
        p.rows(top=True)
    with pytest.raises(ArgumentTypeError, match="does not take a function"):
        wf.profile(rows)
    with pytest.raises(ArgumentError, match="events is how many"):
        wf.profile(events=-1)
    with pytest.raises(ArgumentTypeError, match="memory is True or False"):
        wf.profile(memory="yes")
    with pytest.raises(ArgumentTypeError, match="name of a file, not int"):
        p.save(3)
    with pytest.raises(OperationError, match="was used already"), p:
        pass


def test_numbers_are_there_when_the_block_has_ended():
    with wf.profile() as p:
        for ask in (p.rows, p.table, lambda: str(p), lambda: p.seconds, lambda: p.peak_bytes, lambda: p.trace("x")):
            with pytest.raises(OperationError, match="when the block has ended"):
                ask()
    assert "not ended" not in repr(p)


def test_it_is_a_module_and_a_function():
    import wayfare.profile

    assert wayfare.profile is wf.profile
    assert isinstance(wf.profile(), wayfare.profile.Profile)
    assert wf.profile.compare is wayfare.profile.compare is wayfare.profile.Profile.compare


# -- the arithmetic of times, with a clock that is wound by hand


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(stopwatch, "perf_counter", made)
    return made


def test_what_runs_inside_is_taken_off(clock):
    add, mul = REGISTRY["add"], REGISTRY["mul"]
    out = wf.ones(2)
    watch = stopwatch.Stopwatch(100, True)
    watch.start()
    watch.starts(add)
    clock.now = 1.0
    watch.starts(mul)
    clock.now = 4.0
    watch.ran(mul, (out, out), (wf.ones(2),), {})
    watch.starts(mul)  # fails at 6
    clock.now = 6.0
    watch.starts(mul)
    clock.now = 7.0
    watch.ran(mul, (out, out), (wf.ones(2),), {})
    clock.now = 10.0
    watch.ran(add, (out, out), (wf.ones(2),), {})
    clock.now = 11.0
    watch.stop()
    seconds = {}
    for place in watch.places.values():
        seconds[place.name] = seconds.get(place.name, 0) + place.seconds
    assert seconds == {"mul": 3 + 1, "add": 10 - 3 - 1 - 0}
    assert watch.seconds == 11
