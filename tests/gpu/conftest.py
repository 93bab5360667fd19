"""The device of these tests: a GPU where CuPy finds one (`make test-gpu`), else the stand-in for CuPy."""

import os

import pytest

from tests.gpu.cupy_stand_in import COUNTS, installed
from tests.gpu.cupy_stand_in.launch import StandInLauncher
from tests.gpu.emulation.host import COMPILER
from wayfare.codegen.cuda import replay
from wayfare.core import device

REAL = os.environ.get("WAYFARE_TEST_GPU") == "1"
# On a GPU, where time is short, what many others need comes first.
FIRST = ["kernels_at_size", "on_gpu", "devices", "training", "compile", "mixed_precision", "linalg", "functions"]


def pytest_collection_modifyitems(config, items):
    """On a GPU: only tests that need one. Texts of kernels and their emulation are checked everywhere else."""
    if not REAL:
        return
    here = [item for item in items if item.path.parent.name == "gpu"]
    wanted = [item for item in here if "cuda" in item.fixturenames or item.path.stem == "test_on_gpu"]
    config.hook.pytest_deselected(items=[item for item in here if item not in wanted])

    def turn(item):
        name = item.path.stem.removeprefix("test_")
        return FIRST.index(name) if name in FIRST else len(FIRST)

    items[:] = [item for item in items if item not in here] + sorted(wanted, key=turn)


@pytest.fixture(autouse=True)
def captured_at_once(monkeypatch):
    """Lists of launches are captured at their second run, however short they are."""
    monkeypatch.setattr(replay, "CAPTURE_COST", 0)


@pytest.fixture
def cuda():
    """The backend of "cuda": on the stand-in, or on a real GPU."""
    if REAL:
        yield device.backend("cuda")
        return
    if COMPILER is None:
        pytest.skip("there is no g++ to run kernels on the CPU with")
    device.forget("cuda")
    with installed():
        backend = device.backend("cuda")
        backend.new_launcher = StandInLauncher
        yield backend
    device.forget("cuda")
    device.change_default_device(None)


@pytest.fixture
def two_gpus(cuda):
    """For tests that name "cuda:1"; the stand-in has two devices."""
    if cuda.count < 2:
        pytest.skip("there is one GPU")


@pytest.fixture
def counts(cuda):
    """How often data crossed between host and device since the test began; only the stand-in counts."""
    if REAL:
        pytest.skip("CuPy does not count copies")
    COUNTS.reset()
    return COUNTS


@pytest.fixture
def launched(cuda):
    """The names of the kernels that ran; only the emulation tells them."""
    if REAL:
        pytest.skip("a GPU does not tell the names of kernels")
    return cuda.launcher.names
