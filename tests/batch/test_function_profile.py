"""What is remembered of a mapped function: turns, the account, and what is said. No clock is asked: times are given."""

import contextlib
import random
import threading
import warnings
from types import SimpleNamespace

import pytest

import wayfare as wf
from wayfare.batch.function_profile import FunctionProfile, MapTiming, profile_of


@pytest.fixture(autouse=True)
def as_it_pays(monkeypatch, always_batched):
    monkeypatch.setitem(wf.map.__kwdefaults__, "batch", None)


def maps(profile, count, by_map, by_loop, examples=16):
    """Let so many maps happen, an example of which takes so many seconds; which of them ran as a loop?"""
    ways = []
    for _ in range(count):
        loop, _first, timed = profile.plan(examples, maps)
        profile.analysis_of(maps).tried = True
        ways.append(loop)
        if loop:
            profile.timed([by_loop] * examples)
            continue
        if timed:
            profile.timed([by_loop] * timed)
        timing = MapTiming(examples - timed)
        timing.seconds = by_map * timing.examples
        profile.add_map(timing, {"here.py:7": 3})
    return ways


def test_a_map_that_pays_stays_batched():
    assert not any(maps(FunctionProfile("f"), 200, by_map=1.0, by_loop=2.0))


def test_a_map_that_does_not_pay_runs_as_a_loop_and_says_why_once():
    profile = FunctionProfile("f")
    with pytest.warns(UserWarning, match=r"f runs as a plain loop from now on.*here\.py:7 \(3 times a map\)") as said:
        ways = maps(profile, 100, by_map=3.0, by_loop=1.0)
    assert len(said) == 1
    assert not any(ways[:3]) and sum(ways) >= 90  # it is tried again now and then
    assert "runs as a loop" in str(profile)


@pytest.mark.filterwarnings("ignore:map")
def test_a_wrong_judgement_is_put_right():
    profile = FunctionProfile("f")
    assert any(maps(profile, 6, by_map=3.0, by_loop=1.0))
    profile.timed([5.0] * 16)  # all examples of a loop say otherwise
    assert not any(maps(profile, 20, by_map=3.0, by_loop=5.0)[3:])


def test_the_first_loop_compiles_kernels_and_does_not_count():
    profile = FunctionProfile("f")
    profile.plan(2, maps)
    profile.timed([50.0, 40.0])  # cold
    assert profile.by_loop == [40.0]  # better than nothing
    profile.timed([2.0, 1.0])
    assert profile.by_loop == [1.0] and profile.wants_timing()
    profile.timed([2.0, 3.0])
    assert profile.by_loop == [1.0, 3.0]


def test_a_full_collection_of_garbage_in_a_timed_loop_does_not_decide():
    profile = FunctionProfile("f")
    profile.by_loop, profile.by_map = [1.0, 1.1, 20.0, 0.9, 18.0], [MapTiming(1)]
    profile.by_map[0].seconds = 2.0
    assert profile.costs() == (2.0, 1.1)


@pytest.mark.filterwarnings("ignore:map")
def test_the_backward_pass_counts():
    profile = FunctionProfile("f")
    for _ in range(6):
        profile.plan(16, maps)
        profile.analysis_of(maps).tried = True
        profile.timed([1.0, 1.0])
        timing = MapTiming(14)
        timing.seconds, timing.backward = 1.5 * 14, 0.1 * 14
        profile.add_map(timing, {})
    assert not profile.loop_reason and profile.costs() == (pytest.approx(1.6), pytest.approx(2.0))


def test_a_few_examples_are_compared_in_turns():
    ways = maps(FunctionProfile("f"), 6, by_map=1.0, by_loop=2.0, examples=2)
    assert True in ways and False in ways


def test_one_example_is_the_loop():
    assert wf.map(lambda x: x * 2, [wf.ones(1)])[0].grad_fn is None
    assert wf.batching.last().looped == 1 and "ran as a plain loop" in str(wf.batching.last())


def test_large_examples_run_as_they_come():
    wf.map(lambda x: x.sum(), [wf.ones(300_000) for _ in range(3)])
    assert wf.batching.last().looped == 3
    table = wf.ones(300_000)
    wf.map(lambda x, t: x + t[0], [wf.ones(2)] * 3, [table] * 3)  # one table for all
    assert wf.batching.last().looped == 0


def test_knowledge_is_of_the_code():
    def make(k):
        return lambda x: x * k

    assert profile_of(make(1)) is profile_of(make(2))
    layer = wf.nn.Linear(2, 2)
    assert profile_of(layer) is profile_of(layer) is not profile_of(wf.nn.Linear(2, 2))


def test_a_function_that_changes_what_all_see_is_a_loop_until_it_stops():
    box = {"write": True}
    total = wf.zeros(1)

    def f(x):
        if box["write"]:
            total.add_(x)
        return x * 2

    xs = [wf.ones(1) for _ in range(4)]
    words = "add_ writes to a tensor that all examples see .test_function_profile.py"
    with pytest.warns(UserWarning, match=words) as said:
        wf.map(f, xs)
    assert len(said) == 1 and total.item() == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            wf.map(f, xs)
        assert total.item() == 20
    box["write"] = False
    with warnings.catch_warnings(record=True):  # of the account, maybe: so small a function hardly pays
        for _ in range(12):
            wf.map(f, xs)
    assert not profile_of(f).in_order and total.item() == 20


def test_examples_that_saw_the_old_state_begin_again():
    w = wf.zeros(1)

    def f(x):
        h = x * w
        if h.sum() > -1 and x.item() == 2:
            w.add_(1)
        return h

    def logged(tree):
        tree.seen = True  # nobody can tell whether others see this object
        return f(tree.x)

    xs = [wf.tensor([float(i)]) for i in range(6)]
    want = [0.0, 0.0, 0.0, 3.0, 4.0, 5.0]
    with pytest.warns(UserWarning, match="add_ writes"):
        assert [t.item() for t in wf.map(f, xs)] == want
    # With effects of Python's own it cannot: that is said.
    w.zero_()
    with pytest.warns(UserWarning, match="examples 3 to 5 had begun before"):
        wf.map(logged, [SimpleNamespace(x=x) for x in xs])
    assert w.item() == 1


def test_batch_true_always_batches():
    f = lambda x: float(x.sum()) + float((x * 2).sum())
    for _ in range(12):
        assert wf.map(f, [wf.ones(2)] * 8, batch=True) == [6.0] * 8
        assert wf.batching.last().looped == 0


def stored(name):
    """Functions of one example that change what is not theirs, and read a value in between."""
    layer = wf.nn.Linear(3, 3)
    kept = {"last": wf.zeros(3), "n": 0, "log": []}
    watched = wf.nn.Sequential(wf.nn.Linear(3, 3), wf.nn.Tanh())
    watched[0].register_forward_hook(lambda module, args, out: kept.__setitem__("last", out))
    lock = threading.Lock()

    class Parser:
        def parse(self, x):
            self.stack = []
            for i in range(3):
                self.stack.append(layer(x * i))
                if self.stack[-1].sum() > 0:
                    self.stack.pop()
            return len(self.stack)

    @contextlib.contextmanager
    def switched(value):
        before, kept["n"] = kept["n"], value
        try:
            yield
        finally:
            kept["n"] = before

    def hook(x):
        y = watched(x)
        y = y * 2 if y.sum() > 0 else y
        return (y + kept["last"]).sum().item()

    def carried(x):
        g = layer(x + kept["last"])
        if g.sum() > 0:
            g = g * 0.5
        kept["last"] = g
        return g.sum().item()

    def counter(x):
        n = kept["n"]
        value = layer(x).sum().item()
        kept["n"] = n + 1
        return value + n

    def block(x):
        with switched(x.sum().item()):
            return layer(x).sum().item() + kept["n"]

    def locked(x):
        with lock:
            return layer(x).sum().item()

    def drawn(x):
        y = layer(x).abs()
        while y.max() < 5:
            y = y * 2 if random.random() < 0.5 else y + 1
        return y.sum().item()

    return {"hook": hook, "object": Parser().parse, "carried": carried, "counter": counter, "block": block,
            "lock": locked, "random": drawn}[name]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["hook", "object", "carried", "counter", "block", "lock", "random"])
def test_who_changes_python_objects_is_not_left_in_the_middle(name):
    found = []
    xs = [wf.tensor([i - 2.0, 1.0, -i]) for i in range(6)]
    for run in (lambda f: [f(x) for x in xs], lambda f: wf.map(f, xs, batch=True)):
        wf.manual_seed(0)
        random.seed(0)
        found.append(run(stored(name)))
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_lists_of_its_own_are_no_obstacle():
    layer = wf.nn.Linear(3, 3)

    def f(x):
        stack = [x]
        for _ in range(3):
            top = stack.pop()
            stack.append(layer(top) if layer(top).sum() > 0 else top * 2)
        return stack[-1]

    wf.map(f, [wf.tensor([float(i), 1.0, 2.0]) for i in range(5)], batch=True)
    assert wf.batching.last().rounds <= 3 + 4  # those of the first example by itself, and those of all others together


def test_an_interrupt_stops_all_at_once():
    """Those before it do not run to their end, as they do after an error."""

    def f(x, i):
        n = 0
        while i == 1 and n < 50 and x.sum() > -1:
            n += 1
        if i == 2 and x.sum() > -1:
            raise KeyboardInterrupt
        return n

    with pytest.raises(KeyboardInterrupt):
        wf.map(f, [wf.ones(2)] * 4, range(4), batch=True)
    assert wf.batching.last().rounds < 10


def test_functions_of_one_code_are_read_each():
    """`lambda x: g(x)` does what g does: what was read of one says nothing of another."""
    layer, kept = wf.nn.Linear(3, 3), {"n": 0}

    def through(g):
        return lambda x: g(x)

    def harmless(x):
        return layer(x).sum().item()

    def counts(x):
        n = kept["n"]
        layer(x).sum().item()
        kept["n"] = n + 1
        return n

    xs = [wf.ones(3) for _ in range(5)]
    for _ in range(2):
        wf.map(through(harmless), xs, batch=True)
        kept["n"] = 0
        assert wf.map(through(counts), xs, batch=True) == [0, 1, 2, 3, 4]
    reading = profile_of(through(counts)).analysis_of(through(counts))
    assert profile_of(through(counts)).analysis_of(through(counts)) is reading  # and not at every map
