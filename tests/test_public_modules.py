"""Public modules lie in rooms and keep their public names, for Python and for type checkers."""

import importlib
import subprocess
import sys

import pytest

import wayfare as wf

INNER = ["signal.windows", "backends.cuda", "backends.cudnn", "backends.mps", "utils.checkpoint", "utils.data",
         "utils.hooks", "utils.tensorboard"]  # fmt: skip


@pytest.mark.parametrize("name", [*wf._MODULES, *INNER])
def test_both_names_give_one_module(name):
    public = importlib.import_module(f"wayfare.{name}")
    first, dot, rest = name.partition(".")
    room = f"wayfare.{wf._MODULES[first]}{dot}{rest}"
    assert public is importlib.import_module(room)
    assert public.__name__ == public.__spec__.name == room
    found = wf
    for part in name.split("."):
        found = getattr(found, part)
    assert found is public


@pytest.mark.parametrize("statement", [
    "import wayfare.linalg; wayfare.linalg.det",
    "import wayfare.utils.data as d; d.DataLoader",
    "from wayfare.utils.tensorboard import SummaryWriter",
    "from wayfare.onnx import export",
    "from wayfare import debug; debug.record",
    "from wayfare.errors import ShapeError; import pickle; pickle.loads(pickle.dumps(ShapeError))",
    "import wayfare.backends.cudnn as c; c.deterministic = True; import wayfare; wayfare.backends.cudnn.deterministic",
    "import wayfare.compiler.function, wayfare as wf; wf.compile(lambda x: x)",
    "import wayfare.exporters.bundle, wayfare as wf; wf.export.__call__",
    "import wayfare.see.debug, wayfare as wf; wf.graph(wf.ones(1)); wf.profile()",
])  # fmt: skip
def test_in_a_new_process(statement):
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_not_there_is_named_as_it_was_asked_for():
    with pytest.raises(ModuleNotFoundError, match="'wayfare.utils.nothing'"):
        importlib.import_module("wayfare.utils.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"wayfare\.utils\.data\.datapipes"):
        importlib.import_module("wayfare.utils.data.datapipes")


def test_names_from_a_room_above_are_there_as_attributes_and_by_import():
    import wayfare as wf

    assert importlib.import_module("wayfare.nn.parallel") is wf.nn.parallel
    assert importlib.import_module("wayfare.utils.data.distributed").DistributedSampler is (
        wf.utils.data.DistributedSampler)  # fmt: skip
    assert wf.nn.SyncBatchNorm.__mro__[1] is wf.nn.BatchNorm1d
    assert issubclass(wf.optim.ZeroRedundancyOptimizer, wf.optim.Optimizer)
    assert wf.distributed.optim.ZeroRedundancyOptimizer is wf.optim.ZeroRedundancyOptimizer
    with pytest.raises(AttributeError, match="DistributedDataParallel"):
        _ = wf.nn.DataParallel
