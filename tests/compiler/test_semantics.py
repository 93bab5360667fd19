"""What a compiled function may be, take, return and do: in everything as the plain one."""

import functools
import time
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import CALLS, check, equal, numbers, x_of
from wayfare import nn
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

Point = namedtuple("Point", "x y")


# -- what can be compiled --------------------------------------------------------------------------------------------


def test_as_a_decorator_with_and_without_options():
    @wf.compile
    def bare(x):
        """Doubles."""
        return x * 2

    @wf.compile(check=True)
    def with_options(x):
        return x * 2

    for _ in range(CALLS):
        assert bare(wf.ones(2)).tolist() == with_options(wf.ones(2)).tolist() == [2.0, 2.0]
    assert bare.__name__ == "bare" and bare.__doc__ == "Doubles."


class Scaled:
    """Methods of all kinds."""

    factor = 3.0

    def __init__(self, by):
        self.by = by

    def method(self, x):
        return x * self.by

    @wf.compile
    def decorated(self, x):
        return x * self.by + 1

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @staticmethod
    def static(x):
        return x - 1

    def __call__(self, x):
        return x / self.by


@pytest.mark.parametrize("function", [
    Scaled(2.0).method, Scaled.of_class, Scaled.static, Scaled(4.0), functools.partial(wf.mul, wf.full((4,), 2.0)),
    lambda x: x.tanh(), wf.sin, nn.Linear(4, 2).double(),
], ids=["method", "classmethod", "staticmethod", "callable", "partial", "lambda", "library", "module"])  # fmt: skip
def test_kinds_of_functions(function):
    check(function, x_of)


def test_a_decorated_method_knows_its_objects_apart():
    first, second = Scaled(2.0), Scaled(5.0)
    for _ in range(CALLS):
        assert first.decorated(wf.ones(1)).item() == 3.0
        assert second.decorated(wf.ones(1)).item() == 6.0
    first.by = 7.0
    assert first.decorated(wf.ones(1)).item() == 8.0


def test_a_compiled_module_is_still_its_model():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).double()
    compiled = wf.compile(model)
    for _ in range(CALLS):
        wf.manual_seed(1)
        got = compiled(numbers(2, 4))
        wf.manual_seed(1)
        equal(got, model(numbers(2, 4)))
    model.eval()
    equal(compiled(numbers(2, 4)), model(numbers(2, 4)))
    model[0] = nn.Linear(4, 5).double()
    assert compiled(numbers(2, 4)).shape == (2, 5)


# -- arguments and results -------------------------------------------------------------------------------------------


@dataclass
class Pair:
    one: object
    two: object


def test_nested_structures_in_and_out():
    def f(data, rest=(), **more):
        total = data["a"] * data["b"][0] + sum(rest, 0.0) + more.get("shift", 0)
        return {"total": total, "parts": [total[0], (total[1], None)], "point": Point(total.sum(), 3), "name": "x"}

    def make(call):
        return {"a": numbers(3, seed=call, grad=True), "b": [numbers(3, seed=call + 9, grad=True), "unused"]}

    check(f, make)
    check(f, make, lambda call: (numbers(1, seed=call), numbers(3, seed=5)), shift=2)
    check(f, make, shift=numbers(3))


def test_objects_as_arguments_and_results():
    def f(pair):
        return Pair(pair.one * pair.two, pair.two)

    compiled = wf.compile(f)
    for call in range(CALLS):
        one, two = numbers(3, seed=call), call % 2
        got = compiled(Pair(one, two))
        assert type(got) is Pair and got.two == two
        equal(got.one, one * two)


def test_defaults_keywords_and_positions_agree():
    @wf.compile
    def f(x, scale=2.0, *, shift=1.0):
        return x * scale + shift

    x = wf.ones(1)
    for _ in range(CALLS):
        assert [f(x).item(), f(x, 3.0).item(), f(x, scale=3.0).item(), f(x, shift=0.0).item(), f(x=x).item()] == [
            3.0, 4.0, 4.0, 2.0, 3.0]  # fmt: skip
    with pytest.raises(TypeError, match="argument"):
        f()
    with pytest.raises(TypeError, match="argument"):
        f(x, scale=2.0, other=1)


@pytest.mark.parametrize("values", [
    [1, 2, 1, 2.0, True, 1, 0, False], ["a", "b", "a"], [None, 1, None], [(1, 2), (1, 3), [1, 2], (1, 2)],
    [wf.float32, wf.float64, wf.float32], [{"k": 1}, {"k": 2}, {"j": 1}, {"k": 1}], [slice(0, 1), slice(1, 2)],
    [np.float64(1.0), 1.0, np.int64(1)], [float("nan"), float("nan"), 1.0],
], ids=str)  # fmt: skip
def test_python_values_as_arguments(values):
    def f(x, value):
        return x + 1, repr(value), type(value).__name__

    compiled = wf.compile(f)
    for value in [v for v in values for _ in range(3)] * 2:
        equal(compiled(wf.ones(2), value), f(wf.ones(2), value))


def test_arrays_and_generators_as_arguments():
    def f(x, parts):
        for part in parts:
            x = x * part
        return x

    compiled = wf.compile(f)
    for call in range(CALLS):
        equal(compiled(wf.ones(3).double(), np.full((2, 3), call + 1.0)), wf.full((3,), (call + 1.0) ** 2).double())
        equal(compiled(wf.ones(3).double(), (float(i + call) for i in range(2, 4))),
              wf.full((3,), (2.0 + call) * (3.0 + call)).double())  # fmt: skip


def test_results_that_are_no_tensors():
    check(lambda x: None, x_of)
    check(lambda x: 3, x_of)
    check(lambda x: (x.shape, x.dtype, str(x.dtype), x.requires_grad), x_of)
    check(lambda x: [], x_of)
    check(lambda x: float(x.detach().sum()), x_of)


def test_what_is_returned_more_than_once_is_one_tensor():
    compiled = wf.compile(lambda x: (h := x * 2) is not None and [h, h, x, h[0], x[0], x.detach()])
    for call in range(CALLS):
        x = x_of(call)
        a, b, same, part, of_input, bare = compiled(x)
        assert a is b and same is x
        with wf.no_grad():
            a[0, 0] = 99.0
            assert part[0].item() == 99.0
            bare[0, 0] = 55.0
            assert x[0, 0].item() == of_input[0].item() == 55.0


def test_the_same_tensor_twice_and_views_of_one_base_as_arguments():
    def f(a, b):
        with wf.no_grad():
            a.mul_(2)
        return b + 1, a * b

    compiled = wf.compile(f)
    for call in range(3 * CALLS):
        found = []
        for way in (compiled, f):
            base = numbers(4, 4, seed=call)
            pairs = [(base, base), (base[0], base[1]), (base[:2], base[1:3]), (base, base.T), (base, numbers(4, 4))]
            a, b = pairs[call % 5]
            found.append([way(a, b), base])
        equal(*found)


def test_a_non_contiguous_argument_gives_what_a_contiguous_one_does():
    def f(x):
        return x.reshape(-1) * 2, x.sum(0), x @ x.mT

    compiled = wf.compile(f)
    for call in range(2 * CALLS):
        x = numbers(4, 3, seed=call)
        for view in (x, x.T, x[::2], x[:, :2], x[:1].expand(4, 3), x.flip(0)):
            equal(compiled(view), f(view))


# -- what happens inside ---------------------------------------------------------------------------------------------


def test_writes_in_place():
    def f(x, y):
        h = x * 2
        h[0] = y[0]
        h[:, 1].add_(1)
        y.mul_(0.5)
        h.T[0].copy_(h[:, 1].sum())
        return h, y.sum()

    check(f, x_of, lambda call: numbers(3, 4, seed=call + 9))


def test_without_gradients_inside():
    def f(x):
        with wf.no_grad():
            scale = x.abs().max()
        with wf.inference_mode():
            shown = x.mean().item()
        return x / scale, shown

    check(f, x_of)
    check(wf.no_grad()(lambda x: x * 2), x_of)


def test_flags_are_as_they_were_after_a_call():
    compiled = wf.compile(lambda x: x * 2)
    for enabled in (True, False, True, False):
        for _ in range(CALLS):
            with wf.set_grad_enabled(enabled):
                assert compiled(x_of(0)).requires_grad is enabled
                assert wf.is_grad_enabled() is enabled


class Clipped(wf.autograd.Function):
    """The identity, whose gradient is clipped: no formula would guess it."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * x).clamp(-ctx.limit, ctx.limit), None


def test_custom_functions():
    check(lambda x: Clipped.apply(x * 3, 0.5) * 2, x_of)

    def inside(x):
        x = x.detach().requires_grad_()
        Clipped.apply(x, 0.3).sum().backward()
        return x.grad

    check(inside, x_of)


def test_checkpoint():
    weight = numbers(4, 4, seed=8, grad=True)

    def f(x):
        return wf.checkpoint(lambda h: F.dropout(h @ weight, 0.5, True).tanh(), x * 2, use_reentrant=False)

    check(f, x_of)

    def step(x):
        f(x).sum().backward()
        return weight.grad

    found = []
    for way in (wf.compile(step), step):
        weight.grad = None
        wf.manual_seed(2)
        found.append([way(x_of(i)).clone() for i in range(CALLS)])
    equal(*found)


def test_hooks_run():
    seen = []

    def f(x):
        h = x * 2
        h.register_hook(lambda g: seen.append(1) or g * 10)
        return h.sin()

    check(f, x_of)
    assert len(seen) == 2 * CALLS


def test_batch_norm_statistics():
    def make():
        wf.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).double()

    plain, mine = make(), make()
    compiled = wf.compile(mine)
    for call in range(CALLS):
        x = numbers(4, 1, 5, 5, seed=call)
        equal(compiled(x), plain(x))
        equal(list(mine.buffers()), list(plain.buffers()))
    assert mine[1].num_batches_tracked.item() == CALLS


def alone(notes):
    """Nothing keeps the call from being replayed without Python."""


def with_a_list(notes):
    """Python must run: a list grows."""
    notes.append(1)


def with_a_clock(notes):
    """Python must run: nobody knows what a clock will say."""
    time.perf_counter()


@pytest.mark.parametrize("along", [alone, with_a_list, with_a_clock])
@pytest.mark.parametrize("reads", [False, True])
def test_gradients_add_up_over_calls(along, reads):
    found = []
    for way in (wf.compile, lambda f: f):
        weight, notes = numbers(4, 2, seed=1, grad=True), []

        def f(x, weight=weight, notes=notes):
            along(notes)
            (x @ weight).square().sum().backward()
            return weight.grad.sum() if reads else x.sum()

        run = way(f)
        rows = []
        for call in range(12):
            if call == 8:
                weight.grad = None
            rows.append([run(numbers(3, 4, seed=call)), weight.grad.clone()])
        found.append(rows)
    equal(*found)


# -- randomness --------------------------------------------------------------------------------------------------------


def test_fresh_numbers_each_call_and_the_same_ones_as_plain_python():
    def f(x):
        return F.dropout(x, 0.5, True), wf.rand(3), wf.randn(2) + x.sum().detach(), wf.randperm(5)

    compiled = wf.compile(f)
    rows = []
    for way in (compiled, f):
        wf.manual_seed(7)
        rows.append([way(wf.ones(8)) for _ in range(6)])
    equal(*rows)
    drawn = [row[1].tolist() for row in rows[0]]
    assert len({tuple(d) for d in drawn}) == 6


def test_seeds_and_generators_inside():
    own = wf.Generator()

    def f(x, seed):
        wf.manual_seed(seed)
        return x + wf.rand(2), wf.rand(2, generator=own)

    compiled = wf.compile(f)
    rows = []
    for way in (compiled, f):
        own.manual_seed(3)
        rows.append([way(wf.zeros(2), seed) for seed in (1, 1, 1, 2, 2, 1)])
    equal(*rows)


def test_fork_rng_inside():
    def f(x):
        with wf.random.fork_rng():
            a = x + wf.rand(2)
        return a, wf.rand(2)

    compiled = wf.compile(f)
    rows = []
    for way in (compiled, f):
        wf.manual_seed(3)
        rows.append([way(wf.zeros(2)) for _ in range(5)])
    equal(*rows)


def test_numbers_drawn_for_each_example_of_a_vmap():
    def f(x):
        return wf.vmap(lambda row: row + wf.rand(2), randomness="different")(x)

    compiled = wf.compile(f)
    seen = set()
    for seed in (0, 0, 1, 2, 3):
        found = []
        for way in (compiled, f):
            wf.manual_seed(seed)
            found.append(way(wf.zeros(3, 2)))
        equal(*found)
        seen.add(float(found[0].sum()))
    assert len(seen) == 4


@pytest.mark.parametrize("viewed", [
    lambda x: x.T.view(-1), lambda x: (x * 2).t().view(6), lambda x: x[:, 1:].view(4),
    lambda x: x.permute(1, 0).view(2, 3),
])  # fmt: skip
def test_a_view_that_would_be_a_copy_fails_while_it_is_recorded(viewed):
    compiled = wf.compile(viewed)
    for call in range(4):
        with pytest.raises(wf.errors.OperationError, match="cannot become .* without a copy"):
            compiled(numbers(2, 3, seed=call))
