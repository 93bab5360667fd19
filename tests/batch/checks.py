"""What the tests of `wf.map` share: numbers, everything a map leaves behind, and how it is compared with a loop."""

import numpy as np

import wayfare as wf


def numbers(*shape, seed=0, grad=False, dtype="float64"):
    """A leaf with numbers that the seed decides."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return wf.from_numpy(np.asarray(values, dtype)).requires_grad_(grad)


def vectors(count=4, width=3, grad=True, start=0):
    """Vectors for some examples."""
    return [numbers(width, seed=start + i, grad=grad) for i in range(count)]


def weight(*shape, seed=90):
    """A leaf that all examples share."""
    return numbers(*shape, seed=seed, grad=True)


def tensors_in(value):
    """All tensors of a structure, in order."""
    if isinstance(value, wf.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [t for part in parts for t in tensors_in(part)]


def weighted(tensors):
    """One number that hangs on every element in its own way; None where nothing has a gradient."""
    live = [(i, t) for i, t in enumerate(tensors) if t.requires_grad and t.is_floating_point()]
    parts = [(t.double() * numbers(*t.shape, seed=50 + i)).sum() for i, t in live]
    return sum(parts[1:], parts[0]) if parts else None


def equal(got, want, tolerance=1e-7, what="result"):
    """Structures of tensors and other things, alike in kind and value."""
    assert type(got) is type(want), f"{what}: {type(got)} instead of {type(want)}"
    if isinstance(want, wf.Tensor):
        mine, theirs = ((t.dtype, tuple(t.shape), t.requires_grad, t.is_leaf) for t in (got, want))
        assert mine == theirs, f"{what}: {mine} instead of {theirs}"
        values(got, want, tolerance, what)
    elif isinstance(want, dict):
        assert list(got) == list(want), what
        for key in want:
            equal(got[key], want[key], tolerance, f"{what}[{key!r}]")
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want), f"{what}: {len(got)} parts instead of {len(want)}"
        for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            equal(mine, theirs, tolerance, f"{what}[{i}]")
    elif isinstance(want, float):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        assert got == want, f"{what}: {got!r} instead of {want!r}"


def values(got, want, tolerance, what):
    """The numbers of two tensors; half-way numbers of single precision are compared as such."""
    if want.dtype in (wf.float32, wf.float16):
        tolerance = max(tolerance, 1e-4)
    mine, theirs = got.detach().numpy(force=True), want.detach().numpy(force=True)
    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=what)


def compare(make, *, tolerance=1e-7, seed=5, second=False, **options):
    """Run the same work batched and as a loop: results, gradients of all leaves and the generator must agree.

    `make()` gives a function, a list of its iterables, and the leaves to be differentiated, all of them fresh.
    The statistics of the batched run come back.
    """
    found, stats = [], None
    for batch in (False, True):
        function, iterables, leaves = make()
        wf.manual_seed(seed)
        results = wf.map(function, *iterables, batch=batch, **options)
        if batch:
            stats = wf.batching.last()
        drawn = wf.get_rng_state().tolist()
        before = [t.detach().clone() for t in tensors_in(results)]
        slopes = differentiate(results, leaves, second)
        found.append((results, before, slopes, drawn))
    (want, *want_rest), (got, *got_rest) = found
    equal(got, want, tolerance)
    for what, mine, theirs in zip(("value before backward", "gradient", "generator"), got_rest, want_rest, strict=True):
        equal(mine, theirs, tolerance, what)
    return stats


def differentiate(results, leaves, second=False):
    """The gradients of all leaves; with `second`, those of their gradients too."""
    total = weighted(tensors_in(results))
    if total is None:
        return [None for _ in leaves]
    if not second:
        total.backward()
        return [None if t.grad is None else t.grad.detach() for t in leaves]
    leaves = [t for t in leaves if t.requires_grad]
    firsts = wf.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
    again = weighted(firsts)
    if again is not None:
        again.backward()
    return [*(g.detach() for g in firsts), *(None if t.grad is None else t.grad.detach() for t in leaves)]


def agree(function, *iterables, leaves=(), **options):
    """`compare` for a function that needs nothing fresh: gradients of the leaves are cleared in between."""

    def make():
        for leaf in leaves:
            leaf.grad = None
        return function, iterables, list(leaves)

    return compare(make, **options)


def said(error):
    """All that an error tells its reader: its message and its notes, and those of what caused it."""
    told = [str(error), *getattr(error, "__notes__", ())]
    return "\n".join(told) + ("\n" + said(error.__cause__) if error.__cause__ else "")


def still_works():
    """The next map does what it should, and nothing is left in force."""
    w = weight(3, 3)
    agree(lambda x: (x @ w).tanh() if x.sum() > 0 else x @ w, xs := vectors(5), leaves=[w, *xs])
    assert wf.is_grad_enabled()
    assert type(wf.ones(2) + 1) is wf.Tensor and (wf.ones(2) + 1).tolist() == [2, 2]
