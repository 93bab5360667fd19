"""Losses: reductions, targets of every kind, stability, gradients, errors."""

import math
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import ArgumentError, DTypeError, IndexRangeError, OperationError, ShapeError

F = wf.nn.functional
INF = float("inf")


def scores(*shape, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(size=shape), requires_grad=True)


class TestCrossEntropy:
    def test_against_the_definition(self):
        x = scores(4, 3)
        target = wf.tensor([0, 2, 1, 2])
        p = np.exp(x.detach().numpy())
        p /= p.sum(1, keepdims=True)
        each = -np.log(p[np.arange(4), target.numpy()])
        np.testing.assert_allclose(F.cross_entropy(x, target, reduction="none").detach().numpy(), each)
        assert F.cross_entropy(x, target, reduction="sum").item() == pytest.approx(each.sum())
        loss = F.cross_entropy(x, target)
        assert loss.item() == pytest.approx(each.mean())
        loss.backward()
        hot = np.eye(3)[target.numpy()]
        np.testing.assert_allclose(x.grad.numpy(), (p - hot) / 4, atol=1e-12)

    def test_large_scores(self):
        x = wf.tensor([[1000.0, 0.0], [-1000.0, 0.0]], requires_grad=True)
        loss = F.cross_entropy(x, wf.tensor([0, 0]), reduction="none")
        assert loss.tolist() == [0, 1000]
        loss.sum().backward()
        assert x.grad.tolist() == [[0, 0], [-1, 1]]

    def test_ignored_rows_count_for_nothing(self):
        x = scores(3, 4)
        target = wf.tensor([1, -100, 3])
        loss = F.cross_entropy(x, target)
        kept = F.cross_entropy(x[wf.tensor([0, 2])], wf.tensor([1, 3]))
        assert loss.item() == pytest.approx(kept.item())
        loss.backward()
        assert x.grad[1].tolist() == [0] * 4
        assert F.cross_entropy(x, target, reduction="none")[1].item() == 0
        assert math.isnan(F.cross_entropy(x, wf.tensor([-100] * 3)).item())

    @pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
    @pytest.mark.parametrize("smoothing", [0.0, 0.2])
    def test_weights_and_smoothing_agree_with_probabilities(self, reduction, smoothing):
        x = scores(5, 3)
        target, weight = wf.tensor([0, 1, 2, 2, 0]), wf.tensor([1.0, 2.0, 0.5], dtype=wf.float64)
        hot = F.one_hot(target, 3).double()
        by_class = F.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=smoothing)
        by_share = F.cross_entropy(x, hot, weight, reduction=reduction, label_smoothing=smoothing)
        if reduction == "mean":  # over the weights of the targets, against over the rows
            by_class = by_class * weight[target].sum() / 5
        np.testing.assert_allclose(by_class.detach().numpy(), by_share.detach().numpy())

    def test_classes_of_pixels(self):
        x, target = scores(2, 3, 4, 5), wf.tensor(np.random.default_rng(1).integers(0, 3, (2, 4, 5)))
        out = F.cross_entropy(x, target, reduction="none")
        assert out.shape == (2, 4, 5)
        one = F.cross_entropy(x[1, :, 2, 3], target[1, 2, 3])
        assert out[1, 2, 3].item() == pytest.approx(one.item())

    def test_it_is_log_softmax_and_nll_loss(self):
        x, target = scores(4, 3), wf.tensor([0, 2, 1, 2])
        (a,) = wf.autograd.grad(F.cross_entropy(x, target), x)
        (b,) = wf.autograd.grad(F.nll_loss(F.log_softmax(x, 1), target), x)
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-12)

    def test_its_gradient_can_be_differentiated(self):
        x, target = scores(3, 4), wf.tensor([1, 0, -100])
        assert wf.testing.gradgradcheck(lambda x: F.cross_entropy(x, target), (x,))

    def test_float32_stays_float32(self):
        x = wf.ones(2, 3, requires_grad=True)
        loss = F.cross_entropy(x, wf.tensor([0, 1]))
        loss.backward()
        assert loss.dtype is wf.float32 and x.grad.dtype is wf.float32

    def test_errors(self):
        x = wf.zeros(2, 3)
        with pytest.raises(IndexRangeError, match=r"cross_entropy: class 3 is out of range for 3 classes.*from 0 to 2"):
            F.cross_entropy(x, wf.tensor([0, 3]))
        with pytest.raises(IndexRangeError, match="class -1 is out of range"):
            F.cross_entropy(x, wf.tensor([0, -1]))
        words = r"cross_entropy: scores f32\[2,3\] and target i64\[3\] have different batches \(test_loss\.py:\d+\)"
        with pytest.raises(ArgumentError, match=words):
            F.cross_entropy(x, wf.tensor([0, 1, 2]))
        with pytest.raises(ShapeError, match=r"need a target of shape \[2\], not f32\[2,1\]"):
            F.cross_entropy(x, wf.zeros(2, 1))
        with pytest.raises(OperationError, match=r"target classes must be integers.*\.long\(\)"):
            F.cross_entropy(x, wf.zeros(2))
        with pytest.raises(DTypeError, match="scores must be floating-point numbers"):
            F.cross_entropy(wf.zeros(2, 3, dtype=wf.int64), wf.tensor([0, 1]))
        with pytest.raises(ShapeError, match="3 classes need 3 weights"):
            F.cross_entropy(x, wf.tensor([0, 1]), wf.ones(2))
        with pytest.raises(ArgumentError, match="'average' is not a reduction.*'none', 'mean' or 'sum'"):
            F.cross_entropy(x, wf.tensor([0, 1]), reduction="average")


class TestBinary:
    def test_with_logits_is_the_other_of_a_sigmoid(self):
        x, target = scores(6), wf.tensor([0.0, 1.0, 0.3, 1.0, 0.0, 0.9], dtype=wf.float64)
        a = F.binary_cross_entropy_with_logits(x, target)
        b = F.binary_cross_entropy(x.sigmoid(), target)
        assert a.item() == pytest.approx(b.item())
        np.testing.assert_allclose(*(wf.autograd.grad(loss, x)[0].numpy() for loss in (a, b)), atol=1e-12)

    def test_sure_answers(self):
        x = wf.tensor([1000.0, -1000.0, 1000.0], requires_grad=True)
        loss = F.binary_cross_entropy_with_logits(x, wf.tensor([1.0, 0.0, 0.0]), reduction="none")
        assert loss.tolist() == [0, 0, 1000]
        loss.sum().backward()
        assert x.grad.tolist() == [0, 0, 1]
        wrong = F.binary_cross_entropy(wf.tensor([0.0, 1.0]), wf.tensor([1.0, 0.0]), reduction="none")
        assert wrong.tolist() == [100, 100]

    def test_pos_weight(self):
        x, target = scores(4), wf.tensor([1.0, 0.0, 1.0, 0.0], dtype=wf.float64)
        plain = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        heavy = F.binary_cross_entropy_with_logits(
            x, target, reduction="none", pos_weight=wf.tensor(3.0, dtype=wf.float64)
        )
        np.testing.assert_allclose(heavy.detach().numpy(), plain.detach().numpy() * [3, 1, 3, 1])

    def test_shapes_must_be_equal(self):
        with pytest.raises(ArgumentError, match=r"input f32\[2,1\] and target f32\[2\] differ in shape.*Reshape"):
            F.binary_cross_entropy_with_logits(wf.zeros(2, 1), wf.zeros(2))


class TestRegression:
    def test_values(self):
        x, y = wf.tensor([0.0, 2.0, 5.0]), wf.tensor([0.5, 2.0, 2.0])
        assert F.mse_loss(x, y).item() == pytest.approx((0.25 + 9) / 3)
        assert F.l1_loss(x, y, reduction="sum").item() == 3.5
        assert F.smooth_l1_loss(x, y, reduction="none").tolist() == [0.125, 0, 2.5]
        assert F.huber_loss(x, y, reduction="none", delta=2.0).tolist() == [0.125, 0, 4]

    def test_both_sides_get_a_gradient(self):
        x, y = scores(3), scores(3, seed=1)
        F.mse_loss(x, y, reduction="sum").backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * (x - y).detach().numpy())
        np.testing.assert_allclose(y.grad.numpy(), -x.grad.numpy())

    def test_another_shape_is_warned_of(self):
        with pytest.warns(UserWarning, match=r"mse_loss: input \[3, 1\] and target \[3\] differ"):
            out = F.mse_loss(wf.zeros(3, 1), wf.ones(3), reduction="none")
        assert out.shape == (3, 3)
        with pytest.raises(ShapeError, match="l1_loss: shapes"):
            F.l1_loss(wf.zeros(2), wf.zeros(3))

    def test_the_old_arguments_still_work(self):
        x, y = wf.tensor([1.0, 2.0]), wf.zeros(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert F.mse_loss(x, y, size_average=False).item() == 5
            assert F.mse_loss(x, y, reduce=False).tolist() == [1, 4]


class TestMargins:
    def test_triplets(self):
        anchor, near, far = wf.tensor([[0.0, 0.0]]), wf.tensor([[1.0, 0.0]]), wf.tensor([[0.0, 1.5]])
        assert F.triplet_margin_loss(anchor, near, far).item() == pytest.approx(0.5, abs=1e-5)

        def city_blocks(a, b):
            return (a - b).abs().sum(-1)

        out = F.triplet_margin_with_distance_loss(anchor, near, far, distance_function=city_blocks, margin=2.0)
        assert out.item() == pytest.approx(1.5)

    def test_labels_end_at_the_first_minus_one(self):
        x = wf.tensor([[0.1, 0.2, 0.4, 0.8]])
        target = wf.tensor([[3, 0, -1, 1]])
        want = sum(1 - x[0, s].item() + x[0, o].item() for s in (3, 0) for o in (1, 2)) / 4
        assert F.multilabel_margin_loss(x, target).item() == pytest.approx(want)

    def test_pairs(self):
        a, b = wf.tensor([[1.0, 0.0], [1.0, 0.0]]), wf.tensor([[0.0, 2.0], [3.0, 0.0]])
        out = F.cosine_embedding_loss(a, b, wf.tensor([1, -1]), margin=0.25, reduction="none")
        assert out.tolist() == pytest.approx([1, 0.75])


class TestCTC:
    def test_all_alignments_by_hand(self):
        p = np.random.default_rng(0).dirichlet(np.ones(3), size=4)
        target = [1, 2]

        def collapsed(path):
            out = [c for i, c in enumerate(path) if i == 0 or c != path[i - 1]]
            return [c for c in out if c != 0]

        paths = [path for path in np.ndindex(3, 3, 3, 3) if collapsed(path) == target]
        want = -math.log(sum(math.prod(p[t, c] for t, c in enumerate(path)) for path in paths))
        logs = wf.tensor(np.log(p)).unsqueeze(1)
        got = F.ctc_loss(logs, wf.tensor([target]), [4], [2], reduction="sum")
        assert got.item() == pytest.approx(want)

    def test_impossible_targets(self):
        logs = F.log_softmax(scores(2, 1, 3), 2)
        target = wf.tensor([[1, 1]])  # equal labels need a blank between them: three steps
        assert F.ctc_loss(logs, target, [2], [2]).item() == INF
        assert F.ctc_loss(logs, target, [2], [2], zero_infinity=True).item() == 0

    @pytest.mark.parametrize(("labels", "want"), [(0, 0.0), (1, INF), (2, INF)])
    @pytest.mark.parametrize("zero_infinity", [False, True])
    def test_without_a_step_only_the_empty_target_is_said(self, labels, want, zero_infinity):
        logs = F.log_softmax(scores(4, 2, 3), 2).detach().requires_grad_()
        target = wf.tensor([[1, 2], [2, 1]])
        loss = F.ctc_loss(logs, target, [0, 4], [labels, 1], reduction="none", zero_infinity=zero_infinity)
        alone = F.ctc_loss(logs[:, 1:], target[1:], [4], [1], reduction="none")
        assert loss.tolist() == [0.0 if zero_infinity else want, alone.item()]
        loss.sum().backward()
        got, logs.grad = logs.grad, None
        alone.backward()
        np.testing.assert_array_equal(got.numpy(), logs.grad.numpy())
        assert not got[:, 0].any()

    @pytest.mark.parametrize("shape", [(0, 1, 3), (3, 0, 3), (3, 1, 0)])
    def test_nothing_at_all_is_refused(self, shape):
        with pytest.raises(OperationError, match="ctc_loss: log-probabilities .* are empty"):
            F.ctc_loss(wf.zeros(shape), wf.zeros(shape[1], 1).long(), [0] * shape[1], [0] * shape[1])

    @pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
    @pytest.mark.parametrize("times", [[0, 4], [4, 0], [0, 0]])
    @pytest.mark.parametrize("sizes", [[0, 2], [2, 0], [1, 1], [0, 0]])
    def test_lengths_of_zero_as_pytorch(self, times, sizes, reduction):
        torch = pytest.importorskip("torch")
        given = F.log_softmax(scores(4, 2, 3), 2).detach().numpy()
        found = []
        for m in (torch, wf):
            logs = m.tensor(given).requires_grad_()
            lengths = m.tensor([[1, 2], [2, 1]]), m.tensor(times), m.tensor(sizes)
            loss = m.nn.functional.ctc_loss(logs, *lengths, reduction=reduction)
            loss.sum().backward()
            found.append((loss.detach().numpy(), logs.grad.numpy()))
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)

    def test_gradient_through_softmax(self):
        x = scores(4, 2, 3)
        target = wf.tensor([[1, 2], [2, 0]])

        def loss(x):
            return F.ctc_loss(F.log_softmax(x, 2), target, [4, 3], [2, 1], reduction="sum")

        assert wf.testing.gradcheck(loss, (x,))


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan"), INF])
def test_binary_cross_entropy_refuses_what_is_no_probability(wrong):
    with pytest.raises(OperationError, match=r"probabilities must lie in \[0, 1\].*_with_logits"):
        F.binary_cross_entropy(wf.tensor([0.5, wrong]), wf.ones(2))


def test_binary_cross_entropy_takes_the_ends_nothing_and_batches():
    p, target = wf.tensor([0.0, 1.0]), wf.tensor([0.0, 1.0])
    assert F.binary_cross_entropy(p, target).item() == 0
    assert math.isnan(F.binary_cross_entropy(wf.zeros(0), wf.zeros(0)).item())
    assert wf.vmap(F.binary_cross_entropy)(p, target).tolist() == [0, 0]


def test_nll_loss_names_a_target_that_is_no_tensor():
    with pytest.raises(TypeError, match="nll_loss: expected a tensor, not list"):
        F.nll_loss(wf.zeros(1, 2), [0])
