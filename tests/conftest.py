"""What every test starts from: the same seed, the default dtype, and reproducible property tests."""

import gc
import os
import signal

import hypothesis
import numpy as np
import pytest

import wayfare as wf
from tests.oracle.summary import pytest_terminal_summary  # noqa: F401  (a hook: pytest finds it by its name)
from wayfare.core.config import settings
from wayfare.core.mode import STATE, set_mode

# Property tests time nothing: the first example pays for imports and caches, and machines differ.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def hear_ctrl_c():
    """A process started in the background of a script ignores Ctrl-C, and so do its children: tests press it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Kernels built by tests go to pytest's own cache folder, never to the user's; all workers share it."""
    folder = config.rootpath / ".pytest_cache" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    settings.cache_folder = folder
    # And their secret too, of this process and of those that tests start.
    os.environ["XDG_STATE_HOME"] = str(config.rootpath / ".pytest_cache" / "state")
    settings.cache_secret = config.rootpath / ".pytest_cache" / "state" / "wayfare" / "kernels.key"
    hear_ctrl_c()


# Of tests made by the hundred (every op, every layer, scenarios of strangers) `make test` runs this many of each kind.
SAMPLE = 7
# What takes long by itself: whole trainings, whole benchmarks, thousands of calls, programs written at random.
LONG = (
    "batch/test_limits.py", "batch/test_paths_like_the_loop.py", "batch/test_random_programs.py", "benchmarks/",
    "cli/demo/", "codegen/test_fuzz.py", "compiler/test_lifetime.py", "compiler/test_profile.py",
    "compiler/test_random_programs.py", "compiler/test_staleness_training.py", "data/test_workers.py",
    "distributed/test_faults.py", "exporters/bundle/test_hostile.py", "exporters/bundle/test_lying.py",
    "exporters/inspect/test_inspect_fuzz.py", "exporters/onnx/test_export_loops.py", "gpu/test_cuda_bounds.py",
    "gpu/test_cuda_fuzz.py", "gpu/test_cuda_windows.py", "gpu/test_kernels_at_size.py",
    "gpu/test_map_path_programs.py", "gpu/test_map_paths.py", "gpu/test_programs.py", "gpu/test_several_gpus.py",
    "io/test_error_types.py", "ir/test_plan_counts.py", "ir/test_random_graphs.py", "ir/test_records.py",
    "optim/test_optimizer.py", "oracle/test_random_programs.py", "oracle/test_tutorials", "see/debug/test_leaks.py",
    "see/profile/test_three_rows.py", "see/viewer/test_views.py", "test_every_record_native.py", "test_examples.py",
    "test_without_llvm.py",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Mark as long what only `make test-all` runs: of each large family, all but some tests that lie spread over it."""
    families = {}
    for item in items:
        families.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    here = config.rootpath / "tests"
    for (path, _), family in families.items():
        every = -(-len(family) // SAMPLE)
        is_long = path.relative_to(here).as_posix().startswith(LONG)
        for place, item in enumerate(family):
            if is_long or place % every:
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Tens of thousands of tests are millions of objects: no collection of garbage walks through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def all_objects_are_listed():
    """For tests of what walks through all objects: gc.get_objects() and gc.get_referrers() pass over frozen ones."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def signals_are_heard():
    """Python drops an exception raised in a callback of the garbage collector, such as the one Hypothesis sets: a
    Ctrl-C that comes during a collection would be lost, and a test that presses it would wait for ever."""
    gc.callbacks.clear()


@pytest.fixture(autouse=True)
def fresh_state():
    """Seed the generator before each test, so that a test draws the same numbers alone and in company."""
    wf.manual_seed(0)
    wf.set_default_dtype(wf.float32)
    yield
    wf.set_default_dtype(wf.float32)


@pytest.fixture
def no_cycle_collector():
    """Switch the cycle collector off: what is freed inside the test is freed by reference counting alone."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


@pytest.fixture(autouse=True)
def the_state_is_restored(request):
    """No test leaves a mode in force, or another error state of NumPy: that would change what those after it see.

    Ctrl-C may come between the change of a mode and the `with` block that would take it back; no Python code can help
    that, so tests that press it are only cleaned up after.
    """
    before = np.geterr()
    yield
    left, numpy_left = STATE.mode, np.geterr()
    set_mode(None)
    np.seterr(**before)
    if "interrupt" not in request.node.name:
        assert left is None, "a mode is still in force after the test"
        assert numpy_left == before, "NumPy's error state is another one after the test"
