"""Autograd side by side: views, writes in place, and the versions that guard them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases, gradient, leaf

case = Cases()


@case
def leaf_cannot_be_written(m):
    leaf(m).add_(1)


@case
def view_of_a_leaf_cannot_be_written(m):
    leaf(m)[0:2].add_(1)


@case
def leaf_may_be_written_without_gradients(m):
    x = leaf(m)
    with m.no_grad():
        x.add_(1)
        x[0] = 7
    return x, x.requires_grad


@case
def saved_tensor_written_later(m):
    x = leaf(m)
    y = x * 2
    z = y * y
    y.add_(1)
    z.sum().backward()


@case
def written_tensor_that_nobody_saved(m):
    x = leaf(m)
    y = x * 2
    z = y + 1
    y.add_(5)
    return gradient(m, x, z + y)


@case
def result_saved_and_written(m):
    x = leaf(m)
    y = x.exp()
    y.mul_(2)
    y.sum().backward()


@case
def saved_tensor_written_through_a_view(m):
    x = leaf(m)
    y = x * 2
    z = y * y
    y[0:1].zero_()
    z.sum().backward()


@case
def saved_tensor_written_through_detach(m):
    x = leaf(m)
    y = x * 2
    z = y * y
    y.detach().zero_()
    z.sum().backward()


@case
def chain_of_writes(m):
    x = leaf(m)
    y = x.clone()
    y.mul_(3).add_(x).sub_(1).neg_()
    return gradient(m, x, y)


@case
def write_into_a_view_reaches_the_base(m):
    x = leaf(m)
    base = x * 1
    base[1:3].mul_(10)
    return base.detach(), gradient(m, x, base)


@case
def write_into_the_base_reaches_the_view(m):
    x = leaf(m)
    base = x * 1
    view = base[1:3]
    base.mul_(10)
    return view.detach(), gradient(m, x, view)


@case
def write_into_a_view_of_a_view(m):
    x = leaf(m)
    base = x * 1
    base.view(2, 2).t()[0].mul_(5)
    return base.detach(), gradient(m, x, base)


@case
def sibling_view_sees_the_write(m):
    x = leaf(m)
    base = x * 1
    first, second = base[0:3], base[1:4]
    first.mul_(5)
    return second.detach(), gradient(m, x, second)


@case
def views_written_by_turns(m):
    x = leaf(m)
    base = x * 1
    first, second = base[0:3], base[1:4]
    first.mul_(2)
    second.add_(x[0:3])
    base.mul_(3)
    first.sin_()
    return base.detach(), gradient(m, x, base + second.sum())


@case
def differentiable_value_copied_into_a_constant(m):
    x = leaf(m)
    base = m.zeros(2, 4, dtype=m.float64)
    base[1] = x
    base[0, 1:3] = x[2:4] * 2
    return base.requires_grad, base.detach(), gradient(m, x, base)


@case
def view_of_a_constant_gets_a_history(m):
    x = leaf(m)
    base = m.zeros(4, dtype=m.float64)
    view = base[0:4]
    view.copy_(x)
    return base.requires_grad, view.requires_grad, gradient(m, x, base * view)


@case
def copy_broadcasts(m):
    x = leaf(m)
    base = m.zeros(3, 4, dtype=m.float64)
    base.copy_(x)
    return gradient(m, x, base)


@case
def copy_cuts_the_old_history(m):
    x = leaf(m)
    y = x * 2
    y.copy_(m.ones(4, dtype=m.float64))
    y.sum().backward()
    return x.grad


@case
def fill_and_zero_cut_the_history(m):
    x = leaf(m)
    y, z = x * 2, x * 3
    y.zero_()
    z.fill_(4)
    (y + z).sum().backward()
    return x.grad


@case
def masked_write(m):
    x = leaf(m)
    y = x * 2
    y[y > 4] = 0
    return gradient(m, x, y)


@case
def masked_write_of_a_tensor(m):
    x, v = leaf(m), leaf(m, 7.0, 8.0)
    y = x * 2
    y[m.tensor([True, False, False, True])] = v
    return gradient(m, x, y), v.grad


@case
def indexed_write(m):
    x, v = leaf(m), leaf(m, 7.0, 8.0)
    y = x * 2
    y[m.tensor([3, 0])] = v * v
    return gradient(m, x, y), v.grad


@case
def augmented_item(m):
    x = leaf(m)
    y = x * 1
    y[1:3] += x[0:2]
    y[0] *= 4
    return y.detach(), gradient(m, x, y)


@case
def expanded_tensor_cannot_be_written(m):
    m.zeros(1).expand(3).add_(1)


@case
def in_place_cannot_grow(m):
    m.zeros(3).add_(m.zeros(2, 3))


@case
def in_place_cannot_change_the_dtype(m):
    m.zeros(3, dtype=m.int64).add_(1.5)


@case
def view_made_without_gradients_may_not_be_written_with(m):
    base = leaf(m) * 1
    with m.no_grad():
        view = base[0:2]
    view.mul_(2)


@case
def versions_count_writes(m):
    x = m.zeros(4)
    versions = [x._version]
    x.add_(1)
    x[0] = 2
    versions.append(x._version)
    view = x[1:3]
    view.mul_(2)
    versions += [x._version, view._version, x.detach()._version, x.clone()._version]
    return versions


@case
def views_know_their_base(m):
    x = m.zeros(4)
    view = x.view(2, 2)[0]
    return view._is_view(), view._base is x, x._is_view()


@case
def detach_in_place(m):
    x = leaf(m)
    y = x * 2
    y.detach_()
    return y.requires_grad, y.is_leaf


@case
def requires_grad_in_place(m):
    x = m.ones(3)
    return x.requires_grad_().requires_grad, x.is_leaf


@case
def relu_in_place(m):
    x = leaf(m, -1.0, 2.0)
    y = x * 3
    y.relu_()
    return gradient(m, x, y)


@case
def reshape_of_a_transpose_is_a_copy(m):
    x = m.arange(6).reshape(2, 3)
    x.t().reshape(6).zero_()
    x.reshape(6)[0] = 9
    return x


@case
def contiguous_is_itself(m):
    x = m.zeros(2, 3)
    return x.contiguous() is x, x.t().contiguous().data_ptr() == x.data_ptr(), x.to(m.float32) is x


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet)
