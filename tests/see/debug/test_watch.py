"""A watch prints a line for every op that meets the conditions."""

import io
import re

import pytest

import wayfare as wf
from wayfare import nn


def test_a_line_says_where_what_and_how_the_numbers_are(capsys):
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with wf.debug.watch():
        net(wf.ones(4, 3))
    first, second = capsys.readouterr().err.splitlines()
    number = r"-?[\d.e-]+"
    numbers = rf"in \[{number}, {number}\], mean {number}, std {number}"
    assert re.fullmatch(rf"test_watch\.py:\d+  linear  f32\[4,2\] {numbers}  in 0", first)
    assert "relu" in second and second.endswith("in 1")


def test_backward_lines_name_the_forward_line_and_the_gradients():
    said = io.StringIO()
    x = wf.ones(2, requires_grad=True)
    y = x * wf.tensor([1.0, 3.0])
    with wf.debug.watch(backward=True, to=said):
        y.sum().backward()
    assert [line.split("  ")[1:] for line in said.getvalue().splitlines()] == [
        ["sum backward", "gradient of input 0 f32[2] in [1, 1], mean 1, std 0"],
        ["mul backward", "gradient of input 0 f32[2] in [1, 3], mean 2, std 1"],
    ]


def test_after_times_lines_it_only_counts():
    said = io.StringIO()
    with wf.debug.watch(op="exp", to=said, times=2) as watch:
        for _ in range(5):
            wf.ones(1).exp()
    assert len(said.getvalue().splitlines()) == 2 and watch.hits == 5


def test_in_compiled_and_batched_code_examples_and_lines_are_named():
    said = io.StringIO()
    run = wf.compile(lambda x: x.exp() * 2)
    for _ in range(3):
        run(wf.ones(2))
    with wf.debug.watch(to=said):
        run(wf.ones(2))
        wf.map(lambda x: x.log(), [wf.ones(2), wf.ones(3)])
    lines = said.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["exp", "mul", "log", "log"]
    assert [line.rpartition("  ")[2] for line in lines[2:]] == ["example 0", "example 1"]


def test_plans_and_batches_are_back_when_it_is_over():
    run = wf.compile(lambda x: x.exp() * 2)
    with wf.debug.watch(to=io.StringIO()):
        run(wf.ones(2))
        assert run._calls == 0
    run(wf.ones(2))
    assert run._calls == 1
    wf.map(lambda x: x.exp(), [wf.ones(2), wf.ones(2)])
    assert wf.batching.last().groups == 1


@pytest.mark.parametrize("value, text", [
    (wf.tensor(3.5), "f32[] = 3.5"),
    (wf.tensor([1, 5]), "i64[2] in [1, 5], mean 3, std 2"),
    (wf.tensor([True, False, True]), "bool[3], 2 of 3 true"),
    (wf.zeros(0, 3), "f32[0,3]"),
    (wf.tensor([1.0, float("nan"), 3.0]), "f32[3] in [1, 3], mean 2, std 1, 1 NaN (first at [1])"),
    (wf.tensor([[1.0, 2.0], [float("inf"), float("nan")]]),
     "f32[2,2] in [1, 2], mean 1.5, std 0.5, 1 NaN (first at [1, 1]), 1 infinite (first at [1, 0])"),
    (wf.tensor([float("nan")] * 2), "f32[2], 2 NaN (first at [0])"),
    (wf.tensor([3e38, 3e38]), "f32[2] in [3e+38, 3e+38], mean 3e+38, std 0"),
    (wf.tensor([6e4], dtype=wf.float16).expand(3), "f16[3] in [6e+04, 6e+04], mean 6e+04, std 0"),
    (wf.tensor(7), "i64[] = 7"),
])  # fmt: skip
def test_how_numbers_are_described(value, text):
    said = io.StringIO()
    with wf.debug.watch(op="clone", to=said):
        value.clone()
    assert said.getvalue().split("  ")[2].strip() == text


def test_two_watches_and_a_record_look_on_side_by_side():
    first, second = [], []
    with wf.debug.watch(to=first.append), wf.debug.record() as run, wf.debug.watch(op="exp", to=second.append):
        wf.ones(1).exp().log()
    assert [node.op for node in first] == ["exp", "log"] and [node.op for node in second] == ["exp"]
    assert run is not None
