"""One test for each mistake that hostile reading or random programs found in the engine."""

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


# -- writes and views ---------------------------------------------------------------------------------------------


def test_write_through_a_view_of_a_number():
    """Gradients of 0-dim arrays are NumPy scalars, which cannot be written into."""
    x = leaf(3)
    y = x.sum()
    y[...] = y * 2
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2.0)


def test_a_stretched_view_sums_its_gradients_after_its_base_was_written():
    x = leaf(3)
    base = x * 1
    view = base.expand(4, 3)
    windows = base.unfold(0, 2, 1)
    strided = base.as_strided((2, 2), (1, 1))
    base.mul_(2)
    (view.sum() + windows.sum() + strided.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), [12.0, 16.0, 12.0])


def test_views_taken_before_the_base_changed_its_shape_in_place():
    x = leaf(2, 3)
    base = x * 1
    row = base[0]
    base.t_()
    base.mul_(2)
    np.testing.assert_allclose(row.detach().numpy(), 2 * x.detach().numpy()[0])
    row.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[2.0] * 3, [0.0] * 3])


def test_views_of_a_constant_that_changed_its_shape_in_place():
    x = leaf(3)
    base = wf.zeros(2, 3, dtype=wf.float64)
    row = base[0]
    base.t_()
    base[:, 0] = x
    (row * 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2.0)


def test_a_leaf_that_changes_its_shape_without_gradients_stays_a_leaf():
    x = leaf(2, 3)
    with wf.no_grad():
        x.t_()
    assert x.is_leaf and x.requires_grad and x.shape == (3, 2)
    (x * 2).sum().backward()
    assert x.grad.shape == (3, 2)


def test_a_view_of_a_leaf_cannot_change_its_shape_in_place():
    with pytest.raises(InPlaceError, match="view of a leaf"):
        leaf(1, 3)[0].unsqueeze_(0)


@pytest.mark.parametrize("write", [lambda v: v.mul_(2), lambda v: v.add_(leaf(2)), lambda v: v.zero_()])
def test_a_view_made_without_gradients_cannot_be_written_with_them(write):
    base = leaf(3) * 1
    with wf.no_grad():
        view = base[:2]
    with pytest.raises(InPlaceError, match="no_grad"):
        write(view)


def test_a_view_older_than_the_wish_for_a_gradient_cannot_make_the_leaf_a_computed_tensor():
    base = wf.zeros(3, dtype=wf.float64)
    view = base[:2]
    base.requires_grad_()
    with pytest.raises(InPlaceError, match="view of a leaf"):
        view.mul_(leaf(2))
    assert base.is_leaf


def test_in_place_ops_keep_their_result_once_and_notice_when_it_is_overwritten():
    x = leaf(3)
    y = x.clone()
    y.exp_()
    assert y.grad_fn.kept[0] is y._array
    z = y * 1
    y.add_(1)
    with pytest.raises(InPlaceError, match="exp on line .* version 2, expected version 1"):
        z.sum().backward()


def test_detaching_in_place_leaves_views_their_history():
    x = leaf(3)
    y = x * 2
    view = y[:2]
    y.detach_()
    assert y.is_leaf and not y.requires_grad and view.requires_grad
    view.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [2.0, 2.0, 0.0])
    with pytest.raises(InPlaceError, match="view"):
        view.detach_()


def test_retained_gradients_follow_the_tensor_through_writes():
    x = leaf(3)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y.unsqueeze_(0)
    (y * 5).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), [[5.0] * 3])


def test_a_view_whose_base_is_out_of_sight_is_written_as_a_tensor_of_its_own():
    y = (leaf(4) * 1).reshape(2, 2)
    y.mul_(2)
    assert y.grad_fn.name() == "MulBackward0"


def test_an_expand_that_stretches_nothing_can_be_written():
    x = ones(3)
    x.expand(1, 3).zero_()
    assert x.tolist() == [0.0] * 3


def test_masks_of_numbers():
    x = leaf()
    y = x * 1
    picked = y[y > -10]
    y[y > -10] = picked * 3
    (picked.sum() + y).backward()
    np.testing.assert_allclose(x.grad.item(), 4.0)


# -- results must be one's own to write -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(-1).values,
        lambda x: x.topk(2, -1).values,
        lambda x: x.max(-1).values,
        lambda x: x.cummax(-1).values,
        lambda x: x / (x.square() + 1),
        lambda x: F.max_pool1d(x, 2),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: F.layer_norm(x, (3,), ones(3), ones(3)),
        lambda x: F.instance_norm(x[None]),
        lambda x: F.cross_entropy(x, wf.tensor([0, 2, 1])),
    ],
    ids=["sort", "topk", "max", "cummax", "div", "max_pool", "norm", "norm, scaled", "instance_norm", "cross_entropy"],
)
def test_a_result_that_pytorch_does_not_keep_may_be_overwritten(call):
    x, again = leaf(3, 3), leaf(3, 3)
    (call(again) * 2).sum().backward()
    y = call(x)
    y *= 2
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), again.grad.numpy())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.repeat(1, 1),
        lambda x: x[:1, :1].repeat(2, 2),
        lambda x: x[:1].repeat_interleave(2, 0),
        lambda x: x.diff(0),
        lambda x: F.pad(x[None], (-1, 0), mode="replicate"),
        lambda x: F.pad(x[None], (0, 0), mode="reflect"),
        lambda x: F.pixel_shuffle(x[None], 1),
    ],
    ids=["repeat", "repeat one", "repeat_interleave", "diff", "pad", "pad nothing", "pixel_shuffle"],
)
def test_copies_are_copies(call):
    x = ones(2, 2)
    out = call(x)
    out.zero_()
    assert x.sum().item() == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda x: wf.stack([x.t()]),
        lambda x: wf.cat([x.t(), x.t()]),
        lambda x: x.expand(4, 2, 3).clone(),
        lambda x: x.sort(0, descending=True).values,
    ],
    ids=["stack", "cat", "clone", "sort"],
)
def test_results_that_can_be_viewed_as_one_row(call):
    out = call(ones(2, 3))
    assert out.is_contiguous()
    assert out.view(-1).shape == (out.numel(),)


# -- gradients share nothing ------------------------------------------------------------------------------------


def test_gradients_with_a_graph_do_not_share_memory():
    x, y, seed = leaf(3), leaf(3, seed=1), ones(3)
    (x + y).backward(seed, create_graph=True)
    x.grad.detach().zero_()
    assert y.grad.tolist() == seed.tolist() == [1.0] * 3


def test_retained_gradients_do_not_share_memory():
    x, seed = leaf(3), ones(3)
    y = x.clone()
    z = y.clone()
    y.retain_grad()
    z.retain_grad()
    z.backward(seed)
    y.grad.zero_()
    assert x.grad.tolist() == z.grad.tolist() == seed.tolist() == [1.0] * 3


def test_what_a_node_hook_returned_is_not_taken_over():
    x, mine = leaf(3), ones(3)
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: (mine, None))
    y.sum().backward()
    x.grad.zero_()
    assert mine.tolist() == [1.0] * 3


def test_rows_are_not_added_into_a_gradient_that_has_a_graph():
    x = ones(100, 2).requires_grad_()
    (x[3] ** 3).sum().backward(create_graph=True)
    first = x.grad
    x[4].sum().backward()
    assert first[4].tolist() == [0.0, 0.0]
    assert x.grad[3:5].tolist() == [[3.0, 3.0], [1.0, 1.0]]


def test_rows_are_not_added_into_a_read_only_gradient():
    x = ones(100, 2).requires_grad_()
    x.grad = ones(1, 1).expand(100, 2)
    x[4].sum().backward()
    assert x.grad[3:5].tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_a_number_added_to_a_gradient_with_a_graph_can_be_written():
    x = leaf()
    (x * x).backward(create_graph=True)
    (x * 2).backward()
    x.grad.zero_()
    assert x.grad.item() == 0


def test_gradients_that_are_given_back_can_be_written():
    x = leaf(3)
    (g,) = wf.autograd.grad(x.mean(), x, create_graph=True)
    g.detach().zero_()
    assert g.tolist() == [0.0] * 3


def test_gradients_have_the_dtype_of_the_leaf_whatever_a_function_returns():
    class Wide(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g.double() * 2

    x = wf.ones(3, requires_grad=True)
    Wide.apply(x).sum().backward()
    assert x.grad.dtype is wf.float32


def test_a_leaf_that_no_longer_wants_a_gradient_gets_none():
    x = leaf(3)
    y = x * 2
    x.requires_grad_(False)
    y.sum().backward()
    assert x.grad is None


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


@pytest.mark.parametrize("show", [lambda x: x, lambda x: x[:2], lambda x: x.view(3, 1), lambda x: x.detach()])
def test_a_function_that_hands_out_its_input_does_not_hand_out_its_memory(show):
    class Same(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return show(x)

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf(3)
    before = x.tolist()
    with pytest.raises(InPlaceError, match="read-only"):
        Same.apply(x).mul_(2)
    assert x.tolist() == before


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
