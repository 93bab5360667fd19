"""One test for each mistake that hostile reading or random programs found in writes, views and gradient buffers."""


import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import InPlaceError

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
