"""The public functions where native code is missing, broken, damaged or nowhere to be kept: right answers still."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.runtime import kernel

needs_llvm = pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
ROOT = Path(wf.__file__).parents[1]

# A training step and its relatives, on arrays large enough for native code; what comes out is saved.
WORK = """
import sys, warnings
import numpy as np
seen = []
warnings.showwarning = lambda message, category, *rest, **more: seen.append(f"{category.__name__}: {message}")
warnings.simplefilter("always")
BEFORE
import wayfare as wf
import wayfare.nn.functional as F
from wayfare.core.counters import COUNTERS
wf.manual_seed(0)
x = wf.randn(300, 400, requires_grad=True)
w = wf.randn(400, 64, requires_grad=True)
target = wf.randint(0, 64, (300,))
out = {}
out["tanh"] = wf.tanh(x)
out["chain"] = (x * 2 + 1).sigmoid() / (x * x + 1) - x.exp().clamp(max=3.0)
out["softmax"] = F.softmax(x, dim=1)
out["columns"] = F.log_softmax(x, dim=0)
hidden = F.layer_norm(F.gelu(x), (400,))
loss = F.cross_entropy(hidden @ w, target)
loss.backward()
out["loss"], out["x.grad"], out["w.grad"] = loss, x.grad, w.grad
out["sum"], out["argmax"], out["std"] = x.sum(0), x.argmax(1), x.std(1)
out["halves"] = F.relu(x.half()).double()
out["whole"] = (x * 100).int() // 7
big = wf.linspace(-4, 4, 1_000_000)
out["large"] = wf.tanh(big)
out["in place"] = big.clone().mul_(3).add_(1)
np.savez(sys.argv[1], **{k.replace(" ", "_"): v.detach().numpy() for k, v in out.items()})
print("built", COUNTERS.kernels_built, "loaded", COUNTERS.kernels_loaded, "run", COUNTERS.kernels_run,
      "failed", COUNTERS.kernels_failed)
print("\\n".join(seen))
"""


class Result:
    """What a run of WORK printed and saved."""

    def __init__(self, done, path):
        assert done.returncode == 0, done.stderr
        counts, *self.warnings = [line for line in done.stdout.splitlines() if line]
        words = counts.split()
        self.counts = {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}
        self.arrays = dict(np.load(path))

    def agrees_with(self, other):
        assert self.arrays.keys() == other.arrays.keys()
        for name, array in self.arrays.items():
            wanted = other.arrays[name]
            assert array.dtype == wanted.dtype and array.shape == wanted.shape, name
            np.testing.assert_allclose(array, wanted, 2e-4, 2e-5, err_msg=name)


def start(folder, before="", cache=None, name="result"):
    env = {k: v for k, v in os.environ.items() if not k.startswith("WAYFARE_")}
    env |= {"PYTHONPATH": str(ROOT), "WAYFARE_CACHE": str(cache or folder / "kernels")}
    command = [sys.executable, "-c", WORK.replace("BEFORE", before), str(folder / f"{name}.npz")]
    return subprocess.Popen(command, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(process, folder, name="result"):
    out, err = process.communicate(timeout=200)
    return Result(subprocess.CompletedProcess([], process.returncode, out, err), folder / f"{name}.npz")


def work(folder, before="", cache=None):
    return finished(start(folder, before, cache), folder)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run where all is well, and its folder with the cache it filled."""
    folder = tmp_path_factory.mktemp("healthy")
    return work(folder), folder


MISSING = {
    "missing": "sys.modules['llvmlite'] = None",
    "broken at import": """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("llvmlite"): raise OSError("libLLVM.so: cannot open shared object file")
sys.meta_path.insert(0, Broken())
""",
    "without its parts": "import types; sys.modules['llvmlite'] = types.ModuleType('llvmlite')",
    "unable to start": """
import llvmlite.binding
def fail(): raise RuntimeError("unknown target")
llvmlite.binding.initialize_native_target = fail
""",
}


@pytest.mark.parametrize("how", MISSING)
def test_without_llvmlite_there_is_one_warning_and_numpy_does_the_work(how, healthy, tmp_path):
    got = work(tmp_path, MISSING[how])
    got.agrees_with(healthy[0])
    assert got.counts["run"] == got.counts["built"] == got.counts["loaded"] == 0
    assert len(got.warnings) == 1 and "no native kernel" in got.warnings[0], got.warnings
    assert got.warnings[0].startswith("UserWarning: wayfare: ")


@needs_llvm
def test_code_that_llvm_refuses_is_one_warning_for_each_loop(healthy, tmp_path):
    got = work(tmp_path, """
import llvmlite.binding
def fail(text): raise RuntimeError("LLVM IR parsing error\\n<string>:1:1")
from wayfare.codegen.llvm.machine import Machine, machine
machine()
Machine.object_code = lambda self, text: fail(text)
""")  # fmt: skip
    got.agrees_with(healthy[0])
    assert got.counts["run"] == 0
    named = [w.split(": ")[1] for w in got.warnings]
    assert "tanh" in named and len(named) == len(set(named)), got.warnings
    assert all("no native kernel (LLVM IR parsing error)" in w for w in got.warnings)


# -- the cache ----------------------------------------------------------------------------------------------------


@needs_llvm
def test_a_second_start_builds_nothing(healthy):
    first, folder = healthy
    assert first.counts["built"] > 10 and first.counts["failed"] == 0 and first.warnings == []
    again = work(folder)
    assert again.counts["built"] == 0 and again.counts["loaded"] == first.counts["built"] + first.counts["loaded"]
    for name, array in again.arrays.items():
        np.testing.assert_array_equal(array, first.arrays[name], err_msg=name)


DEMO = """
import sys
from wayfare.core.counters import COUNTERS
from wayfare.cli.main import main
assert not main(["demo", "regression", "--epochs", "2"])
print("\\n", COUNTERS.kernels_built, COUNTERS.kernels_failed, file=sys.stderr)
"""


@needs_llvm
def test_a_second_demo_builds_nothing(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT), "WAYFARE_CACHE": str(tmp_path / "kernels")}
    for turn in range(2):
        done = subprocess.run([sys.executable, "-c", DEMO], env=env, cwd=tmp_path, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        built, failed = map(int, done.stderr.split()[-2:])
        assert failed == 0 and (turn == 0 or built == 0)


def copied(folder, target):
    target.mkdir(mode=0o700)
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
        (target / path.name).chmod(0o600)
    return sorted(target.iterdir())


@needs_llvm
def test_damaged_files_are_thrown_away_and_made_again(healthy, tmp_path):
    first, folder = healthy
    files = copied(folder / "kernels", tmp_path / "kernels")
    damages = [
        lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:], lambda data: b"\x7fELF" + data,
    ]  # fmt: skip
    for number, path in enumerate(files):
        path.write_bytes(damages[number % len(damages)](path.read_bytes()))
    got = work(tmp_path)
    got.agrees_with(first)
    assert got.counts["built"] == first.counts["built"] and got.counts["loaded"] == 0
    again = work(tmp_path)
    assert again.counts["built"] == 0


OTHERS = {
    "processor": "replace(host.processor, name='another')",
    "features": "replace(host.processor, features='+another')",
    "LLVM": "replace(host.processor, llvm='another')",
}


@needs_llvm
@pytest.mark.parametrize("what", [*OTHERS, "version", "code generator"])
def test_code_for_something_else_is_not_used(what, healthy):
    first, folder = healthy
    before = "from dataclasses import replace\nfrom wayfare.codegen.llvm import machine, objects\n"
    before += "host = machine.machine()\n"
    before += {
        "version": "objects.__version__ = '99'", "code generator": "objects._generator = lambda: 'another'",
    }.get(what, f"host.processor = {OTHERS.get(what)}")  # fmt: skip
    got = work(folder, before)
    assert got.counts["loaded"] == 0 and got.counts["built"] > 0
    got.agrees_with(first)


@needs_llvm
def test_a_cache_that_is_off_keeps_nothing(healthy, tmp_path):
    got = work(tmp_path, cache="off")
    got.agrees_with(healthy[0])
    assert got.counts["loaded"] == 0 and got.warnings == [] and not (tmp_path / "kernels").exists()


@needs_llvm
@pytest.mark.skipif(os.name != "posix", reason="a file for a folder is another error there")
def test_a_cache_that_cannot_be_written_is_one_warning(healthy, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    got = work(tmp_path, cache=tmp_path / "file" / "kernels")
    got.agrees_with(healthy[0])
    assert len(got.warnings) == 1 and "kernel cache" in got.warnings[0]


@needs_llvm
def test_two_processes_fill_a_cache_at_once(healthy, tmp_path):
    running = [(start(tmp_path, name=name), name) for name in ("one", "two")]
    for process, name in running:
        got = finished(process, tmp_path, name)
        got.agrees_with(healthy[0])
        assert got.warnings == []
    assert work(tmp_path).counts["built"] == 0
