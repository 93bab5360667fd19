"""Optimisers' updates against plain formulas in float64, and against the referee over many steps."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.backend import batch, native
from wayfare.backend.counters import counted
from wayfare.backend.expr import LoopError
from wayfare.backend.update import Update, adam_update, adamw_update, sgd_update
from wayfare.settings import settings as wayfare_settings

BETAS, EPS = (0.9, 0.999), 1e-8


def plain_adam(p, g, m, v, top, *, step, lr, weight_decay=0.0, decoupled=False, maximize=False):
    g = -g if maximize else g
    if decoupled:
        p = p * (1 - lr * weight_decay)
    elif weight_decay:
        g = g + weight_decay * p
    m = BETAS[0] * m + (1 - BETAS[0]) * g
    v = BETAS[1] * v + (1 - BETAS[1]) * g * g
    top = None if top is None else np.maximum(top, v)
    corrected = (v if top is None else top) / (1 - BETAS[1] ** step)
    return p - lr * (m / (1 - BETAS[0] ** step)) / (np.sqrt(corrected) + EPS), m, v, top


def plain_sgd(
    p, g, v, *, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, maximize=False, first=False
):
    g = (-g if maximize else g) + weight_decay * p
    if not momentum:
        return p - lr * g, v
    v = g if first else momentum * v + (1 - dampening) * g
    return p - lr * (g + momentum * v if nesterov else v), v


def arrays_like(rng, shapes, dtype=np.float64, scale=1.0):
    return [np.asarray(rng.normal(size=shape) * scale, dtype) for shape in shapes]


def zeros_like(arrays):
    return [np.zeros_like(a) for a in arrays]


shapes_lists = st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=0, max_size=5)


@settings(max_examples=30, deadline=None)
@given(shapes_lists, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_adam_is_its_formula(shapes, amsgrad, decay, maximize, seed):
    rng = np.random.default_rng(seed)
    params, averages, squares = arrays_like(rng, shapes), *(zeros_like(arrays_like(rng, shapes)) for _ in range(2))
    largest = zeros_like(params) if amsgrad else None
    tops = largest or [None] * len(params)
    wanted = [(p, m, v, t) for p, m, v, t in zip(params, averages, squares, tops, strict=True)]
    wanted = [tuple(None if a is None else a.copy() for a in row) for row in wanted]
    how = {"lr": 0.1, "weight_decay": 0.3 if decay else 0.0, "maximize": maximize}
    for step in range(1, 4):
        grads = arrays_like(rng, shapes)
        adam_update(params, grads, averages, squares, largest, step=step, **how)
        wanted = [plain_adam(p, g, m, v, t, step=step, **how) for (p, m, v, t), g in zip(wanted, grads, strict=True)]
    for i, (p, m, v, t) in enumerate(wanted):
        np.testing.assert_allclose(params[i], p, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(averages[i], m, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(squares[i], v, rtol=1e-12, atol=1e-13)
        if amsgrad:
            np.testing.assert_allclose(largest[i], t, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("maximize", [False, True])
def test_adamw_shrinks_the_parameter_itself(maximize):
    rng = np.random.default_rng(1)
    params, grads = arrays_like(rng, [(3, 4), (5,)]), arrays_like(rng, [(3, 4), (5,)])
    before = [p.copy() for p in params]
    averages, squares = zeros_like(params), zeros_like(params)
    how = {"step": 1, "lr": 0.1, "weight_decay": 0.5, "maximize": maximize}
    adamw_update(params, grads, averages, squares, **how)
    for p, old, g in zip(params, before, grads, strict=True):
        wanted = plain_adam(old, g, np.zeros_like(g), np.zeros_like(g), None, decoupled=True, **how)[0]
        np.testing.assert_allclose(p, wanted, rtol=1e-13)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"weight_decay": 0.2},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1, "maximize": True},
        {"maximize": True},
    ],
)
def test_sgd_is_its_formula(how):
    rng = np.random.default_rng(2)
    shapes = [(7, 3), (), (40,), (0, 2)]
    params = arrays_like(rng, shapes)
    velocities = zeros_like(params)
    wanted = [(p.copy(), v.copy()) for p, v in zip(params, velocities, strict=True)]
    for step in range(4):
        grads = arrays_like(rng, shapes)
        sgd_update(params, grads, velocities, lr=0.05, first=step == 0, **how)
        wanted = [plain_sgd(p, g, v, lr=0.05, first=step == 0, **how) for (p, v), g in zip(wanted, grads, strict=True)]
    for p, (w, _) in zip(params, wanted, strict=True):
        np.testing.assert_allclose(p, w, rtol=1e-12)


def layouts_of(rng, dtype=np.float64):
    """Arrays of every kind of layout: transposed, sliced, reversed, with many axes in odd order."""

    def full(*shape):
        return np.asarray(rng.normal(size=shape), dtype)

    return [
        full(4, 6).T, full(8, 6)[::2, 1:5], full(9)[::-1], full(3, 4, 5).transpose(2, 0, 1)[:, ::2],
        full(3, 2, 4, 2, 3)[:, :, ::2, :, ::2].transpose(4, 1, 3, 0, 2), full(1), full(), full(2, 1, 3),
    ]  # fmt: skip


def test_arrays_of_any_layout():
    rng = np.random.default_rng(3)
    params, grads, averages, squares = (layouts_of(rng) for _ in range(4))
    squares = [np.asarray(np.abs(v)) for v in squares]  # also: other layouts than the parameters
    before = [tuple(a.copy() for a in row) for row in zip(params, grads, averages, squares, strict=True)]
    adam_update(params, grads, averages, squares, step=5, lr=0.1)
    for p, m, v, old in zip(params, averages, squares, before, strict=True):
        new = plain_adam(*old, None, step=5, lr=0.1)
        for got, wanted in zip((p, m, v), new, strict=False):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_large_arrays_are_cut_and_shared(monkeypatch):
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)
    rng = np.random.default_rng(4)
    shapes = [(300, 301), (7,), (100_003,), (5, 1)]
    params, grads = arrays_like(rng, shapes, np.float32), arrays_like(rng, shapes, np.float32)
    averages, squares = zeros_like(params), zeros_like(params)
    before = [p.astype(np.float64) for p in params]
    with counted() as counts:
        adam_update(params, grads, averages, squares, step=1, lr=0.5)
    if native.available():
        assert counts.kernels_run == 1
    for p, old, g in zip(params, before, grads, strict=True):
        none = np.zeros(g.shape)
        wanted = plain_adam(old, g.astype(np.float64), none, none, None, step=1, lr=0.5)[0]
        np.testing.assert_allclose(p, wanted, rtol=1e-5, atol=1e-6)


def test_one_thread_gives_the_same_bits(monkeypatch):
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(wayfare_settings, "num_threads", threads)
        rng = np.random.default_rng(5)
        params, grads = (arrays_like(rng, [(90_001,)], np.float32) for _ in range(2))
        states = [zeros_like(params) for _ in range(2)]
        adam_update(params, grads, *states, step=1)
        results.append(params[0].tobytes())
    assert results[0] == results[1]


def test_gradients_may_be_other_arrays_at_every_step():
    # The plan of a model is kept; the addresses in it must not be.
    params = [np.zeros(100, np.float32)]
    for value in (1.0, 2.0, 4.0):
        sgd_update(params, [np.full(100, value, np.float32)], lr=1.0)
    np.testing.assert_array_equal(params[0], np.full(100, -7.0, np.float32))


def test_dtypes_side_by_side():
    dtypes = (np.float16, np.float32, np.float64)
    params = [np.ones(50, d) for d in dtypes]
    grads = [np.full(50, 0.5, d) for d in dtypes]
    sgd_update(params, grads, lr=0.5)
    for p, d in zip(params, dtypes, strict=True):
        assert p.dtype == d
        np.testing.assert_array_equal(p, np.full(50, 0.75, d))


def test_an_absent_term_leaves_infinities_alone():
    params, grads = [np.array([np.inf, 1.0])], [np.array([1.0, np.inf])]
    sgd_update(params, grads, zeros_like(params), lr=1.0, momentum=0.5, first=True)
    np.testing.assert_array_equal(params[0], [np.inf, -np.inf])


def test_read_only_sources_are_fine_and_read_only_targets_refused():
    params, grads = [np.ones(5)], [np.ones(5)]
    grads[0].flags.writeable = False
    sgd_update(params, grads, lr=1.0)
    np.testing.assert_array_equal(params[0], np.zeros(5))
    params[0].flags.writeable = False
    with pytest.raises(LoopError, match="read-only"):
        sgd_update(params, grads, lr=1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sgd_update([np.ones(3)], [np.ones(4)], lr=1.0), "shapes"),
        (lambda: sgd_update([np.ones(3)], [], lr=1.0), "lists"),
        (lambda: sgd_update([np.ones(3, np.int64)], [np.ones(3)], lr=1.0), "int64"),
        (lambda: sgd_update([[1.0]], [np.ones(1)], lr=1.0), "NumPy arrays"),
        (lambda: sgd_update([np.ones(3)], [np.ones(3)], lr=1.0, momentum=0.9), "velocities"),
        (lambda: sgd_update([np.ones(1)], [np.ones(1)], [np.ones(1)], lr=1.0, momentum=0.9, dampening=0.1,
                            nesterov=True), "dampening"),
        (lambda: adam_update([np.ones(1)], [np.ones(1)], [np.ones(1)], [np.ones(1)], step=0), "counts from 1"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(LoopError, match=words):
        call()


def test_without_native_code_the_result_is_the_same(monkeypatch):
    update = Update("test_without_native", lambda m, p, g, lr: (p - g * lr,), (0,))
    monkeypatch.setattr(batch._FILL_AND_RUN, "_address", 0)
    monkeypatch.setattr(batch._FILL_AND_RUN, "_broken", True)
    params, grads = [np.ones((3, 4)), np.ones(5)], [np.full((3, 4), 2.0), np.full(5, 3.0)]
    update((params, grads), (0.5,))
    np.testing.assert_array_equal(params[0], np.zeros((3, 4)))
    np.testing.assert_array_equal(params[1], np.full(5, -0.5))


def test_threads_do_not_mix_their_numbers():
    rounds, width = 50, 3000
    results = {}

    def train(rate):
        params = [np.zeros(width, np.float32) for _ in range(4)]
        grads = [np.ones(width, np.float32) for _ in range(4)]
        for _ in range(rounds):
            sgd_update(params, grads, lr=rate)
        results[rate] = params

    workers = [threading.Thread(target=train, args=(rate,)) for rate in (0.5, 1.0, 2.0)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for rate, params in results.items():
        for p in params:
            np.testing.assert_array_equal(p, np.full(width, -rate * rounds, np.float32))


# -- the referee -------------------------------------------------------------------------------------------------------

RUNS = [
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True, "betas": (0.8, 0.95)}),
    ("Adam", {"maximize": True, "eps": 1e-4}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.3, "amsgrad": True}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
]


@pytest.mark.parametrize(("name", "how"), RUNS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_twenty_steps_as_the_referee_makes_them(name, how, dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    shapes = [(20, 30), (30,), ()]
    params = arrays_like(rng, shapes, dtype)
    theirs = [torch.tensor(p.copy()).requires_grad_() for p in params]
    optimiser = getattr(torch.optim, name)(theirs, lr=0.01, foreach=False, **how)
    first, second, top = (zeros_like(params) for _ in range(3))
    rest = {k: v for k, v in how.items() if k != "amsgrad"}
    for step in range(1, 21):
        grads = arrays_like(rng, shapes, dtype)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g)
        optimiser.step()
        if name == "SGD":
            sgd_update(params, grads, first, lr=0.01, first=step == 1, **rest)
        else:
            update = adam_update if name == "Adam" else adamw_update
            update(params, grads, first, second, top if how.get("amsgrad") else None, step=step, lr=0.01, **rest)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}
    for mine, other in zip(params, theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), **tolerance)
