"""Normalisation and softmax: against the definition, running statistics, gradients, errors."""

import math

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import ArgumentError, DTypeError, OperationError, ShapeError

F = wf.nn.functional


def values(*shape, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(1.0, 2.0, shape), requires_grad=True)


def standard(x, axis, eps=1e-5):
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + eps)


class TestLayerNorm:
    @pytest.mark.parametrize("own", [(4,), (3, 4)])
    def test_against_the_definition(self, own):
        x, weight, bias = values(2, 3, 4), values(*own, seed=1), values(*own, seed=2)
        axis = tuple(range(3 - len(own), 3))
        want = standard(x.detach().numpy(), axis) * weight.detach().numpy() + bias.detach().numpy()
        np.testing.assert_allclose(F.layer_norm(x, own, weight, bias).detach().numpy(), want)
        np.testing.assert_allclose(
            F.layer_norm(x, own).detach().numpy(), standard(x.detach().numpy(), axis), atol=1e-12
        )

    def test_gradients_of_both_orders(self):
        inputs = (values(2, 4), values(4, seed=1), values(4, seed=2))

        def normed(x, weight, bias):
            return F.layer_norm(x, (4,), weight, bias, eps=0.1)

        assert wf.testing.gradcheck(normed, inputs)
        assert wf.testing.gradgradcheck(normed, inputs)

    def test_only_some_inputs_want_a_gradient(self):
        x = values(2, 4).detach()
        weight = values(4, seed=1)
        F.layer_norm(x, (4,), weight, wf.zeros(4, dtype=wf.float64)).sum().backward()
        np.testing.assert_allclose(weight.grad.numpy(), standard(x.numpy(), 1).sum(0), atol=1e-12)

    def test_float32_stays_float32(self):
        x = wf.randn(2, 4, requires_grad=True)
        out = F.layer_norm(x, (4,), wf.ones(4), wf.zeros(4))
        out.sum().backward()
        assert out.dtype is wf.float32 and x.grad.dtype is wf.float32

    def test_errors(self):
        sentence = r"layer_norm: the input must end in the sizes \[4\], this is f32\[2,3\] \(test_norm\.py:\d+\)"
        with pytest.raises(ShapeError, match=sentence):
            F.layer_norm(wf.ones(2, 3), (4,))
        with pytest.raises(ShapeError, match=r"a weight of f32\[2\] is not of shape \[3\]"):
            F.layer_norm(wf.ones(2, 3), (3,), wf.ones(2))
        with pytest.raises(DTypeError, match="layer_norm: needs floating-point"):
            F.layer_norm(wf.ones(2, 3, dtype=wf.int64), (3,))


class TestBatchNorm:
    def test_training_moves_the_running_statistics(self):
        x = values(8, 3, 2)
        mean, variance = wf.zeros(3, dtype=wf.float64), wf.ones(3, dtype=wf.float64)
        out = F.batch_norm(x, mean, variance, training=True, momentum=0.25)
        a = x.detach().numpy()
        np.testing.assert_allclose(out.detach().numpy(), standard(a, (0, 2)), atol=1e-12)
        np.testing.assert_allclose(mean.numpy(), 0.25 * a.mean((0, 2)))
        np.testing.assert_allclose(variance.numpy(), 0.75 + 0.25 * a.var((0, 2), ddof=1))
        assert not mean.requires_grad

    def test_evaluation_uses_them(self):
        x = values(4, 2)
        mean, variance = wf.tensor([1.0, 2.0], dtype=wf.float64), wf.tensor([4.0, 9.0], dtype=wf.float64)
        out = F.batch_norm(x, mean, variance, wf.tensor([2.0, 1.0], dtype=wf.float64), eps=0.0)
        want = (x.detach().numpy() - [1, 2]) / [2, 3] * [2, 1]
        np.testing.assert_allclose(out.detach().numpy(), want)
        assert mean.tolist() == [1, 2]

    def test_gradients_of_both_orders(self):
        inputs = (values(4, 2), values(2, seed=1), values(2, seed=2))

        def normed(x, weight, bias):
            return F.batch_norm(x, None, None, weight, bias, training=True, eps=0.1)

        assert wf.testing.gradcheck(normed, inputs)
        assert wf.testing.gradgradcheck(normed, inputs)

    def test_errors(self):
        with pytest.raises(ArgumentError, match="batch_norm: more than one value per channel"):
            F.batch_norm(wf.ones(1, 3), None, None, training=True)
        with pytest.raises(OperationError, match="needs running_mean and running_var"):
            F.batch_norm(wf.ones(2, 3), None, None)
        with pytest.raises(ShapeError, match=r"has 3 channels \(dimension 1\), but weight is for 2"):
            F.batch_norm(wf.ones(2, 3), None, None, wf.ones(2), training=True)


class TestOthers:
    def test_groups(self):
        x = values(2, 4, 3)
        out = F.group_norm(x, 2).detach().numpy().reshape(2, 2, 6)
        np.testing.assert_allclose(out, standard(x.detach().numpy().reshape(2, 2, 6), 2), atol=1e-12)
        with pytest.raises(OperationError, match="4 channels cannot be split into 3 groups"):
            F.group_norm(x, 3)

    def test_instances(self):
        x = values(2, 3, 5)
        np.testing.assert_allclose(F.instance_norm(x).detach().numpy(), standard(x.detach().numpy(), 2), atol=1e-12)

    def test_root_mean_square(self):
        x = values(2, 5)
        a = x.detach().numpy()
        want = a / np.sqrt((a * a).mean(1, keepdims=True) + 0.5)
        np.testing.assert_allclose(F.rms_norm(x, (5,), eps=0.5).detach().numpy(), want)

    def test_neighbouring_channels(self):
        x = values(1, 4, 2)
        a = x.detach().numpy()[0]
        out = F.local_response_norm(x, 3, alpha=0.5, beta=0.75, k=2.0).detach().numpy()[0]
        for c in range(4):
            window = a[max(c - 1, 0) : c + 2]
            np.testing.assert_allclose(out[c], a[c] / (2 + 0.5 * (window**2).sum(0) / 3) ** 0.75)

    def test_vectors_of_length_one(self):
        out = F.normalize(wf.tensor([[3.0, 4.0], [0.0, 0.0]]))
        np.testing.assert_allclose(out.numpy(), [[0.6, 0.8], [0, 0]])


class TestSoftmax:
    def test_large_and_impossible_scores(self):
        assert F.softmax(wf.tensor([1000.0, 1000.0]), 0).tolist() == [0.5, 0.5]
        assert F.softmax(wf.tensor([0.0, -math.inf]), 0).tolist() == [1, 0]
        assert F.log_softmax(wf.tensor([1000.0, 0.0]), 0).tolist() == [0, -1000]
        assert np.isnan(F.softmax(wf.full((2,), -math.inf), 0).numpy()).all()

    def test_of_nothing(self):
        assert F.softmax(wf.zeros(2, 0), 1).shape == (2, 0)
        assert F.softmax(wf.zeros(0, 3), 1).shape == (0, 3)

    def test_softmin_prefers_the_smallest(self):
        assert F.softmin(wf.tensor([1.0, 5.0]), 0).argmax().item() == 0

    def test_dim_should_be_given(self):
        with pytest.warns(UserWarning, match="softmax: give dim"):
            assert F.softmax(wf.ones(2, 4)).tolist() == [[0.25] * 4] * 2

    def test_integers_are_refused(self):
        with pytest.raises(DTypeError, match=r"softmax: needs floating-point numbers, this is i64\[2\]"):
            wf.softmax(wf.tensor([1, 2]), 0)
        assert wf.softmax(wf.tensor([1, 1]), 0, dtype=wf.float32).tolist() == [0.5, 0.5]

    def test_gumbel_choices(self):
        wf.manual_seed(0)
        logits = wf.zeros(200, 3, requires_grad=True)
        soft = F.gumbel_softmax(logits, tau=0.5)
        np.testing.assert_allclose(soft.detach().sum(1).numpy(), 1, rtol=1e-5)
        hard = F.gumbel_softmax(logits, hard=True)
        assert set(np.unique(np.round(hard.detach().numpy(), 6))) == {0, 1}
        assert (hard.detach().sum(0) > 30).all()  # each of three equal classes is drawn often
        (hard * wf.tensor([1.0, 2.0, 3.0])).sum().backward()
        assert logits.grad.abs().sum().item() > 0


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
@pytest.mark.parametrize("shape", [3, None, 3.0])
def test_a_normalized_shape_is_a_tuple(norm, shape):
    sentence = f"{norm.__name__}: normalized_shape must be a tuple of sizes, not {type(shape).__name__}"
    with pytest.raises(TypeError, match=sentence):
        norm(wf.ones(2, 3), shape)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "gumbel_softmax"])
def test_softmax_names_what_is_no_tensor(name):
    with pytest.raises(TypeError, match=f"{name}: expected a tensor, not list"):
        getattr(F, name)([1.0, 2.0], dim=0)


def test_instance_norm_names_statistics_of_another_size():
    with pytest.raises(ShapeError, match="instance_norm: .* has 3 channels .*, but running_var is for 2"):
        F.instance_norm(wf.ones(4, 3, 2), wf.zeros(3), wf.ones(2))


@pytest.mark.parametrize("dtype", [wf.bfloat16, wf.float16])
def test_rms_norm_of_narrow_floats_has_the_eps_of_float32_and_the_dtype_of_the_input(dtype):
    x = (wf.arange(8) * 0.001 + 0.001).to(dtype)
    wide = F.rms_norm(x.float(), (8,))
    for weight in (None, wf.ones(8, dtype=dtype), wf.ones(8), wf.ones(8, dtype=wf.float64)):
        out = F.rms_norm(x, (8,), weight)
        assert out.dtype is dtype and bool((out.float() - wide).abs().max() < 0.01)
