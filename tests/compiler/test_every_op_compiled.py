"""Every op record under `wf.compile`: values, first and second gradients, from outside and inside."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.testing.every_op import samples_of
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY, joint

ALL = sorted(REGISTRY)
DIFFERENTIABLE = [name for name in ALL if REGISTRY[name].vjp is not None and not REGISTRY[name].random]
CALLS = 3
# All of it is replayed from a plan.
pytestmark = pytest.mark.filterwarnings("error:compile. ")


def some_samples(op, smooth=False):
    """The first and the last of an op's samples: they differ in attributes and shapes, and each is compiled anew."""
    found = [s for s in samples_of(op) if not smooth or (s.smooth and positions(op, s))]
    return found if len(found) <= 2 else [found[0], found[-1]]


def positions(op, sample):
    """The inputs that have a gradient."""
    floats = [i for i, x in enumerate(sample.inputs) if x.dtype == np.float64 and x.size]
    if isinstance(op.vjp, joint):
        return floats
    return [i for i in floats if op.vjp[i] is not None and not getattr(op.vjp[i], "refuses", False)]


def listed(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def tensors_of(arrays, wanting=()):
    return [wf.from_numpy(np.array(x)).requires_grad_(i in wanting) for i, x in enumerate(arrays)]


def agree(got, want, tolerance, what):
    """Tensors, or None, alike."""
    assert len(got) == len(want), what
    for mine, theirs in zip(got, want, strict=True):
        if theirs is None:
            assert mine is None, what
            continue
        assert (mine.dtype, tuple(mine.shape), mine.requires_grad) == (
            theirs.dtype, tuple(theirs.shape), theirs.requires_grad), what  # fmt: skip
        mine, theirs = mine.detach().numpy(), theirs.detach().numpy()
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=what)


def varied(x, call):
    """Other numbers of the same kind for each call, and the first ones again."""
    whole = x.dtype.kind != "f" or not x.size or np.all(x == np.round(x))
    return x if whole or call != 1 else x * (1 + 1e-3)


@pytest.mark.parametrize("name", ALL)
def test_values_in_single_precision(name):
    op = REGISTRY[name]
    for sample in some_samples(op):
        function = lambda *tensors, attrs=sample.attrs: apply(op, tensors, attrs)
        compiled = wf.compile(function)
        for call in range(CALLS):
            arrays = [varied(x.astype("float32") if x.dtype == np.float64 else x, call) for x in sample.inputs]
            want = listed(function(*tensors_of(arrays)))
            agree(listed(compiled(*tensors_of(arrays))), want, 1e-5, f"{name} {sample.attrs} call {call}")


def weighted(outputs):
    """A number that hangs on each element of the outputs that have a gradient."""
    rng = np.random.default_rng(1)
    live = [o for o in outputs if o.requires_grad]
    return sum((o * wf.from_numpy(np.asarray(rng.normal(size=tuple(o.shape))))).sum() for o in live)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients_from_outside(name):
    op = REGISTRY[name]
    for sample in some_samples(op, smooth=True):
        wanting = positions(op, sample)
        function = lambda *tensors, attrs=sample.attrs: apply(op, tensors, attrs)
        compiled = wf.compile(function)
        for call in range(CALLS):
            arrays = [varied(x, call) for x in sample.inputs]
            found = []
            for way in (compiled, function):
                tensors = tensors_of(arrays, wanting)
                outputs = listed(way(*tensors))
                total = weighted(outputs)
                inputs = [tensors[i] for i in wanting]
                if not isinstance(total, wf.Tensor):
                    found.append(outputs)
                    continue
                firsts = wf.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
                again = weighted([g for g in firsts if g is not None])
                if isinstance(again, wf.Tensor) and again.requires_grad:
                    again.backward()
                found.append([*outputs, *firsts, *(t.grad for t in inputs)])
            agree(*found, 1e-7, f"{name} {sample.attrs} call {call}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_inside(name):
    op = REGISTRY[name]
    for sample in some_samples(op, smooth=True):
        wanting = positions(op, sample)
        outs = listed(apply(op, tuple(tensors_of(sample.inputs, wanting)), sample.attrs))
        rng = np.random.default_rng(2)
        seeds = [wf.from_numpy(np.asarray(rng.normal(size=tuple(o.shape)))) for o in outs if o.requires_grad]
        if not seeds:
            continue

        def both(*tensors, attrs=sample.attrs, seeds=seeds, wanting=wanting):
            inputs = [tensors[i] for i in wanting]
            live = [o for o in listed(apply(op, tensors, attrs)) if o.requires_grad]
            firsts = wf.autograd.grad(live, inputs, seeds, create_graph=True, materialize_grads=True)
            total = sum((g * g).sum() for g in firsts)
            if total.requires_grad:
                total.backward()
            return [g.detach() for g in firsts]

        compiled = wf.compile(both)
        for call in range(CALLS):
            arrays = [varied(x, call) for x in sample.inputs]
            mine, theirs = tensors_of(arrays, wanting), tensors_of(arrays, wanting)
            want, got = both(*theirs), compiled(*mine)
            agree(got, want, 1e-7, f"{name} {sample.attrs} call {call}, first")
            seconds = [[tensors[i].grad for i in wanting] for tensors in (mine, theirs)]
            agree(*seconds, 1e-6, f"{name} {sample.attrs} call {call}, second")


def test_what_an_op_has_learnt_is_no_matter(monkeypatch):
    """A record keeps kernels of its own; however many they are, a function that names it can be compiled."""
    op = REGISTRY["cross_entropy"]
    sample = next(iter(samples_of(op)))
    kept = {**op.large.__self__._structures, **{f"kernel {i}": [i] for i in range(3000)}}
    monkeypatch.setattr(op.large.__self__, "_structures", kept)
    step = wf.compile(lambda *tensors: apply(op, tensors, sample.attrs))
    for _ in range(4):
        step(*tensors_of(sample.inputs))
        kept[f"kernel {len(kept)}"] = []
    assert step.explain().data["recorded"] == 1
