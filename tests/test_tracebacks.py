"""Tracebacks: the user's frames, with those of the library folded; a debugger lands on the user's line."""

import gc
import os
import subprocess
import sys
import traceback
import weakref

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core import tracebacks

SCRIPT = """
import wayfare as wf
from wayfare import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        h = self.inner(x)
        mine = "a local of forward"
        return h @ wf.ones(2, 2)

def train():
    mine = "a local of train"
    return Net()(wf.ones(1, 3))
{end}
"""
RUN = "train()"
LINES = ["train()", "return Net()(wf.ones(1, 3))", "return h @ wf.ones(2, 2)"]


def run(tmp_path, end, *options, typed="", **environment):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(end=end))
    done = subprocess.run([sys.executable, *options, str(file)], input=typed, capture_output=True, text=True,
                          timeout=120, env={**os.environ, **environment})  # fmt: skip
    return done.stdout + done.stderr


def frames(text):
    """(file name, source line) of each frame of a printed traceback."""
    lines = text.splitlines()
    return [(line.split('"')[1], lines[number + 1].strip()) for number, line in enumerate(lines)
            if line.startswith('  File "')]  # fmt: skip


def test_an_error_nobody_catches_shows_the_users_frames(tmp_path):
    said = run(tmp_path, RUN)
    assert [line for _, line in frames(said)] == LINES, said
    assert all(file.endswith("script.py") for file, _ in frames(said))
    assert "ShapeError: matmul: inner sizes differ" in said and "WAYFARE_TRACEBACK=full" in said
    assert "h @ wf.ones(2, 2)" in said.split("ShapeError")[1]  # the expression with its shapes stays


def test_all_frames_on_request(tmp_path):
    said = run(tmp_path, RUN, WAYFARE_TRACEBACK="full")
    shown = frames(said)
    assert [line for file, line in shown if file.endswith("script.py")] == LINES
    assert sum("wayfare" in os.path.dirname(file) for file, _ in shown) >= 2
    assert "WAYFARE_TRACEBACK" not in said


def test_an_error_of_the_users_inside_a_layer(tmp_path):
    said = run(tmp_path, "class Bad(nn.Module):\n    def forward(self, x):\n        return {}['missing']\nBad()(1)")
    assert [line for _, line in frames(said)] == ["Bad()(1)", "return {}['missing']"], said
    assert "KeyError" in said


def test_an_error_in_a_thread(tmp_path):
    said = run(tmp_path, "import threading\nt = threading.Thread(target=train)\nt.start()\nt.join()")
    assert [line for file, line in frames(said) if file.endswith("script.py")] == LINES[1:], said
    assert not [file for file, _ in frames(said) if os.path.dirname(wf.__file__) in file]


def test_an_error_of_the_librarys_own_is_shown_whole(tmp_path):
    """An error that is no sentence of ours, raised inside the library: whoever reports it needs every frame."""
    said = run(tmp_path, "wf.Tensor.item(None)")
    assert "AttributeError" in said and frames(said)[-1][0].endswith("tensor.py"), said


def test_an_error_in_an_example_of_a_map(tmp_path):
    said = run(tmp_path, "def one(x):\n    return x @ wf.ones(2, 2)\nwf.map(one, [wf.ones(3)] * 3)")
    assert [line for _, line in frames(said)] == ["wf.map(one, [wf.ones(3)] * 3)", "return x @ wf.ones(2, 2)"], said


def test_an_error_in_a_compiled_function(tmp_path):
    said = run(tmp_path, "f = wf.compile(lambda x: x @ wf.ones(2, 2))\nfor i in range(9):\n    f(wf.ones(1, 2))\n"
               "f(wf.ones(3))")  # fmt: skip
    assert [line for _, line in frames(said)] == ["f(wf.ones(3))", "f = wf.compile(lambda x: x @ wf.ones(2, 2))"], said


@pytest.mark.parametrize("line", ["p.no_decay = True", "setattr(p, 'no_decay', True)"])
def test_an_attribute_of_ones_own_on_a_tensor_says_what_to_do(tmp_path, line):
    for maker in ("nn.Parameter(wf.ones(2))", "wf.ones(2)"):
        said = run(tmp_path, f"p = {maker}\n{line}")
        assert "has no attribute 'no_decay'" in said
        assert "no_decay = {p}" in said
    assert "no_decay = {p}" not in run(tmp_path, "p = wf.ones(2)\np.no_decay")


def test_other_peoples_tracebacks_are_not_touched(tmp_path):
    said = run(tmp_path, "import json\njson.loads('{')")
    assert os.path.basename(next(iter(frames(said)))[0]) == "script.py"
    assert any("json" in file for file, _ in frames(said)) and "WAYFARE" not in said


HOOK = """
import sys, traceback
from wayfare.core import tracebacks
sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__, len(list(traceback.walk_tb(trace))))
tracebacks.install()
train()
"""


def test_a_hook_that_was_there_is_called(tmp_path):
    assert "mine ShapeError 3" in run(tmp_path, HOOK)


POST_MORTEM = """
import pdb, sys
try:
    train()
except Exception:
    pdb.post_mortem()
"""


@pytest.mark.parametrize(("end", "options"), [(POST_MORTEM, ()), (RUN, ("-m", "pdb")), (RUN, ("-i",))],
                         ids=["post_mortem", "python -m pdb", "pdb.pm"])  # fmt: skip
def test_a_debugger_lands_on_the_users_line(tmp_path, end, options):
    start = {"-m": "c\n", "-i": "import pdb; pdb.pm()\n"}.get(options[0] if options else "", "")
    said = run(tmp_path, end, *options, typed=start + "p mine\nq\nq\n")
    assert "'a local of forward'" in said, said


def test_the_last_frame_of_a_caught_error_is_the_users():
    with pytest.raises(wf.errors.ShapeError) as caught:
        nn.Linear(2, 2)(wf.ones(1, 3))
    frame = list(traceback.walk_tb(caught.value.__traceback__))[-1]
    assert frame[0].f_code.co_name == "test_the_last_frame_of_a_caught_error_is_the_users"


def test_folding_leaves_the_traceback_itself_alone():
    with pytest.raises(wf.errors.ShapeError) as caught:
        nn.Linear(2, 2)(wf.ones(1, 3))
    error = caught.value
    before = len(list(traceback.walk_tb(error.__traceback__)))
    folded, left_out = tracebacks.folded(error.__traceback__)
    shown = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(folded)]
    assert shown == [__file__] and left_out == before - 2
    assert len(list(traceback.walk_tb(error.__traceback__))) == before


def test_an_error_that_is_caught_keeps_nothing_alive():
    class Big:
        pass

    def fails():
        big = Big()
        alive.append(weakref.ref(big))
        try:
            wf.ones(2) + wf.ones(3)
        except RuntimeError:
            pass

    alive = []
    fails()
    gc.collect()
    assert alive[0]() is None
