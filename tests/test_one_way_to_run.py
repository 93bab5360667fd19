"""One way to run: code calls methods of the executor in force, and never asks which executor that is.

Read from the sources. Only the executors themselves, and `core/dispatch.py`, which is how ops run eagerly, may look.
"""

import ast
import inspect
from pathlib import Path

import pytest

import wayfare as wf
from tests.optim.fake_recorder import GaveUp, recording
from wayfare.api.fused import TraceExecutor
from wayfare.autograd.vmap import VmapExecutor
from wayfare.batch.session import Session
from wayfare.compiler.recorder import Recorder
from wayfare.core.executor import EAGER, Executor, Interceptor
from wayfare.core.mode import Mode, Watcher, changed_mode, current, executor
from wayfare.exporters.onnx.trace import Tracer

PACKAGE = Path(__file__).resolve().parents[1] / "wayfare"
EXECUTORS = (
    "core/executor.py", "core/mode.py", "core/dispatch.py", "batch/", "compiler/", "exporters/", "autograd/vmap.py"
)  # fmt: skip
# What may be called or read on the executor in force. `batches` tells one of them from the others.
METHODS = {name for name in dir(Executor) if not name.startswith("_")} - {"batches"}
# The classes, with which nobody may compare, and where they come from: others have such names too.
CLASSES = {"EAGER", "Executor", "Interceptor", "VmapExecutor", "TraceExecutor", "Recorder", "Tracer"}
HOMES = {"wayfare.core.executor", "wayfare.autograd.vmap", "wayfare.api.fused", "wayfare.compiler.recorder",
         "wayfare.exporters.onnx.trace"}  # fmt: skip
TESTS = {"isinstance", "issubclass", "type", "getattr", "hasattr"}


def questions(source):
    """The lines of a source that ask which executor is in force, in one of the ways there are."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module not in HOMES]
    classes = CLASSES - {alias.asname or alias.name for node in imports for alias in node.names}
    lines = []
    for node in ast.walk(tree):
        in_force = (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "executor") or (
            isinstance(node, ast.Attribute) and node.attr == "executor" and isinstance(node.ctx, ast.Load)
        )
        if in_force:
            above = parents[node]
            if isinstance(above, ast.Call) and above.func is node:  # mode.executor(): counted as the call
                above = parents[above]
            if not (isinstance(above, ast.Attribute) and above.attr in METHODS):
                lines.append(node.lineno)
        elif isinstance(node, ast.Compare):
            lines += [n.lineno for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in classes]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TESTS:
            named = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in classes]
            lines += [node.lineno] * (bool(named) or any(_says_executor(arg) for arg in node.args))
    return sorted(lines)


def _says_executor(arg):
    return isinstance(arg, ast.Constant) and arg.value == "executor"


def others():
    """(path, source) of every module that is no executor."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(EXECUTORS):
            yield name, path.read_text(encoding="utf-8")


def test_nobody_asks_which_executor_is_in_force():
    assert [f"{name}:{line}" for name, source in others() for line in questions(source)] == []


@pytest.mark.parametrize("source", [
    "if executor() is EAGER: pass", "found = executor()", "mode.executor is not None", "current().executor",
    "executor().batches", "isinstance(executor(), VmapExecutor)", "getattr(mode, 'executor', None)",
    "hasattr(STATE.mode.executor, 'picked')", "x = mode.executor.__class__", "isinstance(run, Interceptor)",
])  # fmt: skip
def test_a_question_is_found(source):
    assert questions(source)


@pytest.mark.parametrize("source", [
    "executor().draw(self, key)", "mode.executor.born(array)", "if executor().works_on_arrays: pass",
    "with changed_mode(executor=TraceExecutor(2, None)): pass", "class Own(TraceExecutor): pass",
    "from wayfare.see.profile.ways import EAGER\nrow.way is EAGER",
])  # fmt: skip
def test_a_call_is_no_question(source):
    assert not questions(source)


def test_the_eager_one_is_in_force_where_there_is_no_other():
    assert executor() is EAGER
    assert current().executor is EAGER
    with changed_mode(grad=False):
        assert executor() is EAGER
        with changed_mode(executor=(inner := Interceptor())):
            assert executor() is inner
            with changed_mode(executor=None):
                assert executor() is EAGER


def test_one_that_batches_gives_way_to_watchers():
    class Batching(Interceptor):
        batches = True

    class Line(Watcher):
        allows_batches = False

    made = Batching()
    assert Mode(executor=made).executor is made
    assert Mode(executor=made, watcher=Watcher()).executor is made
    assert Mode(executor=made, watcher=Line()).executor is EAGER
    assert Mode(executor=made, anomaly=Line()).executor is EAGER
    assert Mode(executor=made, saved_hooks=(id, id)).executor is EAGER


def test_vmap_tells_the_executor_outside_what_a_recorder_must_know():
    with recording() as made:
        wf.vmap(lambda x: x + wf.rand(()), randomness="same")(wf.zeros(2))
        with pytest.raises(GaveUp, match="made inside"):
            wf.vmap(lambda x: x + wf.rand((), generator=wf.Generator()), randomness="same")(wf.zeros(2))
        with pytest.raises(GaveUp, match="for each example"):
            wf.vmap(lambda x: x + wf.rand(()), randomness="different")(wf.zeros(2))
    assert len(made.draws) == 2


def test_integers_to_negative_powers_are_the_same_in_a_batch():
    base, exponent = wf.tensor([1, -1, 3, 2]), wf.tensor([-2, -3, -1, 3])
    wanted = base**exponent
    assert wf.vmap(lambda a, b: a**b)(base, exponent).tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", [VmapExecutor, TraceExecutor, Recorder, Session, Tracer])
def test_an_executor_overrides_methods_as_they_are_called(kind):
    """Same parameters, in the same places, as the method of `Executor`."""
    assert issubclass(kind, Interceptor)
    for name, method in vars(Executor).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        own = getattr(kind, name)
        wanted, found = (list(inspect.signature(m).parameters.values()) for m in (method, own))
        assert [p.kind for p in found] == [p.kind for p in wanted], f"{kind.__name__}.{name}"
        assert [p.default for p in found] == [p.default for p in wanted], f"{kind.__name__}.{name}"
