"""What the tests of compiled functions share: numbers, and calls compared with plain Python."""

import numpy as np

import wayfare as wf

CALLS = 4


def numbers(*shape, seed=0, grad=False):
    return wf.from_numpy(np.random.default_rng(seed).standard_normal(shape)).requires_grad_(grad)


def equal(got, want):
    """Structures of tensors and other things, alike in kind and value."""
    assert type(got) is type(want)
    if isinstance(want, wf.Tensor):
        assert (got.dtype, tuple(got.shape), got.requires_grad) == (want.dtype, tuple(want.shape), want.requires_grad)
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-10, atol=1e-12)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            equal(got[key], want[key])
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            equal(mine, theirs)
    elif isinstance(want, float):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    else:
        assert got == want


def check(function, *makers, calls=CALLS, **keywords):
    """Several calls with fresh arguments: results, and gradients from outside."""
    compiled = wf.compile(function)
    for call in range(calls):
        found = []
        for way in (compiled, function):
            args = [make(call) for make in makers]
            wf.manual_seed(call)
            result = way(*args, **keywords)
            live = [t for t in leaves_of(result) if t.requires_grad]
            if live:
                sum((t * t).sum() for t in live).backward()
            tensors = leaves_of(args)
            found.append([result, [t.grad if t.is_leaf else None for t in tensors], [t.detach() for t in tensors]])
        equal(*found)
    return compiled


def leaves_of(value):
    if isinstance(value, wf.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in leaves_of(part)] if isinstance(value, (tuple, list)) else []


def x_of(call):
    return numbers(3, 4, seed=call, grad=True)


class Spoilt:
    """A plan that gives one result, or writes one input, a little wrong."""

    def __init__(self, plan, spoil):
        self._plan, self._spoil = plan, spoil

    def __getattr__(self, name):
        return getattr(self._plan, name)

    def run(self, arrays, given=()):
        made = self._plan.run(arrays, given)
        self._spoil(arrays, made)
        return made


def spoil(compiled, how):
    """Each plan of a compiled function calls how(arrays, made) after it has run."""
    for entries in compiled._cache.entries.values():
        for entry in entries:
            for block in entry.tree.root.walk():
                block.plan = Spoilt(block.plan, how)
