"""Arithmetic in place: what is written, what is refused, and the gradients of it."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import InPlaceError, OperationError

IN_PLACE = {
    "add_": np.add, "sub_": np.subtract, "mul_": np.multiply, "div_": np.true_divide, "fmod_": np.fmod,
    "remainder_": np.remainder, "pow_": np.power, "atan2_": np.arctan2,
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("recording", [True, False])
def test_a_write_in_place_keeps_the_memory_and_counts_the_version(name, recording):
    a, b = np.array([1.5, 2.5, 3.5]), np.array([2.0, 0.5, 1.5])
    t = wf.tensor(a)
    memory, view = t.data_ptr(), t[1:]
    with wf.enable_grad() if recording else wf.no_grad():
        assert getattr(t, name)(wf.tensor(b)) is t
    assert t.data_ptr() == memory and t._version == 1
    np.testing.assert_allclose(t.numpy(), IN_PLACE[name](a, b))
    np.testing.assert_array_equal(view.numpy(), t.numpy()[1:])


@pytest.mark.parametrize("size", [3, 40_000])
@pytest.mark.parametrize("name", ["add_", "sub_"])
def test_scaled_writes_in_place(name, size):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, size)).astype("f4")
    t = wf.tensor(a, requires_grad=True)
    with wf.no_grad():
        getattr(t, name)(wf.tensor(b), alpha=0.25)
    sign = 1 if name == "add_" else -1
    np.testing.assert_allclose(t.detach().numpy(), a + sign * 0.25 * b, rtol=1e-6, atol=1e-6)
    assert t._version == 1 and t.is_leaf and t.grad_fn is None


def test_an_operand_that_overlaps_the_memory_written():
    a = np.arange(9.0).reshape(3, 3)
    for alpha in (1, 2):
        x = wf.tensor(a)
        x.add_(x.T, alpha=alpha)
        np.testing.assert_array_equal(x.numpy(), a + alpha * a.T)
    y = wf.tensor([1.0, 2.0, 3.0, 4.0])
    y[1:].mul_(y[:-1])
    assert y.tolist() == [1, 2, 6, 12]
    z = wf.tensor([1.0, 2.0])
    assert z.add_(z, alpha=3).tolist() == [4, 8]


def test_memory_that_is_not_ours_to_write_is_refused():
    array = np.ones(3)
    array.flags.writeable = False
    for write in (lambda t: t.add_(1), lambda t: t.add_(wf.ones(3), alpha=2), lambda t: t.exp_(), lambda t: t.mul_(t)):
        with pytest.raises(InPlaceError, match=r"_: the memory of this f64\[3\] is read-only.*clone"):
            write(wf.from_numpy(array))
    assert array.tolist() == [1, 1, 1]


WRITES = {
    "add_": lambda t: t.add_(1),
    "mul_": lambda t: t.mul_(wf.ones(2, 3)),
    "exp_": lambda t: t.exp_(),
    "fill_": lambda t: t.fill_(2),
    "zero_": lambda t: t.zero_(),
    "copy_": lambda t: t.copy_(wf.ones(2, 3)),
    "clamp_": lambda t: t.clamp_(0, 1),
    "normal_": lambda t: t.normal_(),
    "index_fill_": lambda t: t.index_fill_(0, wf.tensor([0]), 1.0),
    "index_add_": lambda t: t.index_add_(0, wf.tensor([0]), wf.ones(1, 3)),
    "index_put_": lambda t: t.index_put_((wf.tensor([0]),), wf.tensor(1.0)),
    "masked_fill_": lambda t: t.masked_fill_(wf.ones(2, 3).bool(), 1.0),
    "scatter_": lambda t: t.scatter_(0, wf.zeros(1, 3).long(), 1.0),
    "addcmul_": lambda t: t.addcmul_(wf.ones(2, 3), wf.ones(2, 3)),
    "lerp_": lambda t: t.lerp_(wf.ones(2, 3), 0.25),
    r"x\[\.\.\.\] = value": lambda t: t.__setitem__(0, 1.0),
    "relu_": lambda t: wf.nn.functional.relu(t, inplace=True),
    "ones_|fill_": wf.nn.init.ones_,
    "embedding with max_norm": lambda t: wf.nn.functional.embedding(wf.tensor([0]), t, max_norm=0.1),
    "embedding_bag with max_norm": lambda t: wf.nn.functional.embedding_bag(wf.tensor([[0]]), t, max_norm=0.1),
    "batch_norm": lambda t: wf.nn.functional.batch_norm(wf.ones(4, 3), t[0], wf.ones(3), training=True),
    "instance_norm": lambda t: wf.nn.functional.instance_norm(wf.ones(4, 3, 2), wf.zeros(3), t[0]),
    "sgd": lambda t: descend(wf.nn.Parameter(t)),
}


def descend(p):
    p.grad = wf.ones(2, 3)
    wf.optim.SGD([p], lr=0.1).step()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("times", [1, 2])  # what is remembered of the first time is no way around
def test_elements_that_share_memory_are_not_written(name, times):
    source = wf.ones(1, 1)
    t = source.expand(2, 3)
    for _ in range(times):
        text = rf"({name}): several elements of .*f32\[(2,)?3\] share memory.*Write to a \.clone\(\) of it"
        with pytest.raises(InPlaceError, match=text):
            WRITES[name](t)
    assert source.item() == 1
    WRITES[name](t.clone())


def test_stretched_arrays_of_others_are_not_written():
    for make in (wf.from_numpy, wf.as_tensor, wf.asarray, wf.from_dlpack):
        array = np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,))
        with pytest.raises(InPlaceError, match=r"add_: several elements of this f64\[3\] share memory"):
            make(array).add_(1)
        assert array.flags.writeable and array[0] == 1
        assert make(np.ones((1, 3))).add_(1).tolist() == [[2, 2, 2]]


def test_where_no_element_shares_memory_it_is_written():
    for make in (lambda x: x.expand(2, 3), lambda x: x.expand(1, 2, 3), lambda x: x.unfold(1, 1, 2)):
        x = wf.zeros(2, 3)
        make(x).add_(1)
        assert x[0, 0] == 1


def test_a_leaf_is_not_written_while_recording():
    x = wf.ones(2, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x.mul_(x), lambda: x.sqrt_(), lambda: x.addcmul_(x, x)):
        with pytest.raises(InPlaceError, match=r"a leaf variable that requires grad.*no_grad"):
            write()
    assert x.tolist() == [1, 1] and x._version == 0


def test_a_result_of_a_higher_kind_is_not_written():
    with pytest.raises(OperationError, match="div_: a result of wayfare.float32 cannot be written into .*int64"):
        wf.tensor([1, 2]).div_(2)
    with pytest.raises(OperationError, match="add_: a result of wayfare.int64 cannot be written into .*bool"):
        wf.tensor([True, False]).add_(1)
    x = wf.tensor([1.0], dtype=wf.float16)
    assert x.add_(wf.tensor([1.0], dtype=wf.float64)).dtype is wf.float16


def test_gradients_flow_through_writes_in_place():
    a = wf.tensor([2.0, 3.0], requires_grad=True)
    x = a * 1
    x.mul_(a)  # a²
    x.pow_(2)  # a⁴
    x.div_(a)  # a³
    x.sub_(a, alpha=2)  # a³ - 2a
    x.sum().backward()
    assert a.grad.tolist() == pytest.approx([3 * 4 - 2, 3 * 9 - 2])


def test_augmented_assignment_writes_in_place():
    x = y = wf.ones(2)
    x += 1
    x *= 3
    x -= 2
    x /= 2
    x **= 2
    x //= 3
    assert x is y and x.tolist() == [1, 1]


def test_a_view_whose_base_nobody_sees_stands_alone():
    x = wf.ones(2, 3, requires_grad=True)
    kept = (x * 2).view(3, 2)
    base = kept._view.base
    kept.mul_(3)
    assert kept._view is not None and base.sum().item() == 36
    for alone in ((x * 2).view(3, 2), (x * 2).view(3, 2).t()):
        alone.mul_(3)
        assert alone._view is None
        (gradient,) = wf.autograd.grad(alone.sum(), x)
        assert gradient.tolist() == [[6.0] * 3] * 2
