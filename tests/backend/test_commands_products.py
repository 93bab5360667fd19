"""Matrix products in command lists: every layout and rank, added or not, by one thread or by several."""

from dataclasses import replace

import numpy as np
import pytest

import wayfare as wf
from tests.backend.test_commands import place_of, places, run
from wayfare.backend import native, products
from wayfare.backend.command import Place, whole
from wayfare.backend.commands import Commands
from wayfare.backend.counters import counted
from wayfare.backend.expr import apply, load
from wayfare.backend.loop import elementwise
from wayfare.backend.machine import machine
from wayfare.backend.products import openblas

pytestmark = pytest.mark.skipif(not native.available() or openblas() is None, reason="no OpenBLAS or no llvmlite here")
RNG = np.random.default_rng(1)
RELU = native.build(elementwise("relu_of_products", ["f32"], apply("maximum", load(0, "f32"), 0.0)))


@pytest.fixture(autouse=True)
def two_threads():
    before = wf.get_num_threads()
    wf.set_num_threads(2)
    yield
    wf.set_num_threads(before)


def some(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def close(got, want):
    exact = got.dtype == np.float64
    np.testing.assert_allclose(got, want, 1e-11 if exact else 2e-4, 1e-11 if exact else 2e-4)


def check(a, b, out, add=False):
    """One product in a list, against NumPy."""
    before = out.copy()
    commands = Commands()
    assert commands.product(*places(a, b, out), add=add)
    with counted() as counts:
        run(commands, a, b, out)
    close(out, np.matmul(a, b) + before if add else np.matmul(a, b))
    assert counts.products_run == 1
    return commands, counts


LAYOUTS = {
    "plain": lambda a: a,
    "turned": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "part": lambda a: np.concatenate([a, a], -1)[..., : a.shape[-1]],
    "turned part": lambda a: np.concatenate([a, a], -2).swapaxes(-1, -2).copy().swapaxes(-1, -2)[..., : a.shape[-2], :],
    "steps": lambda a: np.repeat(np.repeat(a, 2, -1), 3, -2)[..., ::3, ::2],
    "backwards": lambda a: a[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "one for all": lambda a: np.broadcast_to(a[..., :1, :1], a.shape),
}
TARGETS = ["plain", "turned", "part", "turned part", "steps"]


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_layout_of_matrices(left, right, dtype):
    for m, k, n in ((7, 9, 5), (1, 6, 4), (5, 1, 3), (4, 8, 1), (1, 1, 1), (1, 7, 1)):
        a, b = LAYOUTS[left](some(m, k, dtype=dtype)), LAYOUTS[right](some(k, n, dtype=dtype))
        for target in TARGETS:
            check(a, b, LAYOUTS[target](some(m, n, dtype=dtype)), add=target in ("part", "turned") or m == 7)


@pytest.mark.parametrize("left", ["plain", "turned", "steps"])
@pytest.mark.parametrize("right", ["plain", "turned part", "one for all"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [3, 48])
def test_stacks(left, right, target, size):
    for lead_a, lead_b, lead in (((3, 4), (3, 4), (3, 4)), ((4,), (3, 4), (3, 4)), ((3, 1), (4,), (3, 4)),
                                 ((), (5,), (5,)), ((6,), (), (6,)), ((2, 1, 3), (2, 2, 1), (2, 2, 3))):  # fmt: skip
        a = LAYOUTS[left](some(*lead_a, size, size + 2))
        b = LAYOUTS[right](some(*lead_b, size + 2, size + 1))
        check(a, b, LAYOUTS[target](some(*lead, size, size + 1)), add=size == 3)


@pytest.mark.parametrize("lanes", [8, 16])
def test_rows_times_rows(lanes, monkeypatch):
    processor = replace(machine().processor, lanes=lanes)
    monkeypatch.setattr(machine(), "processor", processor)
    turned = [lanes == 16, lanes == 16, lanes == 16, False, False, False, lanes == 16]
    for (a, b, out), wanted in zip((
        (some(32, 20), some(24, 20).T, some(32, 24)),
        (some(32, 20), some(24, 20).T, some(24, 32).T),
        (some(5, 16, 9), some(5, 17, 9).swapaxes(1, 2), some(5, 16, 17)),
        (some(32, 20, dtype=np.float64), some(24, 20, dtype=np.float64).T, some(32, 24, dtype=np.float64)),
        (some(32, 20), some(20, 24), some(32, 24)),
        (some(120, 120), some(120, 120).T, some(120, 120)),
        (some(5, 2, 16, 9)[:, :1], some(17, 9).T, some(5, 1, 16, 17)),
    ), turned, strict=True):  # fmt: skip
        commands, _ = check(a, b, out, add=True)
        assert ("turn" in commands.describe()) == wanted


def test_heads_of_attention():
    a = some(3, 20, 4, 16).swapaxes(1, 2)
    b = some(3, 20, 4, 16).transpose(0, 2, 3, 1)
    check(a, b, np.zeros((3, 4, 20, 20), np.float32))
    check(some(3, 4, 20, 20), a, np.zeros((3, 20, 4, 16), np.float32).swapaxes(1, 2))


def test_a_stack_that_meets_one_matrix_is_one_product():
    for a, b, out, wanted in (
        (some(4, 20, 8), some(8, 6), some(4, 20, 6), 1),
        (some(4, 1, 8), some(8, 6), some(4, 1, 6), 1),
        (some(2, 3, 5, 8), some(6, 8).T, some(2, 3, 5, 6), 1),
        (some(4, 8), some(2, 3, 5, 8).swapaxes(-1, -2), some(2, 3, 5, 4).swapaxes(-1, -2), 1),
        (some(2, 5, 3, 8).swapaxes(1, 2), some(8, 6), some(2, 3, 5, 6), 6),
        (some(5, 3, 8)[:, :2], some(8, 6), some(5, 2, 6), 5),
    ):
        commands, _ = check(a, b, out)
        assert sum(calls(c) for c in commands._answer(commands._requests[0], 2)) == wanted


def calls(command):
    """How many products BLAS is asked for."""
    return sum(block[10] * block[11] for block in command.blocks)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_vectors(step):
    v = some(2 * 7)[::step][:7]
    w = some(7)
    check(v, w, np.zeros((), np.float32))
    check(v, some(7, 5), np.zeros(5, np.float32))
    check(v, some(5, 7).T, np.zeros(10, np.float32)[::2])
    check(some(5, 7), v, np.zeros(10, np.float32)[::2], add=True)
    check(some(3, 5, 7), v, np.zeros((3, 5), np.float32))
    check(v, some(3, 7, 5), np.zeros((3, 5), np.float32), add=True)


def test_offsets_into_an_arena():
    arena = np.zeros(4096, np.uint8)
    a, b = some(6, 8), some(8, 10)
    commands = Commands()
    left, right = whole(0, 128, (6, 8), a.dtype), place_of(b, 1)
    hidden, made = whole(0, 512, (6, 10), a.dtype), whole(0, 1024, (6, 10), a.dtype)
    assert commands.copy(place_of(a, 2), left) and commands.product(left, right, hidden)
    assert commands.kernel(RELU, (6, 10), None, [hidden], [made])
    assert commands.product(left, right, made, add=True)
    run(commands, arena, b, a)
    close(arena[1024 : 1024 + 240].view(np.float32).reshape(6, 10), np.maximum(a @ b, 0) + a @ b)
    assert commands.describe().splitlines()[1:] == [
        "6×8×10 product float32", "relu_of_products [6, 10]", "6×8×10 added float32"
    ]  # fmt: skip


def test_a_stack_of_small_ones_is_shared_by_the_crew():
    a, b = some(24, 48, 40), some(24, 40, 48)
    out = np.zeros((24, 48, 48), np.float32)
    commands, counts = check(a, b, out)
    assert counts.kernels_split == 1
    wf.set_num_threads(1)
    out[...] = 0
    with counted() as counts:
        commands.run([a, b, out])
    assert counts.kernels_split == 0
    close(out, a @ b)


def test_blas_is_left_as_it_was_found():
    blas = openblas()
    number = blas._get()
    commands, seen = Commands(), []
    sizes = [8, 80, 160]  # by one thread anyway, kept to one, large
    arrays = [some(n, n) for n in sizes]
    outs = [np.zeros((n, n), np.float32) for n in sizes]
    every = places(*arrays, *outs)
    for k in range(3):
        assert commands.product(every[k], every[k], every[3 + k])
    real = blas.keep_to_one
    try:
        blas.keep_to_one = lambda: (seen.append(1), real())
        with counted() as counts:
            run(commands, *arrays, *outs)
    finally:
        del blas.keep_to_one
    assert blas._get() == number and seen == [1] and counts.products_run == 3
    for a, out in zip(arrays, outs, strict=True):
        close(out, a @ a)
    # Small ones alone need no word with BLAS.
    commands = Commands()
    assert commands.product(every[0], every[0], every[3])
    try:
        blas.keep_to_one = lambda: seen.append(2)
        run(commands, *arrays, *outs)
    finally:
        del blas.keep_to_one
    assert seen == [1]


def test_nothing_to_add_up():
    a, b, out = some(3, 0), some(0, 4), some(3, 4)
    before = out.copy()
    commands = Commands()
    assert commands.product(*places(a, b, out), add=True)
    run(commands, a, b, out)
    np.testing.assert_array_equal(out, before)
    commands = Commands()
    assert commands.product(*places(a, b, out))
    run(commands, a, b, out)
    assert not out.any()
    none = some(0, 4)
    commands = Commands()
    assert commands.product(*places(some(0, 3), some(3, 4), none))
    run(commands, some(0, 3), some(3, 4), none)


def test_what_blas_cannot_do_is_refused(monkeypatch):
    commands = Commands()
    a, b, out = places(some(3, 4), some(4, 5), some(3, 5))
    half = [Place(p.object, 0, p.shape, tuple(s // 2 for s in p.strides), np.dtype("float16")) for p in (a, b, out)]
    assert not commands.product(*half)
    assert not commands.product(a, a, out)
    assert not commands.product(a, b, out.seen((2, 3, 5), (0, 20, 4)))
    assert not commands.product(a.seen((2, 3, 4), (48, 16, 4)), b, out.seen((3, 3, 5), (60, 20, 4)))
    assert not commands.product(a, b, out.seen((5, 3), (12, 4)))
    assert not commands.product(a, b, Place(2, 0, (3, 5), (40, 8), np.dtype("float64")))
    monkeypatch.setattr(products, "openblas", lambda: None)
    assert not commands.product(a, b, out)
    assert commands.describe() == ""


@pytest.mark.parametrize("m, k, n", [(2, 64, 512), (3, 200, 300), (30, 64, 512), (64, 256, 130), (128, 257, 129)])
@pytest.mark.parametrize("target", TARGETS)
def test_few_rows_times_a_long_side_that_lies_turned(m, k, n, target):
    """As a layer meets its weight: where that is faster, the result is computed turned."""
    a, b = some(m, k), LAYOUTS["turned"](some(k, n))
    commands, _ = check(a, b, LAYOUTS[target](some(m, n)))
    if target == "plain" and machine().processor.lanes == 16:
        assert commands.titles[-1] in (f"turn [{m}, {n}]", f"copy [{m}, {n}]")
    check(a, b, LAYOUTS[target](some(m, n)), add=True)
