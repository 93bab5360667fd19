"""Launches from native code: what the driver is given, what its errors become, and that ops by remembered plans compute
what they compute without."""

import ctypes
import sys
import threading
import types

import numpy as np
import pytest

import wayfare as wf
from tests.gpu.conftest import REAL
from tests.gpu.cupy_stand_in.launch import CU_LAUNCH_KERNEL, StandInLauncher
from tests.gpu.test_nvrtc import Recorder
from wayfare.codegen.cuda import launch
from wayfare.codegen.cuda.kernel import CudaKernel
from wayfare.codegen.cuda.launch import CupyLauncher
from wayfare.codegen.loop.expr import load
from wayfare.codegen.loop.language import elementwise
from wayfare.core.counters import counted
from wayfare.core.native import NATIVE

needs_native = pytest.mark.skipif(NATIVE is None, reason="there is no native module here")
needs_stand_in = pytest.mark.skipif(REAL, reason="a GPU does not tell what the driver was given")


class FakeDriver:
    """A function with the parameters of cuLaunchKernel that notes them; statuses to return can be queued."""

    def __init__(self, words):
        self.calls, self.statuses = [], []
        self.function = CU_LAUNCH_KERNEL(self._called)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value
        self._words = ctypes.c_int64 * words

    def _called(self, function, *given):
        *sizes, shared, stream, parameters, extra = given
        words = list(self._words.from_address(parameters[0]))
        self.calls.append((function, tuple(sizes), shared, stream, extra, words))
        return self.statuses.pop(0) if self.statuses else 0


def array_at(address):
    return types.SimpleNamespace(data=types.SimpleNamespace(ptr=address), dtype=np.dtype(np.float32))


def plan_of(driver, **options):
    given = {"masks": (), "offsets": (), "workspace": 0, **options}
    step = (1234, (7, 2, 1), (64, 1, 1), (0, 0, 5, 6, 0)[: 4 + len(given["offsets"])], 2 + 2 * bool(given["offsets"]))
    f32 = np.dtype(np.float32)
    return NATIVE.Plan(driver, (step,), 1, (f32, f32), given["masks"], given["offsets"], given["workspace"])


@needs_native
def test_the_driver_gets_function_sizes_stream_and_words():
    fake, streams = FakeDriver(4), [5]
    made = []

    def empty(shape, dtype):
        made.append((shape, dtype))
        return array_at(640)

    plan = plan_of(NATIVE.Driver(fake.address, lambda: streams[-1], None, empty))
    plan.run([111, 222], None)
    assert fake.calls == [(1234, (7, 2, 1, 64, 1, 1), 0, 5, None, [111, 222, 5, 6])]
    streams.append(9)  # another stream is the current one
    assert plan.new([array_at(64)]) is None, "the shapes of the outputs are not known"
    plan.made = ((3,),)
    (out,) = plan.new([array_at(64)])
    assert out.data.ptr == 640 and made == [((3,), np.float32)] and fake.calls[1][3:] == (9, None, [64, 640, 5, 6])
    with pytest.raises(ValueError, match="1 addresses for 2 operands"):
        plan.run([111], None)


@needs_native
def test_the_current_stream_may_come_from_a_function_in_c():
    fake = FakeDriver(4)
    stream = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: 77)
    driver = NATIVE.Driver(fake.address, ctypes.cast(stream, ctypes.c_void_p).value, None, None)
    driver.launch(8, (1, 2, 3), (4, 5, 6), 16, (ctypes.c_int64 * 4)(1, 2, 3, 4))
    assert fake.calls == [(8, (1, 2, 3, 4, 5, 6), 16, 77, None, [1, 2, 3, 4])]


@needs_native
def test_alignment_and_tables():
    fake = FakeDriver(5)
    starts = {np.dtype(np.uint8): 4096, np.dtype(np.float32): 32}
    driver = NATIVE.Driver(fake.address, lambda: 0, None, lambda shape, dtype: array_at(starts[dtype]))
    plan = plan_of(driver, masks=(15, 15))
    plan.made = ((3,),)
    assert plan.new([array_at(4)]) is None and not fake.calls
    assert plan.new([array_at(16)])
    with_tables = plan_of(driver, offsets=(16,), workspace=48)
    with_tables.run([1, 2], None)
    with_tables.run([1, 2], 8192)
    assert [call[-1] for call in fake.calls[-2:]] == [[1, 2, 5, 6, 4112], [1, 2, 5, 6, 8208]]


@needs_native
def test_a_launch_that_fails():
    fake, asked = FakeDriver(4), []

    def failed(status):
        asked.append(status)
        if status != 201:
            raise KeyError(f"status {status}")
        return True

    plan = plan_of(NATIVE.Driver(fake.address, lambda: 0, failed, None))
    fake.statuses = [201]
    plan.run([1, 2], None)
    assert asked == [201] and len(fake.calls) == 2, "tried once more"
    fake.statuses = [700]
    with pytest.raises(KeyError, match="status 700"):
        plan.run([1, 2], None)
    fake.statuses = [201, 201]
    with pytest.raises(RuntimeError, match="status 201"):
        plan.run([1, 2], None)


@needs_native
def test_two_threads_run_one_plan():
    fake = FakeDriver(4)
    plan = plan_of(NATIVE.Driver(fake.address, lambda: 0, None, None))

    def run(start):
        for k in range(200):
            plan.run([start + k, start + k + 1], None)

    threads = [threading.Thread(target=run, args=(1000 * k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(fake.calls) == 800 and all(words[1] == words[0] + 1 for *_, words in fake.calls)


@needs_native
def test_the_launcher_of_cupy(monkeypatch):
    cupy, fake, used = Recorder(monkeypatch), FakeDriver(4), []
    monkeypatch.setattr(launch, "compiled", lambda text, architecture: b"code")
    monkeypatch.setattr(launch, "nvrtc", lambda: types.SimpleNamespace(architecture=lambda capability: "sm_90"))
    monkeypatch.setattr(launch, "launch_function", lambda: fake.address)

    class CUDADriverError(RuntimeError):
        pass

    driver = sys.modules["cupy_backends.cuda.api.driver"]
    driver.CUDADriverError, driver.moduleGetFunction = CUDADriverError, lambda module, name: 4321
    launcher = CupyLauncher()
    launcher._device.use = lambda: used.append(True)
    kernel = CudaKernel(elementwise("twice", ["f32"], load(0, "f32") * 2.0), launcher)
    x = cupy.array(np.ones(8, np.float32))
    with counted() as counts:
        for _ in range(2):
            (out,) = kernel([x])
    assert counts.kernels_run == counts.device_calls == len(fake.calls) == 2 and not cupy.launches
    function, sizes, shared, stream, _, words = fake.calls[1]
    assert (function, sizes, shared, stream) == (4321, (1, 1, 1, 256, 1, 1), 0, 5)
    assert words[:2] == [x.data.ptr, out.data.ptr]
    fake.statuses = [201]  # a thread that has not used the device yet
    kernel([x])
    assert used == [True]
    fake.statuses = [719]
    with pytest.raises(CUDADriverError, match="719"):
        kernel([x])


# -- eager ops ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["one GPU", "several GPUs"])
def machine(request, monkeypatch):
    """Machines that have one GPU, and several: an op asks there which is the current one."""
    monkeypatch.setattr("tests.gpu.cupy_stand_in.device.DEVICES", 1 if request.param == "one GPU" else 2)


@pytest.fixture
def on_either(machine, cuda):
    return cuda


def steps(device):
    """Values and gradients of a few ops on several layouts, each three times."""
    wf.manual_seed(3)
    x, w = wf.randn(4, 6), wf.randn(6)
    found = []
    for dtype in (wf.float32, wf.float64):
        for _ in range(3):
            a, b = (t.to(device, dtype).clone().requires_grad_() for t in (x, w))
            for h in (a, a.t().contiguous().t(), a[1:, ::2]):
                y = (h * b[: h.shape[1]]).tanh() / (h * h + 1.5) - h.sigmoid() * -h
                y = y + h.relu()
                y.sum().backward()
                found.append(y)
            found += [a.grad, b.grad]
    return [t.detach().cpu().numpy() for t in found]


def test_ops_by_plans_compute_what_ops_on_the_cpu_do(on_either):
    for made, wanted in zip(steps("cuda"), steps("cpu"), strict=True):
        assert made.dtype == wanted.dtype
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-6)


@needs_stand_in
def test_launches_from_python_compute_the_same(on_either):
    cuda = on_either
    made = steps("cuda")

    class FromPython(StandInLauncher):
        def __init__(self):
            super().__init__()
            self.driver = None

    cuda._launchers.clear()
    cuda._forwards.clear()
    cuda._gradients.clear()
    cuda.new_launcher = FromPython
    assert all(np.array_equal(a, b) for a, b in zip(made, steps("cuda"), strict=True))


@needs_native
@needs_stand_in
def test_a_repeated_op_runs_no_python(on_either, monkeypatch):
    cuda = on_either
    x, w = (wf.rand(4, 6, device="cuda", requires_grad=True) for _ in range(2))

    def step():
        x.grad = w.grad = None
        h = (x * w + w - x).tanh().sigmoid().relu() * 0.5
        (h / w).backward(wf.ones(4, 6, device="cuda"))

    step()
    step()
    ran = []
    for name in ("run", "gradients"):
        function = getattr(cuda, name)
        monkeypatch.setattr(cuda, name, lambda *a, f=function: ran.append(a[0]) or f(*a))
    with counted() as counts:
        step()
    assert not ran and counts.kernels_run == 8 + 7 + 3, "forward, backward, sums of gradients"


@needs_stand_in
def test_plans_are_for_the_current_device(cuda):
    x = wf.rand(3, requires_grad=True)
    want = (x * x).tanh()
    for _ in range(3):
        for number in (0, 1):
            there = x.detach().to(f"cuda:{number}").requires_grad_()
            y = (there * there).tanh()
            y.sum().backward()
            assert y.device.index == there.grad.device.index == number
            np.testing.assert_allclose(y.detach().cpu().numpy(), want.detach().numpy(), rtol=1e-6)


def test_an_in_place_write_between_forward_and_backward_is_refused(cuda):
    for _ in range(3):
        x = wf.rand(3, device="cuda", requires_grad=True)
        h = x * 1.0
        y = (h * h).tanh()
        with wf.no_grad():
            h.add_(1.0)
        with pytest.raises(wf.errors.WayfareError, match="modified by an in-place operation"):
            y.sum().backward()


@needs_native
@needs_stand_in
def test_many_steps_hold_no_memory(cuda):
    x = wf.rand(4, 6, device="cuda", requires_grad=True)
    pool = cuda.xp.get_default_memory_pool()
    shape = np.dtype(np.float32)

    def step():
        x.grad = None
        ((x * 2.0).tanh() * x + x).mean().backward()

    step()
    used, held = pool.used_bytes(), sys.getrefcount(shape)
    for _ in range(50):
        step()
    assert pool.used_bytes() == used and abs(sys.getrefcount(shape) - held) < 20


def test_products_of_all_ranks_and_layouts(cuda):
    for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
                 ((5, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)),
                 ((1, 5, 2, 3), (4, 1, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))):  # fmt: skip
        x, y = wf.randn(*a), wf.randn(*b)
        for flip in (False, True):  # the other order of elements
            p, q = (t.cuda().mT.contiguous().mT if flip and t.ndim > 1 else t.cuda() for t in (x, y))
            for _ in range(2):
                np.testing.assert_allclose((p @ q).cpu().numpy(), (x @ y).numpy(), rtol=1e-5, atol=1e-6)
    layer = wf.nn.Linear(3, 4)
    for shape in ((3,), (2, 3), (5, 2, 3), (0, 3)):
        x = wf.randn(*shape)
        want = layer(x).detach().numpy()
        there = layer.cuda()(x.cuda()).detach().cpu().numpy()
        layer.cpu()
        np.testing.assert_allclose(there, want, rtol=1e-5, atol=1e-6)


def test_attributes_decide_the_plan(cuda):
    x = wf.tensor([[-2.0, 0.5], [3.0, -0.0]])
    there = x.cuda().requires_grad_()
    here = x.clone().requires_grad_()
    for _ in range(2):
        for slope in (0.1, 0.5, -0.0, 0.0):
            for t in (here, there):
                t.grad = None
            made, want = (wf.nn.functional.leaky_relu(t, slope) for t in (there, here))
            np.testing.assert_array_equal(np.signbit(made.detach().cpu().numpy()), np.signbit(want.detach().numpy()))
            made.sum().backward()
            want.sum().backward()
            np.testing.assert_allclose(there.grad.cpu().numpy(), here.grad.numpy(), rtol=1e-6)
        for dim, keepdim in ((0, False), (1, False), (1, True), (None, False)):
            for name in ("sum", "mean", "amax"):
                made, want = (getattr(t.detach(), name)(dim=dim, keepdim=keepdim) if dim is not None
                              else getattr(t.detach(), name)() for t in (there, here))  # fmt: skip
                assert made.shape == want.shape
                np.testing.assert_allclose(made.cpu().numpy(), want.numpy(), rtol=1e-6)
