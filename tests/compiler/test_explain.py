"""What `explain()` tells: the tree, the plans, what is guarded, and why Python ran again or instead."""

import random
import re
import warnings

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.runtime import kernel

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

needs_llvm = pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")


def branching(x, k):
    if x.sum() > 0:
        return x * k
    return x - int(x.abs().max()) * k


def test_the_tree_has_a_branch_for_each_outcome():
    f = wf.compile(branching)
    for value in (1.0, 1.0, 1.0, -1.0, -1.0, -2.0):
        f(wf.full((3,), value), 2)
    told = f.explain()
    assert (told.data["calls"], told.data["recorded"], told.data["replayed"], told.data["plain"]) == (6, 3, 3, 0)
    (kind,) = told.data["signatures"]
    assert kind["arguments"] == "f32[3], 2"
    (variant,) = kind["variants"]
    assert (variant["hits"], variant["recordings"]) == (3, 3)
    root = variant["tree"]
    assert root["decision"] == "bool()" and re.fullmatch(r"test_explain.py:\d+", root["line"])
    assert [branch["outcome"] for branch in root["outcomes"]] == ["True", "False"]
    positive, other = (branch["then"] for branch in root["outcomes"])
    assert positive["ends"] and positive["visits"] == 2
    assert positive["plan"]["kernels"] + positive["plan"]["python_steps"] == 1
    assert [branch["outcome"] for branch in other["outcomes"]] == ["1.0", "2.0"]
    seen_twice, seen_once = (branch["then"] for branch in other["outcomes"])
    assert seen_twice["plan"]["native_calls"] <= 1 and seen_once["plan"] is None


def test_the_text_draws_the_tree():
    f = wf.compile(branching)
    for value in (1.0, 1.0, -1.0, -2.0):
        f(wf.full((3,), value), 2)
    text = str(f.explain())
    for line in ("branching: 4 calls, 1 replayed, 3 recorded", "branching(f32[3], 2)", "├─ True", "└─ False",
                 "   ├─ 1.0", "   └─ 2.0", "not planned yet (seen once)"):  # fmt: skip
        assert line in text
    assert max(map(len, text.splitlines())) <= 80


def test_lines_fit_the_terminal_however_much_there_is():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
    many = {f"a rather long name number {k}": k for k in range(30)}
    f = wf.compile(lambda x, options: model(x) * options["a rather long name number 7"])
    for _ in range(3):
        f(wf.ones(2, 4), many)
    for verbose in (False, True):
        assert max(map(len, str(f.explain(verbose)).splitlines())) <= 80


def test_arguments_are_shown_as_they_are_written():
    f = wf.compile(lambda x, *rest, **named: x * 2)
    inside = {"k": (None, wf.ones(1, requires_grad=True))}
    f(wf.ones(2), (1, "a"), [wf.zeros(3, dtype=wf.int64)], deep=inside, flag=True)
    (kind,) = f.explain().data["signatures"]
    assert kind["arguments"] == (
        "f32[2], (1, 'a'), [i64[3]], deep={'k': (None, f32[1] with gradient)}, flag=True"
    )  # fmt: skip


def test_many_kinds_and_outcomes_are_counted_not_listed():
    f = wf.compile(lambda x: x * 2)
    for _ in range(2):  # after the first few kinds, those are recorded that come again
        for size in range(1, 31):
            f(wf.ones(size))
    assert "more signatures" in str(f.explain())
    assert len(str(f.explain()).splitlines()) < 50
    g = wf.compile(lambda x: x * x.sum().item())
    for value in range(10):
        g(wf.full((1,), value))
    assert "and 2 other outcomes" in str(g.explain())


def test_guards_are_named_and_parts_counted():
    model = nn.Linear(2, 2)
    scale = [1.0, 2.0]

    @wf.compile
    def f(x):
        return model(x) * scale[0]

    for _ in range(2):
        f(wf.ones(1, 2))
    guards = f.explain().data["signatures"][0]["variants"][0]["guards"]
    assert {"closure `model`", "`model.weight`", "`scale[0]`"} <= set(guards)
    assert re.search(r"closure `scale` \(\d+ parts\)", " ".join(str(f.explain()).split()))
    assert "`model.weight`" in str(f.explain(verbose=True))


@needs_llvm
def test_verbose_lists_what_a_plan_does():
    f = wf.compile(lambda x: (x @ x).tanh() + 1)
    for _ in range(3):
        f(wf.ones(3, 3))
    plan = f.explain(verbose=True).data["signatures"][0]["variants"][0]["tree"]["plan"]
    assert [line.split()[0] for line in plan["actions"]] == ["matmul", "kernel"]
    assert "matmul [3, 3] @ [3, 3]" in str(f.explain(verbose=True))
    assert "matmul [3, 3]" not in str(f.explain())


def test_the_gradient_from_outside_has_a_plan_of_its_own():
    f = wf.compile(lambda x: x.tanh().sum())
    for _ in range(3):
        f(wf.ones(3, requires_grad=True)).backward()
    (gradient,) = f.explain().data["signatures"][0]["variants"][0]["gradients"]
    assert gradient["kernels"] + gradient["python_steps"] >= 1
    assert "its gradient: " in str(f.explain())


def test_steps_in_python_are_named():
    f = wf.compile(lambda x: wf.linalg.inv(x * 2))
    for _ in range(3):
        f(wf.eye(3))
    plan = f.explain().data["signatures"][0]["variants"][0]["tree"]["plan"]
    assert plan["python_steps"] == len(plan["in_python"]) >= 1
    assert re.search(r"in Python \(\w+", " ".join(str(f.explain()).split()))


def test_why_it_was_recorded_again():
    state = {"k": 0}

    @wf.compile
    def f(x):
        return x * state["k"]

    for k in range(100):
        state["k"] = k
        f(wf.ones(1))
    told = f.explain().data
    assert told["retraces"][-1] == "`state['k']` was 7 and is 8"
    assert 1 < len(told["retraces"]) < 100
    assert "recorded again, because:" in str(f.explain())


def test_why_python_runs_at_every_call_and_where():
    @wf.compile
    def f(x):
        return x * (random.random() < 2)

    with pytest.warns(UserWarning, match=r"runs as plain Python, because it draws from random"):
        for _ in range(4):
            f(wf.ones(1))
    told = f.explain()
    assert told.data["signatures"] == [] and told.data["retraces"] == []
    assert (told.data["plain"], told.data["recorded"], told.data["replayed"]) == (4, 0, 0)
    assert re.search(r"4 calls, because .*random.*test_explain.py:\d+", " ".join(str(told).split()))


def test_what_cannot_be_recorded_says_why_and_on_which_line():
    @wf.compile
    def f(x):
        weight = x.clone().requires_grad_()
        wf.optim.SGD([weight], lr=0.1)
        return x * 2

    line = f._function.__code__.co_firstlineno + 3
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for size in (1, 1, 1, 2, 2, 2):
            f(wf.ones(size))
    assert len(told) == 1
    assert re.search(rf"f runs as plain Python, because SGD .*\(test_explain.py:{line}\)", str(told[0].message))
    (reason,) = f.explain().data["python"]
    assert reason["reason"] in str(told[0].message) and reason["calls"] == f.explain().data["plain"] >= 4


def test_an_explanation_is_of_its_moment():
    f = wf.compile(lambda x: x * 2)
    f(wf.ones(1))
    told = f.explain()
    before = str(told)
    f(wf.ones(1))
    assert str(told) == before != str(f.explain())
