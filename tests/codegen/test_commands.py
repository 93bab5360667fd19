"""Command lists: kernels over buffer views give what direct calls give, in any layout, and again on other arrays."""

import threading

import numpy as np
import pytest

import wayfare as wf
from tests.codegen.loops import broadcastable, laid, random_elementwise, random_rows, random_shape, row_loop, values
from wayfare.codegen.loop.expr import NUMPY, apply, load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.runtime import commands as command_lists
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import work_split
from wayfare.codegen.runtime.command import contiguous
from wayfare.codegen.runtime.commands import BufferView, Commands
from wayfare.core.counters import counted

needs_native = pytest.mark.skipif(not native.available(), reason="llvmlite does not work here")
F32, F64 = np.dtype("float32"), np.dtype("float64")
X, Y = load(0, "f32"), load(1, "f32")
RELU = native.build(elementwise("relu_of_list", ["f32"], apply("maximum", X, 0.0)))
AXPY = native.build(elementwise("axpy_of_list", ["f32", "f32"], X * 2.0 + Y))


@pytest.fixture(autouse=True)
def threads_as_before():
    before = wf.get_num_threads()
    yield
    wf.set_num_threads(before)


def view_of(array, number):
    """Where an array lies, as the object of that number."""
    return BufferView(number, 0, array.shape, array.strides, array.dtype)


def views(*arrays):
    return [view_of(a, k) for k, a in enumerate(arrays)]


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def run(commands, *arrays):
    commands.finish()
    commands.run(arrays)


def same_bits(got, want):
    # NumPy does not know that a NaN of bfloat16 is one.
    wide = [a.astype(np.float32) if a.dtype == NUMPY["bf16"] else a for a in (got, want)]
    np.testing.assert_array_equal(*wide)


# -- kernels ------------------------------------------------------------------------------------------------------


@needs_native
def test_a_list_runs_in_order_by_one_call():
    commands = Commands()
    arena = np.zeros(4096, np.uint8)
    x, w, y = numbers(8, 16), numbers(8, 16) + 3, np.zeros((8, 16), np.float32)
    first, second = contiguous(2, 64, (8, 16), F32), contiguous(2, 1024, (8, 16), F32)
    given = [view_of(x, 0), view_of(w, 1)]
    assert commands.kernel(AXPY, (8, 16), None, given, [first])
    assert commands.kernel(RELU, (8, 16), None, [first], [second])
    assert commands.kernel(AXPY, (8, 16), None, [second, first], [view_of(y, 3)])
    commands.finish()
    for _ in range(2):
        with counted() as counts:
            commands.run([x, w, arena, y])
        between = x * 2 + w
        np.testing.assert_allclose(y, np.maximum(between, 0) * 2 + between, 1e-5)
        assert (counts.lists_run, counts.kernels_run, counts.matmuls_run) == (1, 3, 0)
        # Other arrays of the same layout.
        x, w, arena, y = -x, w + 1, np.zeros(4096, np.uint8), np.zeros((8, 16), np.float32)
    lines = commands.describe().splitlines()
    assert len(lines) == 3 and lines[0] == "axpy_of_list [8, 16]" and lines[1] == "relu_of_list [8, 16]"


@needs_native
@pytest.mark.parametrize("seed", range(25))
def test_elementwise_loops_on_any_layout(seed):
    rng = np.random.default_rng(seed)
    loop = random_elementwise(rng)
    kernel, shape = native.build(loop), random_shape(rng, 2000)
    inputs = [broadcastable(rng, shape, o.dtype) for o in loop.inputs]
    outs = [laid(rng, values(rng, shape, o.dtype)) for o in loop.outputs]
    with np.errstate(all="ignore"):
        want = [np.broadcast_to(array, shape) for array in kernel(inputs)]
    for threads in (1, 3):
        wf.set_num_threads(threads)
        commands = Commands()
        every = views(*inputs, *outs)
        assert commands.kernel(kernel, shape, None, every[: len(inputs)], every[len(inputs) :])
        for out in outs:
            out[...] = 0
        run(commands, *inputs, *outs)
        for got, expected in zip(outs, want, strict=True):
            same_bits(got, expected)


@needs_native
@pytest.mark.parametrize("seed", range(25))
def test_loops_over_rows_on_any_layout(seed, monkeypatch):
    rng = np.random.default_rng(1000 + seed)
    loop = random_rows(rng)
    kernel = native.build(loop)
    shape = tuple(int(rng.choice([1, 2, 5, 17, 40])) for _ in range(rng.integers(1, 5)))
    first = int(rng.integers(0, len(shape)))
    axes = tuple(range(first, int(rng.integers(first, len(shape))) + 1))
    if seed % 3 == 0:  # few long rows
        shape, axes = (int(rng.integers(1, 3)), int(rng.integers(600, 3000))), (1,)
    short = tuple(1 if a in axes else n for a, n in enumerate(shape))
    inputs = [laid(rng, values(rng, short if o.per_row else shape, o.dtype)) for o in loop.inputs]
    sizes = [short if o.per_row else shape for o in loop.outputs]
    with np.errstate(all="ignore"):
        want = kernel.rows(inputs, axes)
    monkeypatch.setattr(work_split, "_SPLIT", -1)
    for threads in (1, 2, 3):
        wf.set_num_threads(threads)
        outs = [np.zeros(s, NUMPY[o.dtype]) for s, o in zip(sizes, loop.outputs, strict=True)]
        every = views(*inputs, *outs)
        commands = Commands()
        assert commands.kernel(kernel, shape, axes, every[: len(inputs)], every[len(inputs) :])
        run(commands, *inputs, *outs)
        for got, expected in zip(outs, want, strict=True):
            same_bits(got, expected)


@needs_native
def test_an_output_may_be_the_input():
    x = numbers(300, 70)
    want = x * 2 + x
    commands = Commands()
    (view,) = views(x)
    assert commands.kernel(AXPY, x.shape, None, [view, view], [view])
    run(commands, x)
    np.testing.assert_allclose(x, want, 1e-6)


@needs_native
@pytest.mark.parametrize("threads", [3, 5])
@pytest.mark.parametrize(("shape", "axes"), [((200_000,), (0,)), ((50_000, 2), (0,)), ((2, 90_000), (1,))])
def test_few_long_rows_are_split_into_pieces(threads, shape, axes):
    wf.set_num_threads(threads)
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    out = np.zeros(tuple(1 if a in axes else n for a, n in enumerate(shape)), np.float32)
    commands = Commands()
    assert commands.kernel(native.build(row_loop("sum")), shape, axes, *[[p] for p in views(x, out)])
    with counted() as counts:
        run(commands, x, out)
    same_bits(out, x.sum(axes, keepdims=True))
    assert counts.kernels_split == 1 and commands.scratch_bytes > 0
    assert "pieces" in commands.describe().splitlines()[0]


@needs_native
def test_work_is_split_over_as_many_threads_as_there_are_now():
    x, out = numbers(400, 1000), np.zeros((400, 1000), np.float32)
    commands = Commands()
    assert commands.kernel(RELU, x.shape, None, *[[p] for p in views(x, out)])
    commands.finish()
    for threads in (1, 4, 2, 1):
        wf.set_num_threads(threads)
        out[...] = -1
        with counted() as counts:
            commands.run([x, out])
        same_bits(out, np.maximum(x, 0))
        assert counts.kernels_split == (threads > 1)


@needs_native
def test_several_threads_run_one_list():
    wf.set_num_threads(2)
    x = numbers(300, 1000)
    arena = [np.zeros((300, 1000), np.float32) for _ in range(4)]
    commands = Commands()
    for _ in range(5):
        assert commands.kernel(AXPY, x.shape, None, views(x, x), [view_of(x, 1)])
    commands.finish()
    wrong = []

    def work(own):
        for k in range(10):
            given = x * (k + 1)
            own[...] = 0
            commands.run([given, own])  # five times own += 2 given
            if not np.allclose(own, given * 10, 1e-4):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(own,)) for own in arena]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@needs_native
def test_sizes_of_zero():
    empty, out = np.zeros((0, 4), np.float32), np.zeros((1, 4), np.float32)
    commands = Commands()
    (view,) = views(empty)
    assert commands.kernel(RELU, (0, 4), None, [view], [view]) and commands.copy(view, view)
    assert commands.update(AXPY, [], contiguous(0, 0, (0,), F32))
    # The sum of nothing has no native form: somebody must write the zeros.
    assert not commands.kernel(native.build(row_loop("sum")), (0, 4), (0,), [view], [view_of(out, 1)])
    run(commands, empty)
    assert commands.describe() == ""


@needs_native
def test_what_does_not_fit_is_refused_and_adds_nothing():
    x = numbers(4, 5)
    view, other = views(x, x.astype(np.float64))
    overlapping = BufferView(1, 0, (4, 5), (0, 4), F32)
    commands = Commands()
    assert not commands.kernel(RELU, (4, 5), None, [other], [view])
    assert not commands.kernel(RELU, (4, 5), None, [view, view], [view])
    assert not commands.kernel(RELU, (4, 5), None, [view], [overlapping])
    assert not commands.kernel(RELU, (4, 6), None, [view], [view_of(numbers(4, 6), 2)])
    assert not commands.kernel(RELU, (3, 5), None, [view_of(numbers(1, 5), 2)], [view])
    assert not commands.copy(view, other) and not commands.copy(view, view.view((5, 4), (16, 4)))
    assert commands.describe() == ""
    with counted() as counts:
        run(commands, x)
    assert counts.lists_run == 0


def test_an_empty_list():
    commands = Commands()
    commands.finish()
    commands.run([])
    assert commands.describe() == ""


def test_without_native_code_every_request_is_refused(monkeypatch):
    monkeypatch.setattr(command_lists, "ready", lambda: False)
    x = numbers(4, 4)
    view, out = views(x, x)
    commands = Commands()
    assert not commands.kernel(RELU, (4, 4), None, [view], [out])
    assert not commands.matmul(view, view, out) and not commands.copy(view, out) and not commands.fill(out, 0)
    assert not commands.update(RELU, [[view, out]], contiguous(2, 0, (0,), F32))
    commands.finish()
    commands.run([x, x])


# -- copies, fills, updates ---------------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("dtype", ["bool", "i1", "i2", "f2", "f4", "i8", "f8", "c8", "c16"])
def test_copies_keep_every_bit(dtype):
    rng = np.random.default_rng(3)
    for _ in range(12):
        shape = random_shape(rng, 3000)
        bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
        if dtype == "bool":
            bits &= 1
        x = np.ascontiguousarray(bits).view(dtype)[..., 0]
        source, target = laid(rng, x), laid(rng, np.zeros(shape, dtype))
        commands = Commands()
        assert commands.copy(*views(source, target))
        run(commands, source, target)
        assert target.tobytes() == x.tobytes()


@needs_native
def test_copies_of_many_axes_in_any_order():
    rng = np.random.default_rng(4)
    x = rng.integers(0, 99, (3, 4, 5, 6, 7)).astype(np.int32)
    for _ in range(8):
        source = x.transpose(rng.permutation(5))
        target = np.zeros(source.shape, np.int32)
        commands = Commands()
        assert commands.copy(*views(source, target))
        run(commands, source, target)
        same_bits(target, source)


@needs_native
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_copies_that_transpose(dtype, threads, monkeypatch):
    monkeypatch.setattr(work_split, "_SPLIT", -1)
    wf.set_num_threads(threads)
    rng = np.random.default_rng(5)
    for shape in ((8, 8), (9, 8), (8, 17), (64, 64), (65, 130), (100, 7), (3, 33, 20), (2, 3, 16, 70)):
        x = rng.integers(0, 99, shape).astype(dtype)
        transposed = x.swapaxes(-1, -2)
        for source, target in ((transposed, np.zeros(transposed.shape, dtype)),
                               (x, np.zeros(transposed.shape, dtype).swapaxes(-1, -2)),
                               (transposed, np.zeros((*transposed.shape[:-1], shape[-2] + 3), dtype)[..., :-3]),
                               (np.moveaxis(x, 0, -1), np.zeros((*shape[1:], shape[0]), dtype))):  # fmt: skip
            commands = Commands()
            assert commands.copy(*views(source, target))
            run(commands, source, target)
            same_bits(target, source)
            if shape == (64, 64) and dtype != "c16":
                assert commands.describe() == "transpose [64, 64]"


@needs_native
@pytest.mark.parametrize(("dtype", "value"), [("f4", 1.5), ("f8", -0.0), ("i8", 2**40), ("bool", True), ("f2", 3.0)])
def test_fills(dtype, value):
    out = np.zeros((5, 6, 7), dtype)[:, ::2]
    commands = Commands()
    (view,) = views(out)
    assert commands.fill(view, value)
    run(commands, out)
    same_bits(out, np.full_like(out, value))
    if value == 0:
        assert np.signbit(out).all()


@needs_native
@pytest.mark.parametrize("threads", [1, 2])
def test_updates_of_many_sets(threads):
    wf.set_num_threads(threads)
    loop = elementwise("sgd_of_list", ["f32", "f32", "f32", "f32"], X - load(2, "f32") * Y, Y * load(3, "f32"))
    kernel = native.build(loop)
    shapes = [(3,), (1,), (400, 90), (7, 5, 3), (), (0, 4), (2, 3, 4, 5)]
    params = [numbers(*s) for s in shapes[:-1]] + [numbers(5, 4, 3, 2).transpose(2, 0, 1, 3).swapaxes(0, 3)]
    grads = [numbers(*p.shape) + 1 for p in params]
    arrays = [np.asarray(a) for a in (*params, *grads)]
    given = np.array([0.5, 2.0, 0.25], np.float32)
    count = len(params)
    every = views(*arrays)
    sets = [[every[k], every[count + k], every[k], every[count + k]] for k in range(count)]
    commands = Commands()
    assert commands.update(kernel, sets, BufferView(2 * count, 0, (2,), (8,), F32))
    commands.finish()
    before = [a.copy() for a in arrays]
    commands.run([*arrays, given])
    for k in range(count):
        np.testing.assert_allclose(arrays[k], before[k] - 0.5 * before[count + k], 1e-6, 1e-6)
        np.testing.assert_allclose(arrays[count + k], before[count + k] * 0.25, 1e-6, 1e-6)
    # Numbers are read when it runs.
    given[...] = 0
    before = [a.copy() for a in arrays[:count]]
    with counted() as counts:
        commands.run([*arrays, given])
    for p, old, g in zip(arrays, before, arrays[count:], strict=False):
        same_bits(p, old)
        assert not g.any()
    assert counts.kernels_built == 0 and counts.kernels_split == (threads > 1)


@needs_native
def test_updates_refuse_sets_that_do_not_match():
    x, y = numbers(4), numbers(5)
    every = views(x, y)
    none = contiguous(2, 0, (0,), F32)
    commands = Commands()
    assert not commands.update(AXPY, [[every[0], every[1], every[0]]], none)
    assert not commands.update(RELU, [[every[0], BufferView(0, 0, (4,), (0,), F32)]], none)
    assert commands.describe() == ""
