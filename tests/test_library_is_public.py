"""The library is written against the public API only: that is the proof that the API is enough.

`nn` (its modules), `optim`, `data`, `train`, `io`, `ragged`, `see/report` and the demos import public names
of the engine, and never touch the private parts of a tensor.
"""

import ast
from pathlib import Path

import pytest

import wayfare as wf

PACKAGE = Path(wf.__file__).parent
LIBRARY = ["nn", "optim", "data", "train", "io", "ragged", "see/report", "cli/demo"]
# What makes a parameter of a tensor, and a function of the engine, is engine.
ENGINE = ["nn/functional", "nn/parameter.py"]
# Private slots of Tensor, and what an op record is run with.
PRIVATE = {name for name in wf.Tensor.__slots__ if name != "__weakref__"} | {"_read", "_more", "_renew"}
# Where the parts of the engine that a library needs are defined, beside the functions under public names.
ALLOWED = {
    "wayfare", "wayfare.core.errors", "wayfare.core.tensor.Tensor", "wayfare.core.node.Handle",
    "wayfare.api.fused.fused",
    "wayfare.api.fused_update.fused_update", "wayfare.api.fused_update.FusedUpdate",
    "wayfare.autograd.function.Function", "wayfare.core.config.settings", "wayfare.api.functions._along.check_tensor",
}  # fmt: skip
# What the library tells the compiler: that a module has changed, and what of a step is Python's to do again.
ALLOWED |= {
    f"wayfare.core.mode.{name}"
    for name in (
        "STATE", "UNUSUAL", "Watcher", "changed_mode", "executor", "watcher", "watchers",
    )
}  # fmt: skip
ALLOWED |= {"wayfare.core.executor.StaleCall"}
# A call of a module, in C where that is built.
ALLOWED |= {"wayfare.core.native.in_front_of_calls"}
# Is there any device but the CPU? A step asks it before it looks where parameters are.
ALLOWED |= {"wayfare.core.device.BACKENDS"}
# Tensors of other libraries: without their history, and their names in errors.
ALLOWED |= {"wayfare.core.dlpack.type_name", "wayfare.core.dlpack.without_history"}
# Which line a warning names.
ALLOWED |= {"wayfare.core.callsite.outside_frames"}
ALLOWED |= {f"wayfare.core.structure_epoch.{name}" for name in ("EPOCH", "NUMBERS", "structure_changed")}
ALLOWED |= {"wayfare.core.node.StructureHandle"}
# Worker processes: starting, ending and hearing them.
ALLOWED |= {f"wayfare.core.processes.{name}" for name in ("failure", "parcel", "starting")}
# Names that a package has from a room above it, and what `fit` and the demos start on several processes.
ALLOWED |= {
    "wayfare.core.public_modules.later_name", "wayfare.distributed", "wayfare.distributed.optim",
    "wayfare.distributed.samplers", "wayfare.distributed.sync_batch_norm",
}  # fmt: skip
# How numbers are written, and pages put together: words and pictures, no tensors.
ALLOWED |= {"wayfare.core.format", "wayfare.see.pages.charts", "wayfare.see.pages.markup", "wayfare.see.pages.parts"}
# What a report puts into its page, and how it leaves a model as it was.
ALLOWED |= {"wayfare.see.viewer.page", "wayfare.see.profile.snapshot.Snapshot", "wayfare.see.profile.page",
            "wayfare.see.tensorboard.SummaryWriter"}


def library_files():
    for part in LIBRARY:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if not name.startswith(tuple(ENGINE)):
                yield name, path.read_text(encoding="utf-8")


def is_public(module, name):
    """Is a name of an engine module one that a user can reach: listed by the module and not private?"""
    full = f"{module}.{name}"
    if module in ALLOWED or full in ALLOWED:
        return True
    inside = module.partition(".")[2].replace(".", "/")
    if any(f"{inside}/".startswith(f"{part}/") for part in LIBRARY):
        return True
    if name.startswith("_"):
        return False
    found = getattr(__import__(module, fromlist=[name]), name)
    if any(found is value for value in vars(wf).values()):  # under this name or another: wf.dtype is DType
        return True
    spaces = (wf.nn.functional, wf.autograd, wf.linalg, wf.special)
    wrapped = getattr(getattr(wf, name, None), "__wrapped__", None)
    return wrapped is found or any(getattr(space, name, None) is found for space in spaces)


def is_self(node):
    """An object may have private parts of its own."""
    return isinstance(node, ast.Name) and node.id == "self"


def problems(name, source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "wayfare":
            for alias in node.names:
                if not is_public(node.module, alias.name):
                    yield f"{name}:{node.lineno}: imports {node.module}.{alias.name}, which is no public name"
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE and not is_self(node.value):
            yield f"{name}:{node.lineno}: touches the private {node.attr} of a tensor"


@pytest.mark.parametrize(("name", "source"), list(library_files()), ids=[name for name, _ in library_files()])
def test_only_public_names_are_used(name, source):
    assert not list(problems(name, source))


@pytest.mark.parametrize(
    "source",
    ["x = t._array", "from wayfare.core.dispatch import apply", "from wayfare.codegen.routines.rows import Rows",
     "p._grad = None"],
)  # fmt: skip
def test_what_is_private_is_found(source):
    assert list(problems("nn/fake.py", source))


@pytest.mark.parametrize(
    "source",
    ["import wayfare as wf", "from wayfare.api.functions.creation import zeros",
     "from wayfare.core.errors import ShapeError", "from wayfare.autograd.modes import no_grad", "self._names = {}"],
)  # fmt: skip
def test_what_is_public_passes(source):
    assert not list(problems("nn/fake.py", source))
