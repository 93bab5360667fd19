"""Anomaly mode names op, line, module, example, the first bad index and what the inputs were like; no false alarms."""

import inspect

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.array_summary import all_finite
from wayfare.errors import AnomalyError

detect = wf.autograd.detect_anomaly


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Block(nn.Module):
    """A root that may be of a negative number, or of zero."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.scale.weight)

    def forward(self, x):
        """The root of the product."""
        return self.scale(x).sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_forward_names_everything():
    net = Net()
    nn.init.eye_(net.blocks[1].scale.weight)
    with wf.no_grad():
        net.blocks[1].scale.weight[1, 1] = -1.0
    with pytest.raises(AnomalyError) as caught, detect():
        net(wf.tensor([[1.0, 4.0], [4.0, 9.0]]))
    assert str(caught.value) == (
        "sqrt: made a NaN at index [0, 1] of f32[2,2] from f32[2,2] in [-3, 2], mean -0.5, std 2.062, "
        f"in blocks.1 = Block (test_anomaly.py:{line_of(Block, 'sqrt')})."
    )


def test_backward_names_the_forward_op_its_line_its_module_and_its_inputs():
    net = Net()
    x = wf.tensor([[1.0, 0.0]])
    with pytest.raises(AnomalyError) as caught, detect():
        net(x).sum().backward()
    text = str(caught.value)
    line = line_of(Block, "sqrt")
    assert "SqrtBackward0 returned an infinity for input 0, first at index [0, 1] of f32[1,2]" in text
    assert f"the forward op was sqrt on line test_anomaly.py:{line}, in blocks.1 = Block" in text
    assert "the gradient it was given f32[1,2] in [1, 1], mean 1, std 0" in text


def test_backward_shows_what_was_kept_of_the_inputs():
    x, y = wf.tensor([1.0, 2.0], requires_grad=True), wf.tensor([1.0, 0.0], requires_grad=True)
    with pytest.raises(AnomalyError, match=r"its inputs f32\[2\] in \[1, 2\].*; f32\[2\] in \[0, 1\]"):
        with wf.no_grad():
            y.copy_(wf.tensor([1.0, 1.0]))
        z = x / y
        y.data.numpy()[1] = 0.0  # behind the framework's back, so that forward was good
        with detect():
            z.sum().backward()


@pytest.mark.parametrize("batch", [True, False])
def test_in_a_map_the_example_is_named_forward_and_backward(batch):
    block, xs = Block(), [wf.ones(2) for _ in range(5)]
    xs[3] = wf.tensor([1.0, -1.0])
    with pytest.raises(AnomalyError, match=r"sqrt: made a NaN at index \[1\].*in Block, in example 3 of"), detect():
        wf.map(block, xs, batch=batch)
    xs[3] = wf.tensor([1.0, 0.0])
    with pytest.raises(AnomalyError, match=r"sqrt on line test_anomaly.py:\d+, in Block, in example 3 of"), detect():
        sum(wf.map(lambda x: block(x).sum(), xs, batch=batch)).backward()


def test_the_first_op_of_an_example_belongs_to_it():
    xs = [wf.tensor([float(i != 1)], requires_grad=True) for i in range(3)]
    with pytest.raises(AnomalyError, match=r"sqrt on line \S+, in example 1 of wf.map"), detect():
        sum(wf.map(lambda x: x.sqrt(), xs)).sum().backward()


def test_in_a_compiled_function_the_line_is_the_right_one():
    def root(x):
        y = x * 1
        return y.sqrt()

    compiled = wf.compile(root)
    for _ in range(3):
        compiled(wf.ones(2))
    line = line_of(root, "sqrt")
    with pytest.raises(AnomalyError, match=rf"sqrt: made a NaN at index \[0\].*test_anomaly.py:{line}"), detect():
        compiled(-wf.ones(2))


def test_a_nan_of_infinities_is_an_anomaly_too():
    scores = wf.full((2, 2), float("-inf"))
    with pytest.raises(AnomalyError, match=r"softmax: made a NaN at index \[0, 0\]"), detect():
        scores.softmax(-1)


NO_ALARM = {
    "a mask": lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1),
    "where": lambda x: wf.where(x > 0, x, float("-inf")).logsumexp(-1),
    "large numbers whose squares overflow": lambda x: x * 1e30,
    "larger ones in float64": lambda x: x.double() * 1e200,
    "float16": lambda x: x.half() * 300,
    "integers": lambda x: (x * 10).long() + 1,
    "what is bad already": lambda x: wf.tensor([float("nan"), 1.0]) * x[0, 0],
    "nothing at all": lambda x: x[:0] * 2,
    "not contiguous": lambda x: x.T[::2] * 1e25,
    "an infinity that is asked for": lambda x: wf.full((2,), float("inf")),
}


@pytest.mark.parametrize("name", NO_ALARM)
def test_there_are_no_false_alarms(name):
    with detect():
        NO_ALARM[name](wf.tensor([[0.5, -1.0, 3.0], [1.0, 2.0, -0.5]], requires_grad=name == "a mask"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4), (64, 33)])
def test_the_quick_look_is_exact(dtype, shape):
    numbers = np.random.default_rng(0)
    for scale in (1.0, float(np.finfo(dtype).max) / 10, float(np.finfo(dtype).tiny)):
        array = np.asarray(numbers.random(shape) * scale, dtype)
        assert all_finite(array) and all_finite(array.T) and all_finite(array[..., ::-1] if shape else array)
        if array.size:
            for bad in (np.nan, np.inf, -np.inf):
                worse = array.copy()
                worse.reshape(-1)[-1] = bad
                assert not all_finite(worse) and not all_finite(worse.T)


def test_rows_of_a_large_table_are_looked_at():
    table = wf.zeros(1000, 2, requires_grad=True)
    words = r"Embedding\S* returned a NaN for input \d, first at index \[7, 0\] of f32\[1000,2\]"
    with pytest.raises(AnomalyError, match=words), detect():
        rows = nn.functional.embedding(wf.tensor([3, 7]), table)
        rows.backward(wf.tensor([[1.0, 2.0], [float("nan"), 1.0]]))


def test_several_outputs_are_told_apart():
    words = r"layer_norm: made a NaN at index \[0, 0\] of output 0, f32\[2,4\]"
    with pytest.raises(AnomalyError, match=words), detect():
        nn.functional.layer_norm(wf.ones(2, 4), (4,), wf.ones(4), wf.ones(4), eps=0.0)


def test_it_is_on_only_where_it_is_asked_for():
    assert not wf.autograd.is_anomaly_enabled()
    with detect():
        assert wf.autograd.is_anomaly_enabled()
    with detect(check_nan=False):
        assert not wf.autograd.is_anomaly_enabled()
        wf.tensor([-1.0]).sqrt()
    wf.autograd.set_detect_anomaly(True)
    assert wf.autograd.is_anomaly_enabled()
    wf.autograd.set_detect_anomaly(False)
    assert not wf.autograd.is_anomaly_enabled()


def test_a_stop_and_anomaly_mode_go_together():
    seen = []
    with pytest.raises(AnomalyError), detect(), wf.debug.watch(op="log", to=lambda node: seen.append(node.op)):
        wf.ones(2).log()
        (wf.zeros(2) - 1).log()
    assert seen == ["log"]
