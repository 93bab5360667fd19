"""`view` fails where it fails in the loop: in a helper that runs as one call, in a module, in a fused function."""

import pytest

import wayfare as wf
from tests.batch.checks import numbers
from wayfare import nn

WIDE = wf.ones(3, 4).T


def transposed(x):
    return (x * 2 + 1).tanh().T.view(-1)


def part(x):
    return (x * 2 + 1).tanh()[:, 1:].view(4)


def swapped(x):
    h = (x * 2 + 1).tanh().reshape(1, 2, 3)
    return h.permute(2, 1, 0).exp().view(3, 2, 1, 1).flatten().view(-1) + h.permute(2, 1, 0).view(6)


def of_a_tensor_from_outside(x):
    return (x * 2 + 1).tanh().sum() + WIDE.view(12)


def computed_from_outside(x):
    return (x * 2 + 1).tanh().sum() + (WIDE * 2).exp().view(12)


class Flat(nn.Module):
    def forward(self, x):
        return (x * 2 + 1).tanh().T.view(6)


def possible(x):
    h = (x * 2 + 1).tanh()
    return h.T.contiguous().view(-1), h.view(3, 2), h.T.view(3, 2, 1), h[1:].view(3), h.unsqueeze(1).view(6)


def also_possible(x):
    h = (x * 2 + 1).tanh()
    return (h.T * 2).T.view(6), h.T.reshape(6).view(2, 3), WIDE.T.view(12) + h.sum(), h.expand(1, 2, 3).view(6)


WRONG = [transposed, part, swapped, of_a_tensor_from_outside, computed_from_outside, Flat()]


def examples():
    return [numbers(2, 3, seed=i) for i in range(4)]


@pytest.mark.parametrize("helper", WRONG)
@pytest.mark.parametrize("batch", [True, None])
def test_a_view_that_would_be_a_copy_fails_in_each_map(helper, batch):
    def function(x):
        return helper(x) + 1

    def fused(x):
        return wf.fused(helper)(x) + 1

    for called in (function, fused, helper):
        with pytest.raises(wf.errors.OperationError, match="cannot become .* without a copy"):
            called(examples()[0])
        for _ in range(3):
            with pytest.raises(wf.errors.OperationError, match=r"cannot become .* without a copy.* of wf\.map"):
                wf.map(called, examples(), batch=batch)


@pytest.mark.parametrize("helper", [possible, also_possible])
def test_a_view_that_is_none_is_left_alone(helper):
    def function(x):
        return [y + 1 for y in helper(x)]

    expected = [function(x) for x in examples()]
    for called in (function, lambda x: [y + 1 for y in wf.fused(helper)(x)]):
        for _ in range(3):
            for found, wanted in zip(wf.map(called, examples(), batch=True), expected, strict=True):
                for a, b in zip(found, wanted, strict=True):
                    wf.testing.assert_close(a, b)


def test_a_helper_with_a_view_is_still_one_call():
    def several_views(x):
        h = (x * 2 + 1).tanh()
        return h.T.contiguous().view(-1) + h.view(6)

    def function(x):
        return several_views(x) + 1

    wf.map(function, examples(), batch=True)
    assert "several_views" in str(wf.batching.last())


def test_a_fused_function_looks_how_its_arguments_lie():
    @wf.fused
    def flat(x):
        return (x * 2).view(-1) + 1

    x = numbers(2, 3)
    wf.testing.assert_close(flat(x), (x * 2).flatten() + 1)
    for _ in range(2):
        with pytest.raises(wf.errors.OperationError, match="cannot become .* without a copy"):
            flat(x.T)
    assert flat.traces == 2  # two sets of sizes
    wf.testing.assert_close(flat(numbers(3, 2)), (numbers(3, 2) * 2).flatten() + 1)


def test_a_tensor_from_outside_is_viewed_as_in_the_loop():
    for _ in range(3):
        with pytest.raises(wf.errors.OperationError, match=r"cannot become .* without a copy.* of wf\.map"):
            wf.map(lambda x: WIDE.view(12) + x.sum(), examples(), batch=True)
    assert wf.map(lambda x: WIDE.T.view(12) + x.sum(), examples(), batch=True)[0].shape == (12,)
