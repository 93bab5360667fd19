"""Functions that check numbers or count by them do so without a decision: one recording is good for all values."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.compiler.checks import check, numbers


def whole(call, high, *shape, low=0):
    return wf.from_numpy(np.random.default_rng(call).integers(low, high, shape))


def no_decisions(compiled):
    (kind,) = compiled.explain().data["signatures"]
    tree = kind["variants"][0]["tree"]
    assert tree["decision"] == "" and tree["visits"] == 3, tree


def offsets_of(call):
    return wf.tensor([[0, 2, 2, 7], [0, 0, 0, 0], [0, 1, 2, 3], [0, 8, 8, 8]][call])


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode, padding):
    def table(call):
        return numbers(5, 3, seed=call, grad=True)

    how = {"mode": mode, "padding_idx": padding}
    no_decisions(check(lambda w, i, o: F.embedding_bag(i, w, o, **how), table, lambda c: whole(c, 5, 8), offsets_of))
    no_decisions(check(lambda w, i: F.embedding_bag(i, w, **how), table, lambda c: whole(c, 5, 4, 3)))


def test_bags_with_weights_and_a_last_offset():
    def bags(w, i, o, weights):
        return F.embedding_bag(i, w, o, mode="sum", per_sample_weights=weights, include_last_offset=True, padding_idx=0)

    no_decisions(check(bags, lambda c: numbers(5, 3, seed=c, grad=True), lambda c: whole(c, 5, 8), offsets_of,
                       lambda c: numbers(8, seed=c + 9, grad=True)))  # fmt: skip


def test_bags_of_each_example():
    table, words = numbers(5, 3), whole(0, 5, 4, 2, 6)
    one_by_one = wf.stack([F.embedding_bag(w, table, mode="max", padding_idx=1) for w in words])
    assert wf.equal(wf.func.vmap(lambda w: F.embedding_bag(w, table, mode="max", padding_idx=1))(words), one_by_one)


@pytest.mark.parametrize("packed", [False, True])
def test_ctc(packed):
    def loss(x, targets, times, sizes):
        return F.ctc_loss(x.log_softmax(2), targets, times, sizes, blank=1, reduction="none", zero_infinity=True)

    def targets(call):
        labels = 2 + whole(call, 3, 3, 4)
        return labels.reshape(-1) if packed else labels

    # No target at all, no time at all, and targets that are too long for their time.
    sizes = [[4, 0, 2], [1, 1, 1], [4, 4, 4], [3, 2, 1]]
    no_decisions(check(loss, lambda c: numbers(6, 3, 5, seed=c, grad=True), targets,
                       lambda c: whole(c, 7, 3) * (c > 0), lambda c: wf.tensor(sizes[c])))  # fmt: skip


def test_the_variance_of_a_normal_distribution():
    no_decisions(check(
        F.gaussian_nll_loss, lambda c: numbers(4, 3, seed=c, grad=True), lambda c: numbers(4, 3, seed=c + 9),
        lambda c: (numbers(4, 3, seed=c + 5) ** 2).detach().requires_grad_(),
    ))  # fmt: skip


def test_fractional_pooling():
    def pool(x, samples):
        return F.fractional_max_pool2d(x, 2, (3, 2), return_indices=True, _random_samples=samples)

    no_decisions(check(pool, lambda c: numbers(2, 3, 7, 6, seed=c, grad=True),
                       lambda c: wf.from_numpy(np.random.default_rng(c).uniform(size=(2, 3, 2)))))  # fmt: skip


BAD = {
    "an input of length 7 is longer than the 6 steps": ([7, 2], [1, 1], [[1, 2], [2, 1]]),
    "input length -1 is negative": ([-1, 2], [1, 1], [[1, 2], [2, 1]]),
    "target length -3 is negative": ([6, 2], [1, -3], [[1, 2], [2, 1]]),
    "(target 0 has fewer than its 3 labels|a target of length 3 is longer than the 2 labels)":
        ([6, 2], [3, 1], [[1, 2], [2, 1]]),
    "(label|class) 9": ([6, 2], [1, 1], [[9, 2], [2, 1]]),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
@pytest.mark.parametrize("compiled", [False, True])
def test_bad_lengths_and_labels_are_named_both_ways(message, compiled):
    loss = wf.compile(lambda *given: F.ctc_loss(*given)) if compiled else F.ctc_loss
    good = (wf.tensor([6, 2]), wf.tensor([1, 1]), wf.tensor([[1, 2], [2, 1]]))
    x = numbers(6, 2, 5).log_softmax(2)
    for times, sizes, targets in (good, good, tuple(map(wf.tensor, BAD[message]))):
        if times is good[0]:
            loss(x, targets, times, sizes)
            continue
        with pytest.raises((RuntimeError, IndexError), match=f"ctc_loss: {message}"):
            loss(x, targets, times, sizes)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_negative_variance_is_refused_both_ways(compiled):
    loss = wf.compile(lambda *given: F.gaussian_nll_loss(*given)) if compiled else F.gaussian_nll_loss
    x = numbers(3)
    for var in (wf.tensor([1.0, 2, 3]), wf.tensor([1.0, 0, 3]), wf.tensor([1.0, -1, 3])):
        if var.min() >= 0:
            loss(x, x, var)
            continue
        with pytest.raises(ValueError, match="gaussian_nll_loss: var has a negative entry"):
            loss(x, x, var)


@pytest.mark.parametrize(("offsets", "message"), [
    ([1, 2], "offsets must begin with 0, ascend, and not exceed 4, they are \\[1, 2\\]"),
    ([0, 3, 2], "offsets must begin with 0, ascend"), ([0, 5], "offsets must begin with 0, ascend"),
    ([], "offsets must begin with 0"),
])  # fmt: skip
def test_offsets_that_are_none(offsets, message):
    with pytest.raises(RuntimeError, match=f"embedding_bag: {message}"):
        F.embedding_bag(wf.tensor([0, 1, 2, 0]), numbers(3, 2), wf.tensor(offsets, dtype=wf.int64))


def test_a_number_without_a_row():
    with pytest.raises(RuntimeError, match="embedding_bag: the largest index is 3, but the table has 3 rows"):
        F.embedding_bag(wf.tensor([[0, 3]]), numbers(3, 2))
