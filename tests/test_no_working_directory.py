"""With the working directory deleted: where user code has no path from the root, all still works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import os
os.rmdir(os.getcwd())
import wayfare as wf

x = wf.ones(3, requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2, 2, 2]
try:
    wf.ones(3) + wf.ones(4)
except RuntimeError as error:
    assert "<string>" in str(error), error
assert "<string>" in str(wf.graph((x * 2).sum()))
f = wf.compile(lambda x: (x * 2).sum() + 1)
assert [f(wf.ones(3)).item() for _ in range(4)] == [7] * 4
with wf.debug.record() as run:
    (x * 2).sum().backward()
run.document()
assert [y.tolist() for y in wf.map(lambda x: x * 2, [wf.ones(1), wf.ones(1)])] == [[2], [2]]
optimizer = wf.optim.SGD([x], lr=0.1)
optimizer.step()
model = wf.nn.Linear(2, 1)
for call in (lambda: wf.load("a"), lambda: wf.save({"a": x.detach()}, "a"), lambda: wf.report(model, path="a")):
    try:
        call()
    except OSError as error:
        assert isinstance(error, wf.errors.WayfareError), repr(error)
    else:
        raise AssertionError
print("done")
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps a folder that is in use")
def test_everything_goes_on(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=folder, env=env, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
