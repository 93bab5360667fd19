"""Ops give inf and NaN without a word, whatever the user's `np.seterr` and warning filters say."""

import contextlib
import threading
import warnings

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY

EDGES = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45, 300, -300, 0.5, 2, -2, 3e4], "f4")


@contextlib.contextmanager
def _filters(action):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action, RuntimeWarning)
        yield
    assert not [str(w.message) for w in seen if issubclass(w.category, RuntimeWarning)]


STATES = {
    "warnings are errors": lambda: _filters("error"),
    "seterr raises": lambda: np.errstate(all="raise"),
}
in_every_state = pytest.mark.parametrize("state", STATES)


def _same(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _by_op():
    """(a name, a call) for every record, with numbers at the edges in place of its samples' own."""
    for name, op in REGISTRY.items():
        if op.random:
            continue
        for sample in list(op.samples(np.random.default_rng(0)))[:3]:
            arrays = [np.asarray(a) for a in sample.inputs]
            arrays = [np.resize(EDGES, a.shape) if a.dtype.kind == "f" else a for a in arrays]

            def call(op=op, arrays=arrays, attrs=sample.attrs):
                inputs = tuple(wf.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays)
                out = apply(op, inputs, dict(attrs))
                for o in out if isinstance(out, tuple) else (out,):
                    if o.requires_grad:
                        o.backward(wf.full(o.shape, np.inf, dtype=o.dtype))
                        break

            yield name, call


@in_every_state
def test_every_op_and_its_gradient(state):
    refused, count = [], 0
    for name, call in _by_op():
        with STATES[state]():
            try:
                call()
            except (FloatingPointError, Warning) as error:
                refused.append(f"{name}: {error!r}")
            except Exception as error:  # a value that the op refuses in any state
                if "encountered" in str(error):
                    refused.append(f"{name}: {error!r}")
        count += 1
    assert not refused and count > 500


@in_every_state
@pytest.mark.parametrize("size", [16, 60_000])
def test_writing_in_place_writes_all(state, size):
    values = np.resize(EDGES, size)

    def changed():
        made = [wf.tensor(values) for _ in range(9)]
        x = wf.tensor(values)
        made[0].log_()
        made[1].sqrt_()
        made[2].mul_(1e38)
        made[3].div_(x)
        made[4].add_(x, alpha=1e38)
        made[5].addcmul_(x, x, value=1e30)
        made[6].lerp_(x * 3, 0.2)
        made[7][::2].exp_()
        made[8].view(4, -1).T.div_(wf.zeros(4))
        return made

    wanted = changed()
    with STATES[state]():
        found = changed()
    for ours, quiet in zip(found, wanted, strict=True):
        _same(ours, quiet)


@in_every_state
def test_numbers_that_do_not_fit(state):
    def made():
        x = wf.zeros(2)
        return [
            wf.tensor([1e300], dtype=wf.float16), wf.tensor(1e300), wf.tensor(np.array([1e300])).float(), x + 1e300,
            wf.tensor([1e300]).half(),
            wf.linspace(0, 1e38, 5), x.float_power_(1e300),
        ]  # fmt: skip

    wanted = made()
    with STATES[state]():
        for a, b in zip(made(), wanted, strict=True):
            _same(a, b)


@in_every_state
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_mapped_batched_and_in_threads(state):
    rows = EDGES.reshape(4, 4)

    def ways():
        compiled = wf.compile(lambda a: ((a.log() + 1 / a).cumsum(0).sort()[0] / a.detach()).sum())
        gradients = []
        for _ in range(4):
            a = wf.tensor(EDGES, requires_grad=True)
            compiled(a).backward()
            gradients.append(a.grad)
        assert compiled.explain() is not None
        p = wf.zeros(4, requires_grad=True)
        mapped = wf.map(lambda r: ((r + p).log() / r).sum() * (1 / r[0]), list(wf.tensor(rows)))
        sum(mapped).backward()
        batched = wf.vmap(lambda r: r.log() / 0)(wf.tensor(rows))
        return [*gradients, p.grad, batched, F.softmax(wf.tensor(EDGES), 0), wf.func.hessian(lambda x: x.log().sum())(
            wf.tensor(EDGES)
        )]

    wanted = ways()
    found = []

    def in_thread():
        with STATES[state]():
            found.extend(ways())

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    with STATES[state]():
        found.extend(ways())
    assert len(found) == 2 * len(wanted)
    for ours, quiet in zip(found, wanted * 2, strict=True):
        _same(ours.detach(), quiet.detach())


@in_every_state
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimisers(state, name):
    def stepped():
        w = wf.tensor(EDGES, requires_grad=True)
        optimiser = getattr(wf.optim, name)([w], lr=1e30)
        for _ in range(2):
            (w * w * w).sum().backward()
            optimiser.step()
        return w.detach()

    wanted = stepped()
    with STATES[state]():
        _same(stepped(), wanted)


def test_the_users_own_warnings_and_errors_stay():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wf.zeros(2).log()
        with pytest.raises(RuntimeWarning):
            np.log(np.zeros(2))
    with np.errstate(all="raise"):
        wf.zeros(2).log()
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(2))
        wf.zeros(2, requires_grad=True).log().sum().backward()
        assert np.geterr()["divide"] == "raise"


def test_a_real_error_is_still_told():
    with np.errstate(all="raise"), pytest.raises(RuntimeError, match="matmul"):
        wf.zeros(2, 3) @ wf.zeros(4, 2)
