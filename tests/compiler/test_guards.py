"""Guards: each kind of change of a global, a cell, a default, a function or a container is noticed and named."""

import collections
import functools
import math
import types
import weakref

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.guarding import changes, guarded, namespace
from wayfare import nn
from wayfare.compiler.captures.reach import reach

weights = wf.ones(3)

# -- globals, cells, defaults


def test_a_global():
    f, there = namespace(source="def f(x): return x * scale", scale=2.0)
    guards = guarded(f)
    there["scale"] = 3.0
    changes(guards, "global `scale` was 2.0 and is 3.0")
    there["scale"] = 2.0
    assert guards.holds()
    del there["scale"]
    changes(guards, "global `scale` is gone")


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), (None, 0), ((1, 2), (1, 3)), ((1, 2), (1, 2.0)), (b"a", "a"),
     (1j, 2j), (range(3), range(4)), (slice(1), slice(2)), (wf.float32, wf.float64), (frozenset({1}), frozenset({2})),
     (np.float32(1), np.float64(1)), (np.int64(1), np.int64(2)), (1, wf.ones(1)), ([1], (1,)), (0.0, math.nan),
     (np.arange(3), np.arange(3))],
)  # fmt: skip
def test_values_that_differ(old, new):
    f, there = namespace(source="def f(x): return value", value=old)
    guards = guarded(f)
    there["value"] = new
    changes(guards, "`value`")


@pytest.mark.parametrize(
    ("old", "new"),
    [(1e300, float("1e300")), (math.nan, float("nan")), ((1, 2.5), (1, float("2.5"))), (10**20, 10**20 + 0),
     ([1, 2], [1, 2]), ({"a": [1]}, {"a": [1]}), ({1, 2}, {1, 2}),
     (collections.deque([1]), collections.deque([1])), (np.float32(2), np.float32(2)), (nn.ReLU(), nn.ReLU())],
)  # fmt: skip
def test_values_that_are_equal_hold_and_go_on_being_watched(old, new):
    f, there = namespace(source="def f(x): return value", value=old)
    guards = guarded(f)
    there["value"] = new
    assert guards.holds(), guards.why()
    there["value"] = "another"
    changes(guards, "`value`")


def test_a_name_that_begins_to_hide_a_builtin():
    f, there = namespace(source="def f(x): return sum(x)")
    guards = guarded(f)
    there["sum"] = max
    changes(guards, "global `sum` exists now")


def test_a_cell():
    value = 2.0

    def f(x):
        return x * value

    guards = guarded(f)
    value = 3.0
    changes(guards, "closure `value` was 2.0 and is 3.0")


def test_a_cell_used_only_in_a_function_inside():
    value = 2.0

    def f(x):
        return [(lambda v: v * value)(v) for v in x]

    guards = guarded(f)
    value = 3.0
    changes(guards, "closure `value`")


def test_defaults():
    def f(x, k=2, *, m=3):
        return x * k * m

    guards = guarded(f)
    f.__defaults__ = (5,)
    changes(guards, "default `k` was 2 and is 5")
    f.__defaults__ = (2,)
    assert guards.holds()
    f.__kwdefaults__["m"] = 4
    changes(guards, "default `m` was 3 and is 4")


def test_a_list_that_is_a_default():
    def f(x, kept=[1]):  # noqa: B006
        return x * kept[0]

    guards = guarded(f)
    f.__defaults__[0].append(2)
    changes(guards, "`kept` went from 1 to 2 entries")


def test_a_tensor_is_compared_by_identity():
    f, there = namespace(source="def f(x): return x * w", w=wf.ones(3))
    guards = guarded(f)
    there["w"].mul_(2)
    assert guards.holds()
    there["w"] = wf.ones(3)
    changes(guards, "global `w` is another tensor now")


# -- functions


def test_a_helper_and_what_it_sees():
    f, there = namespace(
        source="def h(x): return x * scale\ndef g(x): return h(x)\ndef f(x): return g(x)", scale=2.0
    )
    guards = guarded(f)
    there["scale"] = 3.0
    changes(guards, "`scale`")
    there["scale"] = 2.0
    there["h"] = lambda x: x
    changes(guards)


def test_a_function_with_new_code():
    f, there = namespace(source="def h(x): return x * 2\ndef f(x): return h(x)")
    guards = guarded(f)
    there["h"].__code__ = (lambda x: x * 3).__code__
    changes(guards, "function `h` has other code now")


def test_the_same_lambda_made_again_holds_unless_its_cell_is_another():
    def made(k):
        return lambda x: x * k

    f, there = namespace(source="def f(x): return g(x)", g=made(2))
    guards = guarded(f)
    there["g"] = made(2)
    assert guards.holds(), guards.why()
    there["g"] = made(3)
    changes(guards, "closure `k` was 2 and is 3")


def test_recursion():
    def f(x):
        return f(x - depth) if x > 0 else x

    depth = 1
    guards = guarded(f)
    depth = 2
    changes(guards, "closure `depth`")


def test_a_partial():
    f, there = namespace(source="def f(x): return g(x)", g=functools.partial(lambda x, k: x * k, k=2))
    guards = guarded(f)
    there["g"] = functools.partial(there["g"].func, k=2)
    assert guards.holds()
    there["g"] = functools.partial(there["g"].func, k=3)
    changes(guards, "was 2 and is 3")


@pytest.mark.parametrize("decorate", [wf.no_grad(), wf.fused])
def test_what_a_decorator_wrapped(decorate):
    f, there = namespace(source="@decorate\ndef g(x): return x * scale\ndef f(x): return g(x)",
                         scale=2.0, decorate=decorate)  # fmt: skip
    guards = guarded(f)
    there["scale"] = 3.0
    changes(guards, "`scale`")


def test_a_function_of_a_library_that_is_replaced(monkeypatch):
    def f(x):
        return nn.functional.relu(x) + math.pi

    guards = guarded(f)
    monkeypatch.setattr(nn.functional, "relu", lambda x: x)
    changes(guards, "relu")


# -- containers


def mutable():
    return {
        "list": ([1, 2, 3], lambda v: v.__setitem__(1, 5)),
        "list grown": ([1], lambda v: v.append(2)),
        "long list": (list(range(30)), lambda v: v.__setitem__(29, 0)),
        "long list, same length": (list(range(30)), lambda v: v.reverse()),
        "list of tensors": ([wf.ones(1)], lambda v: v.__setitem__(0, wf.ones(1))),
        "long list of tensors": ([wf.ones(1) for _ in range(10)], lambda v: v.__setitem__(9, wf.ones(1))),
        "nested": ([[{"a": (1, [2])}]], lambda v: v[0][0]["a"][1].append(3)),
        "dict": ({"a": 1}, lambda v: v.update(a=2)),
        "dict key": ({"a": 1}, lambda v: v.update(b=2)),
        "dict key replaced": ({"a": 1}, lambda v: v.update(b=v.pop("a"))),
        "dict order": ({"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
        "dict with tuple keys": ({(1, 2): 1}, lambda v: v.__setitem__((1, 2), 2)),
        "set": ({1, 2}, lambda v: v.add(3)),
        "deque": (collections.deque([1, 2]), lambda v: v.appendleft(v.pop())),
        "ordered dict": (collections.OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
        "counter": (collections.Counter("aab"), lambda v: v.update("b")),
        "default dict": (collections.defaultdict(list, a=[1]), lambda v: v["a"].append(1)),
        "array": (np.arange(4.0), lambda v: v.__setitem__(2, 9)),
        "array shape": (np.arange(4), lambda v: setattr(v, "shape", (2, 2))),
        "object": (types.SimpleNamespace(a=1), lambda v: setattr(v, "a", 2)),
        "object in a list": ([types.SimpleNamespace(a=1)], lambda v: setattr(v[0], "a", 2)),
    }


@pytest.mark.parametrize("name", mutable())
def test_a_change_inside(name):
    value, change = mutable()[name]
    f, _ = namespace(source="def f(x): return value.a if value else value[0]", value=value)
    guards = guarded(f)
    change(value)
    changes(guards, "value")


def test_a_cycle():
    ring = [1]
    ring.append(ring)

    def f(x):
        return ring[1][1][0]

    guards = guarded(f)
    ring[0] = 2
    changes(guards, "`ring[0]` was 1 and is 2")


def test_two_equal_lists_are_not_one_list_twice():
    one = [1]
    f, there = namespace(source="def f(x): return pair", pair=[one, one])
    guards = guarded(f)
    there["pair"] = [[1], [1]]
    changes(guards)



# -- tensors and arrays


def test_tensors_are_found_and_named():
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    kept = {"w": [wf.ones(2)]}
    h = wf.ones(1)
    array = np.ones(3)

    def f(x):
        return net(x) + kept["w"][0] + h + weights + array

    seen = reach(f)
    named = {seen.name_of(t) for t in seen.tensors.values()}
    assert named == {"net[0].weight", "net[0].bias", "kept['w'][0]", "closure `h`", "global `weights`"}
    assert seen.arrays[0] is array
    assert seen.name_of(array) == "closure `array`"
    assert seen.name_of(wf.ones(1)) == ""


def test_optimisers_and_generators_are_compared_by_identity():
    net = nn.Linear(3, 3)
    generator = wf.Generator()
    opt = wf.optim.SGD(net.parameters(), lr=0.1)
    schedule = wf.optim.lr_scheduler.StepLR(opt, 1)

    def f(x):
        (net(x).sum() + wf.rand(1, generator=generator)).backward()
        opt.step()
        schedule.step()

    guards = guarded(f)
    f(wf.ones(1, 3))
    opt.param_groups[0]["lr"] = 3.0
    assert guards.holds(), guards.why()
    opt = wf.optim.SGD(net.parameters(), lr=0.1)
    changes(guards, "closure `opt` is another SGD now")


# -- what a call changes itself


def test_what_the_call_itself_changed():
    seen = []

    def f(x):
        seen.append(x)
        return x

    guards = guarded(f)
    assert guards.changed_by_call() == ""
    f(1)
    assert guards.changed_by_call() == "closure `seen` went from 0 to 1 entries"


def test_guards_keep_nothing_alive_after_them(no_cycle_collector):
    class Thing:
        pass

    thing = Thing()
    f, there = namespace(source="def f(x): return thing.k", thing=thing)
    guards = guarded(f)
    alive = weakref.ref(thing)
    del thing, there["thing"]
    assert not guards.holds()
    assert alive() is not None
    del guards
    assert alive() is None
