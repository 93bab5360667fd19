"""Command lists on a GPU: the same lists as on the CPU, launched and replayed as graphs, on the CPU's emulation."""

import itertools

import numpy as np
import pytest

from tests.gpu.emulation.host import COMPILER, HostLauncher
from wayfare.codegen.cuda import replay
from wayfare.codegen.cuda.commands import CudaCommands
from wayfare.codegen.cuda.gemm import gemm_calls
from wayfare.codegen.cuda.kernels.table import moves_by_table, packed, table_writer
from wayfare.codegen.loop.expr import load, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.runtime.command import BufferView, Unsuited, contiguous
from wayfare.core.counters import counted

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile CUDA text for the CPU")

F32 = np.dtype(np.float32)


class Given:
    """A kernel of any target: what a list takes is its loop."""

    def __init__(self, loop):
        self.loop = loop


def view_of(number, array):
    base = array if array.base is None else array.base
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return BufferView(number, offset, array.shape, array.strides, array.dtype)


def relu_then_sum(commands, rows=5, columns=7, finish=True):
    """hidden = max(x @ w, 0); total = sum of each row of hidden."""
    x, w = contiguous(0, 0, (rows, 3), F32), contiguous(1, 0, (3, columns), F32)
    hidden, total = contiguous(2, 0, (rows, columns), F32), contiguous(3, 0, (rows, 1), F32)
    element = load(0, "f32")
    relu = elementwise("relu", ["f32"], element * 0.5 + 1.0)
    summed = Loop("total", (Operand("f32"),), (Operand("f32", per_row=True),),
                  (Stage(reductions=(Reduction("sum", element),)),), results=((0, reduction(0, "f32")),))  # fmt: skip
    assert commands.matmul(x, w, hidden)
    assert commands.kernel(Given(relu), hidden.shape, None, [hidden], [hidden])
    assert commands.kernel(Given(summed), hidden.shape, (1,), [hidden], [total])
    if finish:
        commands.finish()
    return lambda arrays: ((arrays[0] @ arrays[1]) * 0.5 + 1).sum(1, keepdims=True)


def arrays_for(rows=5, columns=7, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, 3)).astype(F32), rng.standard_normal((3, columns)).astype(F32),
            np.empty((rows, columns), F32), np.empty((rows, 1), F32)]  # fmt: skip


def test_a_list_is_launched_then_captured_then_replayed():
    launcher = HostLauncher()
    commands = CudaCommands(launcher)
    expected = relu_then_sum(commands)
    arrays = arrays_for()
    for run in range(4):
        arrays[0][...] = np.random.default_rng(run).standard_normal((5, 3))
        with counted() as counts:
            commands.run(arrays)
        np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
        assert (counts.graphs_captured, counts.graphs_replayed) == [(0, 0), (1, 0), (0, 1), (0, 1)][run]
        assert counts.kernels_run == 2 and counts.matmuls_run == 1


def filled(arrays):
    arrays[3][...] = np.nan
    return arrays


def test_one_graph_serves_arrays_that_lie_anywhere():
    """All but `hidden`, which is written and no result, may lie elsewhere at each run."""
    commands = CudaCommands(HostLauncher())
    expected = relu_then_sum(commands, finish=False)
    commands.finish((), (3,))
    sets = [arrays_for(seed=s) for s in range(30)]
    hidden = sets[0][2]
    with counted() as counts:
        for arrays in sets:
            arrays[2] = hidden
            commands.run(filled(arrays))
            np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
    assert counts.graphs_captured <= 3 and counts.graphs_replayed >= 26


def test_each_set_of_addresses_of_anchors_has_a_graph():
    commands = CudaCommands(HostLauncher())
    expected = relu_then_sum(commands, finish=False)
    commands.finish((2,), (3,))
    sets = [arrays_for(seed=s) for s in range(3)]
    with counted() as counts:
        for _ in range(4):
            for arrays in sets:
                commands.run(filled(arrays))
                np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
    assert (counts.graphs_captured, counts.graphs_replayed) == (3, 6)
    mixed = [sets[0][0], sets[1][1], sets[0][2], sets[2][3]]
    for _ in range(3):
        commands.run(filled(mixed))
        np.testing.assert_allclose(mixed[3], expected(mixed), rtol=1e-5)


def test_what_is_too_large_to_be_copied_is_an_anchor(monkeypatch):
    monkeypatch.setattr(replay, "_ROOM", 100)
    commands = CudaCommands(HostLauncher())
    expected = relu_then_sum(commands, finish=False)
    commands.finish((2,), (3,))
    sets = [arrays_for(seed=s) for s in range(3)]
    with counted() as counts:
        for _ in range(6):
            for arrays in sets:
                commands.run(filled(arrays))
                np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
    assert counts.graphs_replayed > 0


def test_a_list_whose_arrays_always_move_stops_capturing():
    commands = CudaCommands(HostLauncher())
    expected = relu_then_sum(commands)
    kept = []
    with counted() as counts:
        for seed in range(120):
            arrays = arrays_for(seed=seed)
            kept.append(arrays)  # so that no address comes again
            for _ in range(2):  # twice: it looks as if a graph would pay
                commands.run(arrays)
            np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
    assert counts.graphs_captured <= 16


def test_a_list_is_captured_when_it_has_launched_as_much_as_a_capture_costs(monkeypatch):
    monkeypatch.setattr(replay, "CAPTURE_COST", 10)
    commands = CudaCommands(HostLauncher())
    expected = relu_then_sum(commands)
    arrays, captured = arrays_for(seed=0), []
    for _ in range(10):
        with counted() as counts:
            commands.run(filled(arrays))
        captured.append(counts.graphs_captured)
        np.testing.assert_allclose(arrays[3], expected(arrays), rtol=1e-5)
    launches = len(commands.titles)
    plain = -(-10 // launches)
    assert 2 <= launches < 10 and captured == [0] * plain + [1] + [0] * (9 - plain)


def test_one_launch_is_no_graph():
    commands = CudaCommands(HostLauncher())
    source, target = np.arange(6, dtype=F32), np.empty(6, F32)
    assert commands.copy(view_of(0, source), view_of(1, target))
    commands.finish((), (1,))
    with counted() as counts:
        for _ in range(4):
            commands.run([source, target])
    assert not counts.graphs_captured


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("size", [1, 7, 64, 70_000])
def test_copies_of_bytes_that_lie_anywhere(size, offset):
    launcher = HostLauncher()
    given, own = np.zeros(size + 16, np.uint8), np.zeros(size + 16, np.uint8)
    given[:] = np.random.default_rng(0).integers(0, 255, size + 16)
    table = np.zeros(4, np.int64)
    write = table_writer(launcher, launcher.pointer(table), 2)
    write(packed([0.5], [launcher.pointer(given)]))
    assert table[:1].view(np.float64)[0] == 0.5 and not table[2:].any()
    move = [(1, offset, launcher.pointer(own), size)]
    for copy in moves_by_table(launcher, launcher.pointer(table), move, False):
        copy()
    np.testing.assert_array_equal(own[:size], given[offset : offset + size])
    assert not own[size:].any()
    own[:] += 1
    before = given.copy()
    before[offset : offset + size] = own[:size]
    for copy in moves_by_table(launcher, launcher.pointer(table), move, True):
        copy()
    np.testing.assert_array_equal(given, before)


def test_a_table_of_many_words():
    launcher = HostLauncher()
    table = np.zeros(1300, np.int64)
    table_writer(launcher, launcher.pointer(table), 1200)(packed([], range(1200)))
    np.testing.assert_array_equal(table[:1200], np.arange(1200))
    assert not table[1200:].any()


def test_copies_fills_and_updates():
    commands = CudaCommands(HostLauncher())
    source = np.arange(12, dtype=F32).reshape(3, 4)
    target, zeros = np.empty((4, 3), F32), np.ones((2, 5), np.int64)
    weights = [np.arange(6, dtype=F32), np.arange(4, dtype=F32).reshape(2, 2)]
    grads = [np.ones(6, F32), np.full((2, 2), 2, F32)]
    rate = np.array([0.5], F32)
    step = elementwise("sgd", ["f32", "f32", "f32"], load(0, "f32") - load(2, "f32") * load(1, "f32"))
    assert commands.copy(view_of(0, source.T), view_of(1, target))
    assert commands.fill(view_of(2, zeros), 0)
    sets = [[view_of(3 + k, w), view_of(5 + k, g), view_of(3 + k, w)]
            for k, (w, g) in enumerate(zip(weights, grads, strict=True))]  # fmt: skip
    assert commands.update(Given(step), sets, view_of(7, rate))
    commands.finish()
    for count in (1, 2, 3):
        commands.run([source, target, zeros, *weights, *grads, rate])
        np.testing.assert_array_equal(weights[0], np.arange(6) - 0.5 * count)
        np.testing.assert_array_equal(weights[1], np.arange(4).reshape(2, 2) - 1.0 * count)
    np.testing.assert_array_equal(target, source.T)
    assert not zeros.any()


def laid_out(shape, how, dtype, rng):
    """An array of a shape whose last two axes lie in one of several ways."""
    *batch, rows, columns = shape
    if how == "columns":
        base = rng.standard_normal((*batch, columns, rows)).astype(dtype)
        return base.swapaxes(-1, -2)
    if how == "padded":
        return rng.standard_normal((*batch, rows, columns + 3)).astype(dtype)[..., :columns]
    if how == "broadcast":
        return np.broadcast_to(rng.standard_normal((rows, columns)).astype(dtype), shape)
    if how == "moved":
        return np.moveaxis(rng.standard_normal((rows, *batch, columns)).astype(dtype), 0, -2)
    return rng.standard_normal(shape).astype(dtype)


WAYS = ("rows", "columns", "padded", "broadcast", "moved")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_products_of_all_layouts(batch, dtype):
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    done = 0
    for how_a, how_b, how_out in itertools.product(WAYS, WAYS, ("rows", "columns", "padded", "moved")):
        for rows, inner, columns in ((4, 5, 6), (1, 3, 2), (3, 1, 1), (1, 1, 4)):
            a = laid_out((*batch, rows, inner), how_a, dtype, rng)
            b = laid_out((*batch, inner, columns), how_b, dtype, rng)
            out = laid_out((*batch, rows, columns), how_out, dtype, rng)
            before = out.copy()
            for add in (False, True):
                starts = [x.__array_interface__["data"][0] for x in (a, b, out)]
                views = [BufferView(k, 0, x.shape, x.strides, x.dtype) for k, x in enumerate((a, b, out))]
                try:
                    calls = gemm_calls(*views, add)
                except Unsuited:
                    continue
                done += 1
                out[...] = before
                for call, *places in calls:
                    launcher.gemm(call, *[starts[number] + offset for number, offset in places])
                wanted = a @ b + (before if add else 0)
                np.testing.assert_allclose(out, wanted, rtol=1e-4 if dtype == "f4" else 1e-12, atol=1e-6)
    assert done > 300


def test_products_that_cublas_cannot_do_are_refused():
    x = contiguous(0, 0, (4, 4), np.dtype(np.int64))
    with pytest.raises(Unsuited):
        gemm_calls(x, x, x, False)
    assert not CudaCommands(HostLauncher()).matmul(x, x, x)


@pytest.mark.parametrize("how", ["gaps", "batches"])
def test_what_cublas_cannot_read_as_it_lies_is_copied_first(how):
    """Rows with gaps between their elements; a batch that no single step walks along, which is not a call for each
    matrix."""
    rng = np.random.default_rng(0)
    if how == "gaps":
        base = rng.standard_normal((4, 16)).astype(F32)
        a, b = base[:, ::2][:, :4], base[:, 1::2][:, 4:]
    else:
        parts = rng.standard_normal((5, 6, 3, 4, 2)).astype(F32)  # sequences, positions, parts, heads, features
        a, b = parts[:, :, 0].swapaxes(1, 2), parts[:, :, 1].swapaxes(1, 2).swapaxes(2, 3)
    out = np.empty((*a.shape[:-1], b.shape[-1]), F32)
    launcher = HostLauncher()
    products, gemm = [], launcher.gemm
    launcher.gemm = lambda *given: (products.append(given), gemm(*given))
    commands = CudaCommands(launcher)
    base = a.base if a.base.base is None else a.base.base

    def view(array):
        start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return BufferView(0, start, array.shape, array.strides, array.dtype)

    assert commands.matmul(view(a), view(b), view_of(1, out))
    commands.finish()
    for _ in range(3):
        out[...] = 0
        commands.run([base, out])
        np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    assert len(products) == 2  # launched, then captured
