"""Programs that random search once found to differ from the loop, in few lines each."""

from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import agree, compare, numbers, said, vectors, weight
from tests.compiler.program_parts import Cube, Doubled, SumAndProduct
from wayfare.batch.function_profile import _PROFILES
from wayfare.errors import LinAlgError
from wayfare.nn import functional as F

W = weight(3, 3)


def settled_in_the_middle(x):
    h = x * (x @ W).sum()
    k = h * 1
    k[0] = 2.0
    return x.tanh() + h * h


def written_through_views(x):
    n = x.clone()
    v = n.view(-1)[1:]
    v.mul_(0.5)
    v.add_(x[:-1])
    return n.tanh() + x * 0.1


def written_after_a_quiet_write(x):
    h = (x * 2).abs()
    with wf.no_grad():
        h[-1:].add_(1)
    h.clamp_min_(0)
    return h[None]


def written_after_an_inner_gradient(x):
    z = x.detach().clone().requires_grad_()
    (g,) = wf.autograd.grad((z**3).sum(), z)
    m = x.outer(x)
    d = m[wf.arange(3), 0]
    m.div_(d.square() + 1)
    return m, g


def expanded_then_written(x):
    h = x * 1
    k = h.expand(2, 3)
    h.mul_(2)
    return k * 1, k


def read_by_a_tensor_then_written(x):
    h = x * 2
    v = h[h.argmax()]
    v.mul_(0.5)
    return h


def custom_function_read_and_hook(x):
    h = SumAndProduct.apply(x, W)[0]
    k = h @ h[..., 0, :]
    float(x.max())
    k = k * 1
    k.register_hook(lambda g: g * 2)
    return k[None]


@pytest.mark.parametrize("options", [{}, {"limit": 3000}], ids=["at the end", "often"])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("function", [
    settled_in_the_middle, written_through_views, written_after_a_quiet_write, written_after_an_inner_gradient,
    expanded_then_written, read_by_a_tensor_then_written, custom_function_read_and_hook,
    lambda x: wf.func.grad(lambda t: (t.sin() * t).sum())(x.detach()), lambda x: x.masked_select(x > 0),
    lambda x: x.take(wf.tensor([0])), lambda x: (x * 2, x * 3, x * 2), lambda x: x[[0, 0]] * x.mean().item(),
    lambda x: F.embedding(wf.tensor([1, 0]), W, padding_idx=1) * x, lambda x: wf.cat([x[:0], x]) * 2,
])  # fmt: skip
def test_a_program(function, second, options):
    def make():
        W.grad = None
        xs = vectors()
        return function, [xs], [W, *xs]

    compare(make, second=second, **options)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_a_hook_while_another_example_is_further_on(steps, second):
    def function(x, i):
        h = x * 1
        for _ in range(i * steps):
            h = (h @ W).tanh()
            h.sum().item()
        k = h * 2
        k.register_hook(lambda g: g * 2)
        return h * h

    def make():
        W.grad = None
        xs = vectors(3)
        return function, [xs, range(3)], [W, *xs]

    compare(make, second=second)


def test_a_read_after_maps_in_maps():
    def inner(x):
        return sum(wf.map(lambda i: x * i, range(3))) + x

    agree(lambda xs: wf.map(inner, xs)[0].tolist(), [[numbers(2, seed=i)] for i in range(3)])


def test_a_block_in_an_example_draws_from_the_examples_stream():
    def function(i):
        with wf.batching():
            return wf.rand(2) + i

    agree(function, range(3))


class Noisy(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + wf.rand(3, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("draw", [Noisy.apply, lambda x: wf.func.grad(lambda t: (t * wf.rand(3)).sum())(x.detach())])
def test_what_runs_for_real_draws_from_the_example(draw):
    found = []
    for batch in (True, False):
        wf.manual_seed(5)
        found.append([r.detach().tolist() for r in wf.map(lambda x: draw(x * 1), vectors(), batch=batch)])
    assert found[0] == found[1]


@pytest.mark.parametrize("line", [
    "t['s'] = t.get('s', 0.0) + x.sum().item()", "t['s'] = x.sum().item() + t.setdefault('s', 0.0)",
    "t['s'] += x.sum().item()",
])  # fmt: skip
def test_nothing_is_lost_between_asking_for_an_item_and_setting_it(line):
    xs = vectors()
    names = {"t": {"s": 0.0}}
    exec(f"def function(x):\n    {line}", names)
    for _ in range(2):  # the first example of a new function goes first
        names["t"]["s"] = 0.0
        wf.map(names["function"], xs)
        np.testing.assert_allclose(names["t"]["s"], sum(float(x.sum()) for x in xs))


def test_an_error_after_a_map_inside_whose_results_are_pending():
    def function(x, i):
        h = wf.map(lambda t: t * x, [x, x])[0].tanh()
        return h * int(wf.tensor(float("nan") if i == 2 else 1.0))

    for _ in range(2):
        with pytest.raises(ValueError, match="NaN"):
            wf.map(function, vectors(), range(4))


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("chosen", [slice(None), slice(1, 2)], ids=["all", "one"])
@pytest.mark.parametrize("name", ["Linear", "GRUCell", "own"])
def test_what_was_read_is_written_before_the_gradient_is_asked_for(name, chosen, second):
    found = []
    for batch in (False, True):
        wf.manual_seed(1)
        module = (wf.nn.Linear if name != "GRUCell" else wf.nn.GRUCell)(3, 3).double()
        xs = vectors()
        results = wf.map(lambda x: (x * 2 if name == "own" else module(x * 1)).tanh(), xs, batch=batch)  # noqa: B023
        with wf.no_grad():
            for where, p in module.named_parameters():
                if "bias" in where:
                    p.add_(1)
            for x in xs:
                x.add_(1)
        try:
            loss = sum(r.square().sum() for r in results[chosen])
            leaves = [*xs, *module.parameters()]
            grads = wf.autograd.grad(loss, leaves, create_graph=second, allow_unused=True, materialize_grads=True)
        except wf.errors.InPlaceError:
            assert batch and second and name == "GRUCell"  # it would have to run once more, and says so
            return
        found.append([g.detach().numpy() for g in grads])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want)


def test_an_error_inside_names_the_outer_example_too_where_examples_run_one_by_one():
    count = wf.tensor(0)

    def inner(j, i):
        return [0, 1, 2][i + j]

    def function(i):
        count.add_(1)
        return wf.map(inner, range(2), [i, i])

    with pytest.raises(IndexError) as caught:
        wf.map(function, range(4))
    assert "in example 1 of example 2 of wf.map" in said(caught.value)


@pytest.mark.parametrize("second", [
    lambda h, k: h.detach().requires_grad_(k() > 0) * h, lambda h, k: h.sum(0 * int(k())),
    lambda h, k: h.amax(int(k()) * 0), lambda h, k: h.split(1 + 0 * int(k()))[0],
    lambda h, k: h.chunk(3 - 0 * int(k()))[0],
])  # fmt: skip
def test_a_method_is_looked_up_before_its_arguments_are_waited_for(second):
    def function(x, i):
        h = x * 2
        if i % 2:
            return second(h, (h @ W).sum().item)
        k = h.sum().item()
        Cube.apply(h)  # runs for real: all tensors become ordinary ones
        return h * k

    xs = vectors()
    for _ in range(2):
        agree(function, xs, range(4), leaves=[W, *xs])


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_the_hook_of_a_leaf_is_called_once(second):
    def make():
        W.grad = None
        xs = vectors()
        for x in xs:
            x.register_hook(lambda g: g * 0.5)
        return lambda x: (x @ W).tanh() * x, [xs], [W, *xs]

    compare(make, second=second)


@pytest.mark.parametrize("count", [1, 3])
def test_a_part_of_an_ordinary_tensor_is_multiplied_in_place(count):
    def function(x):
        h = W * 2
        h.retain_grad()
        h[:1].mul_(x * 2)
        return h

    agree(function, xs := vectors(count), leaves=[W, *xs])


@pytest.mark.parametrize("first", [-1, 3], ids=["in order", "the last comes to it first"])
def test_what_was_seen_too_early_once_is_a_loop_from_then_on(first):
    shared = wf.zeros(1)

    def function(x, i, box):
        box.seen = i  # nobody can tell whether others see this object, so it cannot begin again
        now = shared + 1
        if i and (i == first or x.sum() > -9):
            shared.data = now
        return shared.item()

    xs, boxes = vectors(), [SimpleNamespace() for _ in range(4)]
    _PROFILES.clear()
    with pytest.warns(UserWarning, match="had begun before"):
        wf.map(function, xs, range(4), boxes)
    for _ in range(3):
        shared.data = wf.zeros(1)
        assert wf.map(function, xs, range(4), boxes) == [0, 1, 2, 3]


def test_what_all_have_in_common_is_made_though_who_asked_first_was_stopped():
    def function(x, i):
        float(x.sum())
        if i < 4:
            float(x.sum())
        h = x @ W.mT
        if i == 2:
            raise KeyError("own")
        return h

    for _ in range(2):
        with pytest.raises(KeyError, match="own"):
            wf.map(function, vectors(5), range(5))


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_flag_is_taken_back_after_a_gradient_was_recorded(block, own):
    def function(x, i):
        leaf = x.detach().clone().requires_grad_() if own else p
        h = leaf * 2
        float(h.sum())
        leaf.requires_grad_(i % 2 == 0)
        return h * leaf, leaf

    found = []
    for batched in (False, True):
        p = numbers(3, grad=True)
        if block and batched:
            with wf.batching():
                results = [function(x, i) for i, x in enumerate(vectors())]
        else:
            results = wf.map(function, vectors(), range(4), batch=batched)
        for _, leaf in results:
            leaf.requires_grad_()
        sum(r.sum() for r, _ in results).backward()
        found.append([leaf.grad.tolist() for _, leaf in results])
    np.testing.assert_allclose(*found)


def test_a_turned_result_with_a_dimension_of_one_lies_as_in_the_loop():
    found = []
    for batch in (False, True):
        made = wf.map(lambda x: (x.outer(x).view(3, 3, 1).transpose(0, -1) * 2).exp(), vectors(), batch=batch)
        found.append([r.stride()[1:] for r in made])
    assert found[0] == found[1]


def hooked(x, p):
    v, again = p.tanh(), p.tanh()
    before = v * x
    v.register_hook(lambda g: g * 2)
    again.retain_grad()
    return before + v + again * x, again


@pytest.mark.parametrize("way", ["map", "block", "inside"])
def test_hooks_on_what_is_computed_from_weights_alone(way):
    found = []
    for batch in (False, True, True):
        p, xs = weight(3), vectors()
        function = (lambda x, p: hooked(x, p)) if way == "inside" else hooked
        if way == "block" and batch:
            with wf.batching():
                results = [function(x, p) for x in xs]
        else:
            results = wf.map(function, xs, [p] * 4, batch=batch)
        sum(r.square().sum() for r, _ in results).backward()
        found.append([p.grad.tolist(), *[t.grad.tolist() for _, t in results]])
    for got in found[1:]:
        np.testing.assert_allclose(got, found[0])


def test_a_function_of_ones_own_that_writes_to_what_all_see():
    shared, found = numbers(3), []

    def function(x):
        with wf.no_grad():
            Doubled.apply(shared)
        float(x.sum() * 2)
        return shared.sum() * 1

    for batch in (False, True, True):
        with wf.no_grad():
            shared.copy_(numbers(3))
        found.append([r.item() for r in wf.map(function, vectors(), batch=batch)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("in_order", [False, True])
def test_an_error_before_a_try_is_not_caught_by_it(first, in_order):
    count, ended = wf.tensor(0), []

    def function(x, i):
        if in_order:
            count.add_(1)
        h = F.embedding(wf.tensor([99 if i == first else 0]), W)
        try:
            float(x.sum())
            return h.sum().item()
        except IndexError:
            return "caught"
        finally:
            ended.append(i)

    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            wf.map(function, vectors(), range(4))
        assert f"example {first}" in said(caught.value)


def test_an_error_of_a_map_inside_is_caught_around_it():
    def inner(i):
        float(wf.ones(1).sum() * 2)
        return F.embedding(wf.tensor([i]), W).sum().item()

    def function(x, i):
        try:
            return wf.map(inner, [0, 99 if i == 1 else 1])
        except IndexError:
            return "caught"

    assert [r == "caught" for r in wf.map(function, vectors(), range(4))] == [False, True, False, False]


@pytest.mark.parametrize("copy", [
    lambda h: h.sum().repeat_interleave(2, 0), lambda h: h.sum().repeat(2), lambda h: h.repeat_interleave(1, 0),
    lambda h: h.repeat(1), lambda h: F.pad(h, (0, 0)), lambda h: F.pad(h, (-1, 0)),
    lambda h: F.pixel_shuffle(h.view(1, 3, 1, 1), 1), lambda h: F.channel_shuffle(h.view(1, 3, 1, 1), 3),
])  # fmt: skip
def test_a_copy_is_a_copy(copy):
    found = []
    for batch in (False, True):
        made = wf.map(lambda x: (h := x * 2, c := copy(h), c._is_view(), c.stride()), vectors(), batch=batch)
        with wf.no_grad():
            for _, c, _, _ in made:
                c.view(-1)[0] = 5.0
        found.append([(h.tolist(), c.tolist(), view, stride) for h, c, view, stride in made])
    assert found[0] == found[1]


@pytest.mark.parametrize("batch", [None, True])
def test_examples_do_nothing_after_one_that_will_fail(batch):
    table = wf.nn.Embedding(3, 2)
    for examples, wanted in (((0, 5, 1, 2), [0]), ((5, 0, 1), []), ((0, 1, 2, 7), [0, 1, 2])):
        done = []

        def f(i, done=done):
            y = table(wf.tensor(i))
            done.append(i)
            return y

        for _ in range(2):
            done.clear()
            with pytest.raises(IndexError):
                wf.map(f, examples, batch=batch)
            assert done == wanted


@pytest.mark.parametrize("batch", [True, None])
def test_an_example_writes_nothing_after_one_whose_call_has_failed(batch):
    shared = wf.zeros(3)

    def function(x, i):
        if x.sum() > 100:
            shared.add_(1)
            return x
        if i == 1:
            wf.linalg.cholesky(W @ W * 0 - 1)  # found out when it runs, after example 1 is done
        return x * 2

    with pytest.raises(LinAlgError, match="in example 1 of"):
        wf.map(function, [wf.ones(3), wf.ones(3), wf.ones(3) * 100], range(3), batch=batch)
    assert shared.tolist() == [0, 0, 0]
