"""`wf.debug.record`: what a run says is what happened, in order, and nothing is held longer than the program does."""

import gc
import threading
import weakref

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.see.debug.documents import consistent
from wayfare import nn
from wayfare.core.mode import STATE, Watcher
from wayfare.see.debug.watching import looking_on
from wayfare.see.debug.words import attribute_text

# What a file calls a tensor is its name in a run.
X, W = wf.ones(2, 3), wf.ones(3, 2, requires_grad=True)


def leaf(run):
    """The one leaf of a run."""
    (found,) = (value for value in run.nodes if value.op == "leaf")
    return found


def kinds(run):
    return "".join(event[0] for event in run.document()["events"])


def test_forward_and_backward_are_in_order():
    x, w = X, W
    with wf.debug.record() as run:
        h = x @ w
        loss = h.tanh().sum()
        loss.backward()
    consistent(run)
    assert [(step.kind, step.value.op) for step in run] == [
        ("forward", "matmul"), ("forward", "tanh"), ("forward", "sum"),
        ("backward", "sum"), ("backward", "tanh"), ("backward", "matmul"), ("gradient", "leaf"),
    ]  # fmt: skip
    product = next(value for value in run.nodes if value.op == "matmul")
    assert [i.name for i in product.inputs] == ["X", "W"]
    assert (product.spec, product.code, product.is_leaf) == ("f32[2,2]", "h = x @ w", False)
    assert product.line.startswith("test_record.py:")
    assert product.elements == [[3.0, 3.0], [3.0, 3.0]]
    assert product.stats.mean == 3
    assert product.grad.mean == pytest.approx(1 - np.tanh(3) ** 2, rel=1e-4)
    assert product.saved == x.nbytes
    assert run.nodes[-1].elements == pytest.approx(4 * np.tanh(3), rel=1e-5)


def test_nothing_is_recorded_outside_the_block_and_nothing_stays_behind():
    assert STATE.mode is None
    x = wf.ones(2)
    with wf.debug.record() as run:
        x + 1
    assert STATE.mode is None
    x + 2
    assert run.stats().forward == 1


def test_the_gradient_of_a_leaf_is_what_it_has_after_the_pass():
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    with wf.debug.record() as run:
        (w * w + w * 3).sum().backward()
        seen = w.grad.tolist()
        w.grad = None
    assert leaf(run).grad_elements == seen == [5.0, 7.0]
    # Both products lead to the leaf; the two ways of `w * w` are one step.
    assert kinds(run).count("a") == 2


def test_a_gradient_that_is_only_asked_for_is_seen_too():
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    with wf.debug.record() as run:
        (g,) = wf.autograd.grad((w * w).sum(), w)
    assert w.grad is None
    assert leaf(run).grad_elements == g.tolist()


def test_gradients_of_gradients():
    x = wf.tensor([2.0, 3.0], requires_grad=True)
    with wf.debug.record() as run:
        (g,) = wf.autograd.grad((x**3).sum(), x, create_graph=True)
        g.sum().backward()
    consistent(run)
    assert leaf(run).grad_elements == [12.0, 18.0]


def test_a_graph_made_before_the_block_is_known_by_its_nodes():
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    h = (x * 2).tanh()
    with wf.debug.record() as run:
        h.sum().backward()
    consistent(run)
    assert [value.op for value in run.nodes if not value.is_leaf] == ["mul", "tanh", "sum"]
    tanh = next(value for value in run.nodes if value.op == "tanh")
    assert tanh.stats is None
    assert tanh.grad.mean == 1
    assert tanh.code == "h = (x * 2).tanh()"
    with wf.debug.record() as run:
        (h * 1).sum()
    assert [value.op for value in run.nodes if not value.is_leaf] == ["mul", "tanh", "mul", "sum"]


def test_ops_without_gradient_are_seen():
    with wf.debug.record() as run, wf.no_grad():
        y = wf.ones(3, requires_grad=True) * 2
        y.add_(1)
    assert [value.op for value in run.nodes if not value.is_leaf] == ["mul", "add"]
    assert run.nodes[-1].elements == [3.0, 3.0, 3.0]
    assert run.nodes[-1].line.startswith("test_record.py:")


def test_ops_of_several_outputs():
    x = wf.tensor([[1.0, 5.0], [7.0, 2.0]], requires_grad=True)
    with wf.debug.record() as run:
        values, _ = x.max(1)
        values.sum().backward()
    consistent(run)
    first, second = (value for value in run.nodes if value.op == "max_at")
    assert (first.elements, second.elements) == ([5.0, 7.0], [1, 0])
    assert first.grad_elements == [1.0, 1.0]
    assert second.grad is None
    assert run.document()["events"][0] == ["f", first.number, 2]


def test_decisions_have_their_outcome_and_line():
    with wf.debug.record() as run:
        x = wf.tensor([1.0, 2.0])
        if x.sum() > 2:
            x = x * 2
        x.max().item()
        x.tolist()
    consistent(run)
    seen = [(step.how, step.outcome, step.value.op) for step in run if step.kind == "decision"]
    assert seen == [("bool()", "True", "gt"), ("item()", "4.0", "max_of_all"), ("tolist()", "f32[2]", "mul")]
    lines = [step.line for step in run if step.kind == "decision"]
    assert len(set(lines)) == 3


def test_no_array_is_held_longer_than_the_program_holds_it():
    with wf.debug.record() as run:
        small, large = wf.ones(10) * 2, wf.ones(100, 200) * 2
        dead = [weakref.ref(small._array), weakref.ref(large._array)]
        before = run.document()["memory"][-1]
        del small, large
        wf.ones(1) * 1
        assert [reference() for reference in dead] == [None, None]
    memory = run.document()["memory"]
    assert before >= 80_000
    assert memory[-1] < 1000


def test_no_model_is_held_when_the_block_has_ended():
    class Net(nn.Linear):
        pass

    net = Net(3, 2)
    with wf.debug.record() as run:
        net(wf.ones(1, 3)).sum().backward()
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None
    assert run.stats().by_module == {"Net": 1}


def test_an_error_in_the_block_passes_on_and_the_run_stays():
    with pytest.raises(ZeroDivisionError), wf.debug.record() as run:
        x = wf.ones(2) * 3
        x / (1 // 0)
    document = consistent(run)
    assert run.error == "ZeroDivisionError: integer division or modulo by zero"
    assert document["files"][document["sites"][document["ended"]["site"]][0]]["name"] == "test_record.py"
    assert [value.op for value in run.nodes if not value.is_leaf] == ["mul"]
    assert "ended by an error on test_record.py:" in str(run)
    assert STATE.mode is None


def test_the_run_can_be_looked_at_while_it_goes_on():
    with wf.debug.record() as run:
        x = wf.ones(3) * 2
        assert len(run) == 1
        x * 3
        assert len(run) == 2
        assert run.nodes[-1].elements == [6.0, 6.0, 6.0]
    assert len(run) == 2


def test_other_threads_are_not_recorded():
    with wf.debug.record() as run:
        thread = threading.Thread(target=lambda: wf.ones(3) * 2)
        thread.start()
        thread.join()
        wf.ones(3) + 2
    assert run.stats().by_op == {"add": 1}


def test_it_works_in_another_thread():
    found = []

    def work():
        w = wf.ones(2, requires_grad=True)
        with wf.debug.record() as run:
            (w * 2).sum().backward()
        found.append(run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kinds(found[0]) == "ffbba"


def test_records_inside_records_and_beside_other_watchers():
    class Counter(Watcher):
        count = 0

        def ran(self, op, inputs, outputs, attrs):
            self.count += 1

    counter = Counter()
    with looking_on(counter), wf.debug.record() as outer:
        wf.ones(2) * 1
        with wf.debug.record() as inner:
            wf.ones(2) * 2
        wf.ones(2) * 3
    assert (counter.count, outer.stats().forward, inner.stats().forward) == (3, 3, 1)


def test_no_more_than_the_limit_is_written_down():
    x = wf.ones(2, requires_grad=True)
    with wf.debug.record(limit=10) as run:
        y = x
        for _ in range(20):
            y = y * 2
        y.sum().backward()
    document = consistent(run)
    assert len(run.nodes) <= 12
    assert document["left_out"] == 21 - sum(not kind for kind in document["nodes"]["kind"])
    assert "limit=" in str(run)


def test_a_long_chain_is_shown_by_its_ends():
    x = wf.ones(2, requires_grad=True)
    with wf.debug.record() as run:
        y = x
        for _ in range(3000):
            y = y * 1.0
        y.sum().backward()
    text = str(run)
    assert len(text.splitlines()) < 400
    assert "steps left out" in text
    assert ".grad " in text
    consistent(run)


def test_what_is_written_in_place_keeps_its_history():
    x = wf.ones(2, 2, requires_grad=True)
    with wf.debug.record() as run:
        y = x * 2
        y[0].mul_(3)
        y.sum().backward()
    consistent(run)
    assert leaf(run).grad_elements == [[6.0, 6.0], [2.0, 2.0]]


def test_optimiser_steps_and_dropped_gradients():
    net = nn.Linear(2, 1)
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    with wf.debug.record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            net(wf.ones(4, 2)).sum().backward()
            optimizer.step()
    consistent(run)
    assert next(value for value in run.nodes if value.name == "bias").grad_elements == [4.0]
    assert kinds(run).count("b") == 4


@pytest.mark.parametrize(
    "program",
    [
        lambda: wf.vmap(lambda x: (x * 2).sum())(wf.ones(3, 4)),
        lambda: wf.func.grad(lambda x: (x * 2).sum())(wf.ones(3)),
        lambda: nn.Embedding(100, 4)(wf.tensor([1, 2])).sum().backward(),
        lambda: wf.ones(100, 4, requires_grad=True)[wf.tensor([1, 2])].sum().backward(),
        lambda: nn.LSTM(3, 4, 2)(wf.ones(5, 2, 3))[0].sum().backward(),
        lambda: wf.fused(lambda a: a.tanh() * 2)(wf.ones(3, requires_grad=True)).sum().backward(),
        lambda: F.dropout(wf.ones(3), 0.5) * wf.zeros(0, 3).sum(),
        lambda: wf.arange(5)[wf.arange(5) > 2].tolist(),
    ],
)
def test_odd_programs_run_as_without_it(program):
    with wf.debug.record() as run:
        program()
    consistent(run)
    assert run.stats().forward > 0


def test_the_results_are_the_same():
    def program():
        wf.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
        net(wf.randn(5, 4)).square().mean().backward()
        return [p.grad.tolist() for p in net.parameters()]

    plain = program()
    with wf.debug.record():
        assert program() == plain


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"limit": 0}, ValueError, "limit is a number of values"),
        ({"limit": "many"}, ValueError, "limit is a number of values"),
        ({"values": "softmax"}, ValueError, r"values=\['softmax'\]"),
        ({"values": 3}, TypeError, "values is 'all'"),
        ({"values": [1]}, TypeError, "values is 'all'"),
        ({"module": "encoder"}, TypeError, "module=model"),
        ({"title": 3}, TypeError, "title must be text"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments, error, text):
    with pytest.raises(error, match=text):
        wf.debug.record(**arguments)


def test_a_block_is_used_once():
    block = wf.debug.record()
    with block:
        pass
    with pytest.raises(RuntimeError, match=r"Make a new wf\.debug\.record"), block:
        pass


def test_attributes_of_any_kind_are_text():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    with wf.debug.record() as run:
        x = wf.arange(6.0)
        x[wf.tensor([0, 2])]
        x[[0, 1], None]
        x.sum()
    document = consistent(run)
    assert "dim=(0,)" in document["strings"]
    assert attribute_text(Hostile()) == "<Hostile: RuntimeError in its repr>"
    assert len(attribute_text(list(range(1000)))) <= 200
    assert attribute_text((1, np.ones((2, 3)))) == "(1, f64[2,3])"
    assert attribute_text(np.array(["text"])) == "array(['text'], dtype='<U4')"


def test_a_leaf_read_twice_by_an_op_gets_its_gradient_once():
    a = wf.tensor([1.0, 2.0], requires_grad=True)
    with wf.debug.record() as run:
        (a * a).sum().backward()
    assert [step.kind for step in run].count("gradient") == 1


def test_a_leaf_of_several_steps_shows_its_gradient_where_it_is_whole():
    a = wf.tensor(2.0, requires_grad=True)
    with wf.debug.record() as run:
        b = a * 3
        (b * a).backward()
    lines = [line for line in str(run).splitlines() if ".grad" in line]
    assert len(lines) == 2 and "more to come" in lines[0] and lines[1].endswith("12")


def test_blocks_left_in_another_order_leave_nobody_behind():
    one, other = Watcher(), Watcher()
    first, second = looking_on(one), looking_on(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert STATE.mode.watcher is other
    second.__exit__(None, None, None)
    assert STATE.mode is None
