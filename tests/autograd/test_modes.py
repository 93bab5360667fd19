"""no_grad and its kin: as blocks, as decorators, nested, restored."""

import pytest

import wayfare as wf
from wayfare.errors import GraphError


@pytest.fixture
def x():
    return wf.ones(3, requires_grad=True)


def test_no_grad_block_and_both_decorators(x):
    with wf.no_grad():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad

    @wf.no_grad()
    def with_brackets():
        return (x * 2).requires_grad

    @wf.no_grad
    def without_brackets():
        return (x * 2).requires_grad

    assert not with_brackets() and not without_brackets()
    assert with_brackets.__name__ == "with_brackets"


def test_enable_grad_inside_no_grad(x):
    with wf.no_grad():
        with wf.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad


def test_decorated_generator_changes_the_state_only_while_its_own_code_runs(x):
    @wf.no_grad()
    def values():
        yield (x * 2).requires_grad
        yield (x * 2).requires_grad

    for inside in values():
        assert inside is False
        assert (x * 2).requires_grad


def test_set_grad_enabled_acts_at_once_and_as_a_block(x):
    with wf.set_grad_enabled(False):
        assert not wf.is_grad_enabled()
    assert wf.is_grad_enabled()
    wf.set_grad_enabled(False)
    try:
        assert not (x * 2).requires_grad
    finally:
        wf.set_grad_enabled(True)
    assert (x * 2).requires_grad

    @wf.set_grad_enabled(False)
    def call():
        return (x * 2).requires_grad

    assert (x * 2).requires_grad and not call()


def test_no_grad_result_may_enter_the_graph_again(x):
    with wf.no_grad():
        c = x * 5
    (c * x).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0, 5.0]


def test_inference_result_may_not_be_kept_for_a_gradient(x):
    with wf.inference_mode():
        c = x * 5
        assert wf.is_inference_mode_enabled()
    with pytest.raises(GraphError, match="inference_mode"):
        c * x
    assert (c + x).requires_grad  # nothing of c is kept here
    with pytest.raises(GraphError, match="inference_mode"):
        c.requires_grad_()
    assert (c.clone() * x).requires_grad


def test_saved_tensors_hooks_pack_on_save_and_unpack_on_use(x):
    events = []

    def pack(t):
        events.append("pack")
        return t.numpy().copy()

    def unpack(array):
        events.append("unpack")
        return wf.from_numpy(array)

    with wf.autograd.saved_tensors_hooks(pack, unpack):
        y = (x * x).sum()
    assert events == ["pack", "pack"]
    y.backward()
    assert events.count("unpack") == 2
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_in_place_under_saved_tensors_hooks_keeps_the_old_value(x):
    with wf.autograd.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x * 3
        y.mul_(y)
    y.sum().backward()
    assert x.grad.tolist() == [18.0, 18.0, 18.0]
