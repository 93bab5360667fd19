"""One test for each mistake that hostile reading or random programs found in hooks, passes and functions."""

import gc
import threading
import weakref

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import ArgumentTypeError, GraphError, InPlaceError

F = wf.nn.functional


def leaf(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return wf.tensor(rng.normal(size=shape), dtype=wf.float64, requires_grad=True)


def ones(*shape):
    return wf.ones(*shape, dtype=wf.float64)


# -- hooks ----------------------------------------------------------------------------------------------------------


def test_hooks_run_as_the_pass_does():
    """Without gradients, so that an optimiser may step in a hook, unless the pass itself is recorded."""
    x, seen = leaf(3), []
    x.register_hook(lambda g: seen.append(wf.is_grad_enabled()))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(wf.is_grad_enabled()))
    y = x * 2
    y.grad_fn.register_prehook(lambda g: seen.append(wf.is_grad_enabled()))
    y.grad_fn.register_hook(lambda g, h: seen.append(wf.is_grad_enabled()))
    y.sum().backward(retain_graph=True)
    assert seen == [False] * 4
    seen.clear()
    y.sum().backward(create_graph=True)
    assert seen == [True] * 4


def test_an_optimiser_may_step_in_a_hook():
    x = ones(3).requires_grad_()
    x.register_post_accumulate_grad_hook(lambda p: (p.sub_(p.grad), None)[1])
    (x * 2).sum().backward()
    assert x.tolist() == [-1.0] * 3


def test_what_hooks_return_is_checked():
    for answer, error in ((3.0, ArgumentTypeError), (ones(2), GraphError), (wf.ones(3), GraphError)):
        x = leaf(3)
        x.register_hook(lambda g, answer=answer: answer)
        with pytest.raises(error, match="hook"):
            (x * 2).sum().backward()
    x = leaf(3)
    x.register_post_accumulate_grad_hook(lambda p: p)
    with pytest.raises(GraphError, match="must return None"):
        (x * 2).sum().backward()
    y = leaf(3) * 2
    y.grad_fn.register_hook(lambda g, h: (g[0],))
    with pytest.raises(GraphError, match="1 gradients in place of 2"):
        y.sum().backward()


def test_what_is_asked_for_does_not_pass_the_hooks_of_its_own_node():
    x = leaf(3)
    y = x * 2
    y.grad_fn.register_prehook(lambda g: (g[0] * 10,))
    by_y, by_x = wf.autograd.grad(y.sum(), [y, x])
    assert by_y.tolist() == [1.0] * 3 and by_x.tolist() == [20.0] * 3


def test_inputs_that_are_computed_retain_their_gradient():
    x = leaf(3)
    y = x * 2
    (y * 3).sum().backward(inputs=[y, y], retain_graph=True)
    assert y.retains_grad and y.grad.tolist() == [3.0] * 3 and x.grad is None
    (y * 3).sum().backward()
    assert y.grad.tolist() == [6.0] * 3


# -- the graph --------------------------------------------------------------------------------------------------------


def test_nodes_that_keep_only_shapes_can_be_used_twice():
    x = leaf(2, 3)
    y = (x + 1).reshape(3, 2).t()[0].expand(4, 3).sum()
    y.backward()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy().sum(), 24.0)


def test_second_derivatives_use_what_a_hook_kept_and_not_the_leaf_as_it_is_now():
    x = ones(3).requires_grad_()
    with wf.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = x * x
    with wf.no_grad():
        x.mul_(10)
    (g,) = wf.autograd.grad(y.sum(), x, create_graph=True)
    assert g.tolist() == [2.0] * 3
    assert wf.autograd.grad(g.sum(), x)[0].tolist() == [2.0] * 3


def test_the_slope_of_a_slope_of_relu_is_zero_and_not_missing():
    x = leaf(3)
    (g,) = wf.autograd.grad((x.relu() * 3).sum(), x, create_graph=True)
    assert wf.autograd.grad(g.sum(), x)[0].tolist() == [0.0] * 3


def test_second_derivatives_of_a_norm_of_nothing():
    x = wf.zeros(2, 0, dtype=wf.float64, requires_grad=True)
    (g,) = wf.autograd.grad(F.layer_norm(x, (0,)).sum(), x, create_graph=True)
    g.sum().backward()
    assert x.grad.shape == (2, 0)


def test_passes_of_several_threads_lose_no_gradient():
    x = wf.ones(300, 300, requires_grad=True)

    def run():
        for _ in range(10):
            (x * x + x).sum().backward()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.unique().tolist() == [120.0]


# -- custom functions -------------------------------------------------------------------------------------------------


class Doubled(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_a_function_cannot_write_a_leaf_or_a_view_of_one(no_cycle_collector):
    x = leaf(3)
    with pytest.raises(InPlaceError, match="Doubled: a leaf"):
        Doubled.apply(x)
    with pytest.raises(InPlaceError, match="Doubled: this is a view of a leaf"):
        Doubled.apply(x[:2])
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_a_function_must_return_what_it_marks_dirty():
    class Forgetful(Doubled):
        @staticmethod
        def forward(ctx, x):
            return Doubled.forward(ctx, x) * 1

    with pytest.raises(GraphError, match="not returned"):
        Forgetful.apply(leaf(3) * 1)


def test_the_hook_of_an_output_that_played_no_part_is_not_called():
    class Two(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            return 2 * g + 3 * h

    x = leaf(3)
    used, unused = Two.apply(x)
    unused.register_hook(lambda g: g * 2)
    unused.retain_grad()
    used.sum().backward()
    assert x.grad.tolist() == [2.0] * 3 and unused.grad is None


def test_a_dirty_input_that_is_saved_is_the_output():
    class Squared(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            x.mul_(x)
            return x

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return 2 * g * y.sqrt()

    x = wf.tensor([1.0, 2.0], dtype=wf.float64, requires_grad=True)
    (g,) = wf.autograd.grad(Squared.apply(x * 3).sum(), x, create_graph=True)
    (h,) = wf.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(g.tolist(), [18.0, 36.0])
    np.testing.assert_allclose(h.tolist(), [18.0, 18.0])


# -- transforms -------------------------------------------------------------------------------------------------------


def test_a_transform_does_not_let_its_argument_be_written():
    y = leaf(3) * 2
    before = y.tolist()
    with pytest.raises(InPlaceError):
        wf.func.grad(lambda v: v.mul_(2).sum())(y)
    assert y.tolist() == before


def test_writes_in_place_under_vmap():
    def change(v):
        out = v.clone()
        out.mul_(2)
        out[0] = v[1] * 3
        out[1:].add_(1)
        return out

    x = wf.arange(6, dtype=wf.float64).reshape(3, 2)
    expected = wf.stack([change(row) for row in x])
    assert wf.func.vmap(change)(x).tolist() == expected.tolist()
    nested = wf.func.vmap(wf.func.vmap(lambda v: v.clone().mul_(v)))(x)
    assert nested.tolist() == (x * x).tolist()
    gradient = wf.func.vmap(wf.func.grad(lambda v: (change(v) * v).sum()))(x)
    one = wf.stack([wf.func.grad(lambda v: (change(v) * v).sum())(row) for row in x])
    assert gradient.tolist() == one.tolist()


def test_values_that_differ_cannot_be_written_where_all_examples_share():
    shared = wf.zeros(2)
    with pytest.raises(InPlaceError, match="vmap: values that differ"):
        wf.func.vmap(lambda v: shared.add_(v))(wf.ones(3, 2))
    assert shared.tolist() == [0.0, 0.0]


def test_gradients_from_a_transform_do_not_hang_on_its_own_leaves():
    w, x = leaf(3), ones(3)
    g = wf.func.grad(lambda v: (v.sin() * w).sum())(x)
    x.mul_(2)  # the slope of the sine would need it
    (by_w,) = wf.autograd.grad(g.sum(), w, create_graph=True)
    assert g.requires_grad and not by_w.requires_grad
    np.testing.assert_allclose(by_w.numpy(), np.cos(1.0))


def test_a_pull_back_can_be_used_again_after_its_result_left_the_transform():
    w, x = leaf(3), ones(3)
    _, pull = wf.func.vjp(lambda v: v.sin() * w, x)
    first, second = pull(ones(3))[0], pull(ones(3) * 2)[0]
    np.testing.assert_allclose(second.tolist(), (first * 2).tolist())
    assert wf.autograd.grad(second.sum(), w)[0].shape == (3,)


# -- memory -----------------------------------------------------------------------------------------------------------


def _views_and_writes():
    x = leaf(2, 3)
    y = x * 2
    row = y[0]
    y.t_()
    y.mul_(3)
    row.add_(1)
    (y.sum() + row.exp().sum()).backward()


def _custom_function():
    x = leaf(3)
    z = Doubled.apply(x * 1)
    (g,) = wf.autograd.grad((z * z).sum(), x, create_graph=True)
    g.sum().backward()


def _checkpointed():
    x = leaf(3)
    wf.utils.checkpoint.checkpoint(lambda a: (a * a).exp().sin(), x).sum().backward()


def _transformed():
    x = leaf(4)
    wf.func.hessian(lambda v: (v.exp() * v).sum())(x)
    wf.func.vmap(wf.func.grad(lambda v: (v.clone().mul_(v)).sum()))(x.reshape(2, 2))


def _failed():
    x = leaf(3)
    y = x * 2
    z = y * y
    y.mul_(2)
    with pytest.raises(InPlaceError):
        z.sum().backward()


@pytest.mark.parametrize("work", [_views_and_writes, _custom_function, _checkpointed, _transformed, _failed])
def test_graphs_leave_no_cycles(work, no_cycle_collector):
    work()
    gc.collect()
    work()
    assert gc.collect() == 0
