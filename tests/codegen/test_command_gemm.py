"""Matmuls in command lists: every layout and rank, added or not, by one thread or by several."""


from dataclasses import replace

import numpy as np
import pytest

import wayfare as wf
from tests.codegen.test_commands import run, view_of, views
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.loop.expr import apply, load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.routines import direct_gemm, skinny_gemm
from wayfare.codegen.runtime import command_gemm, kernel
from wayfare.codegen.runtime.blas import openblas
from wayfare.codegen.runtime.command import BufferView, Unsuited, contiguous
from wayfare.codegen.runtime.commands import Commands
from wayfare.core.counters import counted

pytestmark = pytest.mark.skipif(not kernel.available() or openblas() is None, reason="no OpenBLAS or no llvmlite here")
RNG = np.random.default_rng(1)
RELU = kernel.build(elementwise("relu_of_matmuls", ["f32"], apply("maximum", load(0, "f32"), 0.0)))


@pytest.fixture(autouse=True)
def two_threads():
    before = wf.get_num_threads()
    wf.set_num_threads(2)
    yield
    wf.set_num_threads(before)


@pytest.fixture
def by_blas(monkeypatch):
    """As on a processor without registers for direct gemms."""

    def refuse(*_given):
        raise Unsuited

    monkeypatch.setattr(command_gemm, "direct_gemm_command", refuse)


@pytest.fixture(params=["direct", "BLAS"])
def both_ways(request, monkeypatch):
    if request.param == "BLAS":
        request.getfixturevalue("by_blas")
    else:
        monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 0)


def some(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def close(got, want):
    exact = got.dtype == np.float64
    np.testing.assert_allclose(got, want, 1e-11 if exact else 2e-4, 1e-11 if exact else 2e-4)


def check(a, b, out, add=False):
    """One matmul in a list, against NumPy."""
    before = out.copy()
    commands = Commands()
    assert commands.matmul(*views(a, b, out), add=add)
    with counted() as counts:
        run(commands, a, b, out)
    close(out, np.matmul(a, b) + before if add else np.matmul(a, b))
    assert counts.matmuls_run == 1
    return commands, counts


LAYOUTS = {
    "plain": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "part": lambda a: np.concatenate([a, a], -1)[..., : a.shape[-1]],
    "transposed part": lambda a: (
        np.concatenate([a, a], -2).swapaxes(-1, -2).copy().swapaxes(-1, -2)[..., : a.shape[-2], :]),
    "steps": lambda a: np.repeat(np.repeat(a, 2, -1), 3, -2)[..., ::3, ::2],
    "backwards": lambda a: a[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "one for all": lambda a: np.broadcast_to(a[..., :1, :1], a.shape),
}
TARGETS = ["plain", "transposed", "part", "transposed part", "steps"]


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_layout_of_matrices(left, right, dtype, both_ways):
    for m, k, n in ((7, 9, 5), (7, 9, 11), (9, 3, 50), (1, 6, 4), (5, 1, 3), (4, 8, 1), (1, 1, 1), (1, 7, 1)):
        a, b = LAYOUTS[left](some(m, k, dtype=dtype)), LAYOUTS[right](some(k, n, dtype=dtype))
        for target in TARGETS:
            check(a, b, LAYOUTS[target](some(m, n, dtype=dtype)), add=target in ("part", "transposed") or m == 7)


@pytest.mark.parametrize("left", ["plain", "transposed", "steps"])
@pytest.mark.parametrize("right", ["plain", "transposed part", "one for all"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [3, 48])
def test_stacks(left, right, target, size, both_ways):
    for lead_a, lead_b, lead in (((3, 4), (3, 4), (3, 4)), ((4,), (3, 4), (3, 4)), ((3, 1), (4,), (3, 4)),
                                 ((), (5,), (5,)), ((6,), (), (6,)), ((2, 1, 3), (2, 2, 1), (2, 2, 3))):  # fmt: skip
        a = LAYOUTS[left](some(*lead_a, size, size + 2))
        b = LAYOUTS[right](some(*lead_b, size + 2, size + 1))
        check(a, b, LAYOUTS[target](some(*lead, size, size + 1)), add=size == 3)


def test_what_is_copied_for_direct_gemms(monkeypatch):
    monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 0)
    for a, b, out, add, wanted in (
        (some(32, 20), some(24, 20).T, some(32, 24), True, ["32×20×24 added float32, direct"]),
        (some(32, 20), some(24, 20).T, some(24, 32).T, True, ["32×20×24 added float32, direct"]),
        (some(20, 32).T, some(20, 24), some(32, 24), True, ["32×20×24 added float32, direct"]),
        (some(5, 16, 9), some(5, 17, 9).swapaxes(1, 2), some(5, 16, 17), False, ["5×16×9×17 matmul float32, direct"]),
        (some(5, 2, 16, 9)[:, :1], some(17, 9).T, some(5, 1, 16, 17), True, ["5×1×16×9×17 added float32, direct"]),
        # Few rows: the transposed result is computed.
        (some(32, 64), some(512, 64).T, some(32, 512), False,
         ["transpose [64, 32]", "32×64×512 matmul float32, direct", "transpose [32, 512]"]),
        # Neither rows nor columns are contiguous.
        (some(32, 40)[:, ::2], some(40, 48)[::2, ::2], some(32, 24), True,
         ["copy [20, 24]", "32×20×24 added float32, direct"]),
    ):  # fmt: skip
        commands, counts = check(a, b, out, add=add)
        assert commands.titles == wanted and counts.kernels_split == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("add", [False, True])
def test_direct_gemms_of_all_sizes(dtype, add, monkeypatch):
    """Around the sizes of vectors, tiles, chunks of rows and blocks of the inner dimension, packed or not."""
    monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 0)
    sizes = [(m, k, n) for m in (4, 5, 7, 8, 9, 15, 64) for k in (1, 255, 257) for n in (8, 15, 17, 31, 63, 64, 65, 97)]
    for m, k, n in [*sizes, (255, 7, 20), (263, 600, 20), (520, 3, 9), (70, 300, 1030), (300, 40, 700)]:
        for left, right in (("plain", "plain"), ("transposed", "plain"), ("plain", "transposed")):
            a, b = LAYOUTS[left](some(m, k, dtype=dtype)), LAYOUTS[right](some(k, n, dtype=dtype))
            out = some(m, n + 3, dtype=dtype)
            before = out.copy()
            check(a / np.sqrt(k, dtype=dtype), b, out[:, 1 : n + 1], add=add)
            np.testing.assert_array_equal(out[:, [0, -2, -1]], before[:, [0, -2, -1]])


def test_direct_gemms_keep_infinities_and_nans_in_their_places(monkeypatch):
    monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 0)
    a, b, out = some(9, 20), some(20, 21), some(9, 21)
    a[3, 4], b[5, 6], a[8, 0] = np.inf, np.nan, 0.0
    commands = Commands()
    assert commands.matmul(*views(a, b, out))
    run(commands, a, b, out)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(out, a @ b, 1e-5, 1e-5)


def test_heads_of_attention():
    a = some(3, 20, 4, 16).swapaxes(1, 2)
    b = some(3, 20, 4, 16).transpose(0, 2, 3, 1)
    check(a, b, np.zeros((3, 4, 20, 20), np.float32))
    check(some(3, 4, 20, 20), a, np.zeros((3, 20, 4, 16), np.float32).swapaxes(1, 2))


def test_a_stack_that_meets_one_matrix_is_one_gemm():
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
    """How many gemms BLAS is asked for."""
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


def test_offsets_into_an_arena(by_blas):
    arena = np.zeros(4096, np.uint8)
    a, b = some(6, 8), some(8, 10)
    commands = Commands()
    left, right = contiguous(0, 128, (6, 8), a.dtype), view_of(b, 1)
    hidden, made = contiguous(0, 512, (6, 10), a.dtype), contiguous(0, 1024, (6, 10), a.dtype)
    assert commands.copy(view_of(a, 2), left) and commands.matmul(left, right, hidden)
    assert commands.kernel(RELU, (6, 10), None, [hidden], [made])
    assert commands.matmul(left, right, made, add=True)
    run(commands, arena, b, a)
    close(arena[1024 : 1024 + 240].view(np.float32).reshape(6, 10), np.maximum(a @ b, 0) + a @ b)
    assert commands.describe().splitlines()[1:] == [
        "6×8×10 matmul float32", "relu_of_matmuls [6, 10]", "6×8×10 added float32"
    ]  # fmt: skip


def test_a_stack_of_small_matrices_is_split_over_the_thread_pool():
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


def test_blas_is_left_as_it_was_found(by_blas, monkeypatch):
    blas = openblas()
    number = blas._get()
    commands, seen = Commands(), []
    sizes = [8, 80, 160]  # by one thread anyway, kept to one, large
    arrays = [some(n, n) for n in sizes]
    outs = [np.zeros((n, n), np.float32) for n in sizes]
    every = views(*arrays, *outs)
    for k in range(3):
        assert commands.matmul(every[k], every[k], every[3 + k])
    real = blas._set
    monkeypatch.setattr(blas, "_set", lambda threads: (seen.append(threads), real(threads)))
    with counted() as counts:
        run(commands, *arrays, *outs)
    assert blas._get() == number and seen == [1, number] and counts.matmuls_run == 3
    for a, out in zip(arrays, outs, strict=True):
        close(out, a @ a)
    # Small ones alone need no word with BLAS.
    commands = Commands()
    assert commands.matmul(every[0], every[0], every[3])
    run(commands, *arrays, *outs)
    assert seen == [1, number]


def test_nothing_to_add_up():
    a, b, out = some(3, 0), some(0, 4), some(3, 4)
    before = out.copy()
    commands = Commands()
    assert commands.matmul(*views(a, b, out), add=True)
    run(commands, a, b, out)
    np.testing.assert_array_equal(out, before)
    commands = Commands()
    assert commands.matmul(*views(a, b, out))
    run(commands, a, b, out)
    assert not out.any()
    none = some(0, 4)
    commands = Commands()
    assert commands.matmul(*views(some(0, 3), some(3, 4), none))
    run(commands, some(0, 3), some(3, 4), none)


def test_what_blas_cannot_do_is_refused(monkeypatch):
    commands = Commands()
    a, b, out = views(some(3, 4), some(4, 5), some(3, 5))
    half = [BufferView(p.object, 0, p.shape, tuple(s // 2 for s in p.strides), np.dtype("float16"))
            for p in (a, b, out)]  # fmt: skip
    assert not commands.matmul(*half)
    assert not commands.matmul(a, a, out)
    assert not commands.matmul(a, b, out.view((2, 3, 5), (0, 20, 4)))
    assert not commands.matmul(a.view((2, 3, 4), (48, 16, 4)), b, out.view((3, 3, 5), (60, 20, 4)))
    assert not commands.matmul(a, b, out.view((5, 3), (12, 4)))
    assert not commands.matmul(a, b, BufferView(2, 0, (3, 5), (40, 8), np.dtype("float64")))
    monkeypatch.setattr(command_gemm, "openblas", lambda: None)
    assert not commands.matmul(a, b, out)
    assert commands.describe() == ""


@pytest.mark.parametrize("m, k, n", [(10, 64, 512), (30, 64, 512), (33, 200, 300), (64, 256, 130), (128, 257, 129)])
@pytest.mark.parametrize("target", TARGETS)
def test_few_rows_times_a_transposed_long_side(m, k, n, target, both_ways):
    """As a layer meets its weight."""
    a, b = some(m, k), LAYOUTS["transposed"](some(k, n))
    check(a, b, LAYOUTS[target](some(m, n)))
    check(a, b, LAYOUTS[target](some(m, n)), add=True)


# -- skinny matrices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 6, 8, 9, 11, 16, 23, 32])
def test_few_rows_times_the_rows_of_a_matrix_as_it_lies(m, dtype, by_blas):
    for k, n, left, right, target in (
        (128, 256, "plain", "transposed", "plain"), (131, 301, "part", "transposed part", "part"),
        (256, 128, "part", "transposed", "plain"), (1024, 35, "plain", "transposed", "part"),
    ):  # fmt: skip
        a, b = (LAYOUTS[way](some(*shape, dtype=dtype)) for way, shape in ((left, (m, k)), (right, (k, n))))
        commands, _ = check(a, b, LAYOUTS[target](some(m, n, dtype=dtype)))
        assert f"{m}×{k}×{n} matmul {a.dtype}, skinny" in commands.titles
        commands, _ = check(a, b, LAYOUTS[target](some(m, n, dtype=dtype)), add=True)
        # Tiles overlap where rows are not a multiple: then nothing can be added there.
        assert (f"{m}×{k}×{n} added {a.dtype}, skinny" in commands.titles) is (m not in (9, 11, 23))


@pytest.mark.parametrize("m, k, n", [(1, 16, 1), (8, 17, 3), (4, 40, 7), (7, 31, 5), (2, 5000, 2)])
def test_skinny_small_matrices(m, k, n):
    commands, _ = check(some(m, k), LAYOUTS["transposed"](some(k, n)), some(m, n))
    assert commands.titles == [f"{m}×{k}×{n} matmul float32, skinny"]


@pytest.mark.parametrize("m, k, n", [(9, 64, 512), (33, 256, 256), (4, 7, 400), (20, 128, 128)])
def test_rows_that_are_not_few_are_left_to_blas(m, k, n):
    commands, _ = check(some(m, k), LAYOUTS["transposed"](some(k, n)), some(m, n))
    assert not any("skinny" in title for title in commands.titles)


def test_threads_share_the_columns():
    _, counts = check(some(4, 512), LAYOUTS["transposed"](some(512, 1000)), some(4, 1000))
    assert counts.kernels_split == 1


def test_few_rows_on_a_processor_with_half_as_long_vectors(monkeypatch):
    monkeypatch.setattr(machine(), "processor", replace(machine().processor, lanes=8))
    skinny_gemm._routine.cache_clear()
    for m in (1, 3, 8, 20):
        check(some(m, 140), LAYOUTS["transposed"](some(140, 301)), some(m, 301))
    skinny_gemm._routine.cache_clear()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m, k, n", [
    (1, 1030, 1001), (2, 800, 704), (6, 512, 400), (1, 1, 1_000_100), (1, 2100, 480), (300, 3400, 1), (500, 801, 3),
])  # fmt: skip
def test_few_rows_of_a_large_matrix_one_by_one(m, k, n, dtype, by_blas):
    for left, right, target in (("transposed", "plain", "transposed"), ("steps", "part", "part"),
                                ("plain", "part", "steps"), ("plain", "plain", "transposed part")):  # fmt: skip
        a, b = (LAYOUTS[way](some(*shape, dtype=dtype)) for way, shape in ((left, (m, k)), (right, (k, n))))
        a = a / np.sqrt(k, dtype=dtype)
        commands, _ = check(a, b, LAYOUTS[target](some(m, n, dtype=dtype)), add=target == "part")
        assert any(title.endswith(("row by row", "skinny")) for title in commands.titles)


def test_few_rows_of_stacks_one_by_one(by_blas):
    commands, counts = check(some(3, 2, 900), LAYOUTS["transposed"](some(3, 900, 640)), some(3, 2, 640))
    assert commands.titles == ["3×2×900×640 matmul float32, row by row"] and counts.kernels_split == 1
    # One matrix for all: its rows are those of all together, and no longer few.
    commands, _ = check(some(4, 2, 900), some(900, 640), some(4, 2, 640))
    assert commands.titles == ["4×2×900×640 matmul float32"]


def test_sums_too_long_for_adding_rows_are_left_to_gemm():
    commands, _ = check(some(1, 40_000) / 200, some(40_000, 30), some(1, 30))
    assert commands.titles == ["1×40000×30 matmul float32"]


def test_a_row_times_a_matrix_that_lies_row_after_row(by_blas):
    """Where BLAS is slow at it."""
    commands, _ = check(some(1, 128), some(128, 512), some(1, 512))
    assert commands.titles == ["1×128×512 matmul float32" + ", row by row" * (machine().processor.lanes == 16)]
    commands, _ = check(some(1, 32), some(32, 512), some(1, 512))
    assert commands.titles == ["1×32×512 matmul float32"]


@pytest.mark.parametrize("m, k", [(1000, 10), (17, 8), (33, 100), (5, 300)])
def test_one_column_is_a_skinny_row(m, k):
    """As the gradient descent of a regression computes its predictions."""
    for a, b in ((some(m, k), some(k, 1)), (some(m, k), some(1, k).T)):
        for add in (False, True):
            commands, _ = check(a, b, some(m, 1), add=add)
            assert commands.titles == [f"{m}×{k}×1 {'added' if add else 'matmul'} float32, skinny"]
    check(some(m, 2 * k)[:, ::2], some(k, 1), some(m, 1))
