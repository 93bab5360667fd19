"""nn.Module side by side: registering, walking, modes, conversions, states, copies, text."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.module_parts import affine, nested, numbers
from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


@case
def names_and_order(m):
    net = nested(m)
    return (
        [n for n, _ in net.named_parameters()], [n for n, _ in net.named_parameters(recurse=False)],
        [n for n, _ in net.named_parameters(prefix="p", remove_duplicate=False)],
        [n for n, _ in net.named_buffers()], [n for n, _ in net.named_modules()], [n for n, _ in net.named_children()],
        [n for n, _ in net.named_modules(remove_duplicate=False)], list(net.state_dict()), len(list(net.modules())),
        list(net.state_dict(prefix="model.")),
    )  # fmt: skip


@case
def text(m):
    return repr(nested(m)).replace(" x Affine", " x Affine")


@case
def text_of_containers(m):
    return [repr(c) for c in (
        m.nn.Sequential(), m.nn.ModuleList(), m.nn.ModuleDict(), m.nn.Sequential(affine(m), affine(m, 3, 1)),
        m.nn.ModuleList([affine(m), affine(m), affine(m, 3, 1), affine(m)]), m.nn.ModuleDict({"a": affine(m)}),
    )]  # fmt: skip


@case
def a_parameter_is_replaced_in_its_place(m):
    net = affine(m)
    net.weight = m.nn.Parameter(m.zeros(3, 3, dtype=m.float64))
    net.bias = None
    return list(net.state_dict()), net.weight, net.bias


@case
def a_parameter_cannot_become_a_tensor(m):
    affine(m).weight = m.zeros(3, 3)


@case
def a_module_cannot_become_a_number(m):
    nested(m).first = 3


@case
def a_buffer_takes_any_tensor(m):
    net = affine(m)
    net.scale = m.ones(4)
    return list(net.state_dict()), net.scale


@case
def a_buffer_takes_no_number(m):
    affine(m).scale = 3


@case
def a_tensor_is_no_parameter(m):
    affine(m).register_parameter("other", m.zeros(3))


@case
def a_name_with_a_dot(m):
    affine(m).register_parameter("a.b", m.nn.Parameter(m.zeros(1)))


@case
def an_empty_name(m):
    affine(m).add_module("", affine(m))


@case
def a_name_that_is_taken(m):
    affine(m).register_buffer("forward", m.zeros(1))


@case
def a_buffer_under_a_parameters_name(m):
    affine(m).register_buffer("weight", m.zeros(1))


@case
def without_super_init(m):
    class Net(m.nn.Module):
        def __init__(self):
            self.layer = affine(m)

    Net()


@case
def deleting(m):
    net = nested(m)
    del net.first
    del net.free
    return list(net.state_dict()), hasattr(net, "first")


@case
def a_name_changes_its_kind(m):
    net = nested(m)
    net.first = m.nn.Parameter(m.ones(1))
    return list(net.state_dict())


@case
def a_parameter_cannot_become_a_module(m):
    nested(m).free = affine(m)


@case
def gradients_through_a_model(m):
    net = nested(m)
    x = numbers(m, 2, 3).requires_grad_()
    net(x).sum().backward()
    return [(n, p.grad) for n, p in net.named_parameters()], x.grad


@case
def freezing(m):
    net = nested(m)
    net.blocks.requires_grad_(False)
    net(numbers(m, 2, 3)).sum().backward()
    return [(n, p.requires_grad, p.grad is None) for n, p in net.named_parameters()]


@case
def zero_grad(m):
    net = affine(m)
    net(numbers(m, 2, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    first = net.weight.grad
    net.zero_grad()
    return first, net.weight.grad


@case
def modes(m):
    net = nested(m)
    net.eval()
    net.blocks[1].train()
    return [(n, module.training) for n, module in net.named_modules()]


@case
def a_mode_is_a_bool(m):
    nested(m).train("yes")


@case
def apply_goes_children_first(m):
    order = []
    nested(m).apply(lambda module: order.append(type(module).__name__))
    return order


@case
def conversion(m):
    net = nested(m)
    before = net.first.weight
    net(numbers(m, 2, 3)).sum().backward()
    net.float()
    return net.first.weight is before, before.dtype is m.float32, before.grad.dtype is m.float32, before


@case
def conversion_to_integers(m):
    nested(m).to(m.int64)


@case
def loading(m):
    net, other = nested(m), nested(m)
    with m.no_grad():
        for p in other.parameters():
            p.mul_(3)
    answer = net.load_state_dict(other.state_dict())
    return list(net.parameters()), str(answer), answer.missing_keys


@case
def loading_less(m):
    net = nested(m)
    state = net.state_dict()
    del state["first.weight"]
    state["other"] = m.ones(1)
    answer = net.load_state_dict(state, strict=False)
    return answer.missing_keys, answer.unexpected_keys


@case
def loading_less_strictly(m):
    net = nested(m)
    state = net.state_dict()
    del state["first.weight"]
    net.load_state_dict(state)


@case
def loading_another_shape(m):
    affine(m).load_state_dict(affine(m, 4, 3).state_dict(), strict=False)


@case
def loading_another_dtype(m):
    net = affine(m)
    net.load_state_dict({k: v.float() for k, v in affine(m, start=3.0).state_dict().items()})
    return net.weight


@case
def loading_by_assignment(m):
    net = affine(m)
    net.weight.requires_grad_(False)
    given = affine(m, start=3.0).state_dict()
    net.load_state_dict(given, assign=True)
    return net.weight, net.weight.requires_grad, isinstance(net.weight, m.nn.Parameter), net.scale is given["scale"]


@case
def loading_no_dictionary(m):
    affine(m).load_state_dict([1])


@case
def state_shares_memory(m):
    net = affine(m)
    net.state_dict()["weight"].zero_()
    return net.weight, net.state_dict()["weight"].requires_grad, net.state_dict(keep_vars=True)["weight"] is net.weight


@case
def extra_state(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 1

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    a, b = m.nn.Sequential(Net()), m.nn.Sequential(Net())
    a[0].count = 5
    b.load_state_dict(a.state_dict())
    return b[0].count, list(a.state_dict())


@case
def deep_copy(m):
    net = nested(m)
    other = copy.deepcopy(net)
    with m.no_grad():
        other.first.weight.zero_()
    return net.first.weight, other.again is other.first, other.blocks[0].weight, isinstance(
        other.free, m.nn.Parameter
    )


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_modules_agree(snippet):
    agree(snippet)
