"""Autograd side by side: hooks of tensors, nodes and saved tensors."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases, gradient, leaf

case = Cases()


@case
def tensor_hook_replaces_the_gradient(m):
    x = leaf(m)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return gradient(m, x, y)


@case
def hook_on_a_leaf(m):
    x = leaf(m)
    seen = []
    x.register_hook(lambda g: seen.append(g.clone()))
    (x * x + x).sum().backward()
    return seen, x.grad


@case
def hooks_run_in_order_and_can_be_removed(m):
    x = leaf(m)
    y = x * 2
    order = []
    y.register_hook(lambda g: order.append("first"))
    handle = y.register_hook(lambda g: order.append("second"))
    y.register_hook(lambda g: order.append("third"))
    handle.remove()
    y.sum().backward()
    return order


@case
def hook_sees_the_summed_gradient(m):
    x = leaf(m)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.clone()))
    (y * 3 + y * 4 + y.sin()).sum().backward()
    return seen


@case
def hook_and_retained_gradient(m):
    x = leaf(m)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return x.grad, y.grad


@case
def hook_on_a_tensor_without_gradient(m):
    m.ones(2).register_hook(lambda g: g)


@case
def hook_after_accumulation(m):
    x = leaf(m)
    seen = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    return seen


@case
def hook_after_accumulation_needs_a_leaf(m):
    (leaf(m) * 2).register_post_accumulate_grad_hook(lambda t: None)


@case
def node_hooks(m):
    x = leaf(m)
    y = x * 2
    seen = []
    y.grad_fn.register_hook(lambda ins, outs: seen.append((len(ins), len(outs), outs[0].clone())))
    y.grad_fn.register_prehook(lambda outs: (outs[0] * 5,))
    y.sum().backward()
    return seen, x.grad


@case
def hook_before_a_write_in_place(m):
    x = leaf(m)
    y = x * 2
    y.register_hook(lambda g: g * 100)
    y.mul_(3)
    return gradient(m, x, y)


@case
def hook_after_a_write_in_place(m):
    x = leaf(m)
    y = x * 2
    y.mul_(3)
    y.register_hook(lambda g: g * 100)
    return gradient(m, x, y)


@case
def node_names_and_edges(m):
    x = leaf(m)
    y = (x * 2).sum()
    inner = y.grad_fn.next_functions[0][0]
    return y.grad_fn.name(), inner.name(), [place for _, place in inner.next_functions][:1]


@case
def saved_tensor_hooks(m):
    x = leaf(m)
    log = []

    def pack(t):
        log.append("pack")
        return t * 2

    def unpack(t):
        log.append("unpack")
        return t

    with m.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.exp() * x
    y.sum().backward()
    return log.count("pack"), log.count("unpack"), x.grad


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet)
