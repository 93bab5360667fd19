"""Shape errors show the user's expression with the shape under each operand, where that is certain."""

import subprocess
import sys
import threading
import traceback

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ShapeError, WayfareError
from wayfare.nn import functional as F

x, w, b = wf.ones(8, 3), wf.ones(4, 2), wf.zeros(2)
few = [x, wf.ones(2, 4)]


class Net(nn.Module):
    """Two layers that do not fit."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(wf.ones(4, 2))
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(4, 2))

    def forward(self, inputs):
        """A product that does not fit."""
        return F.relu(inputs @ self.weight + b)


def drawn(action):
    """The note of the error that an action raises, without the margin."""
    with pytest.raises(WayfareError) as caught:
        action()
    return "\n".join(line[4:] for line in caught.value.expression.splitlines())


def test_an_operator_in_an_expression():
    net = Net()
    assert drawn(lambda: net(x)) == (
        "return F.relu(inputs @ self.weight + b)\n"
        "              ~~~~~~   ~~~~~~~~~~~\n"
        "              │        └ f32[4,2]\n"
        "              └ f32[8,3]"
    )


def compound():
    return (x * 2).sum(0) @ w.T.T


def several_lines():
    return F.linear(
        x,
        w * 2,  # of a part that has no name, the named parts are shown
        bias=b,
    )


def augmented():
    y = wf.ones(3)
    y += few[1]


def method():
    return x.view(5, 5)


def in_a_list():
    return wf.cat([x, few[1]], dim=0)


def a_list_by_name():
    return wf.cat(few)


def compared():
    return x < b


def indexed():
    return x[9]


def of_another_dtype():
    return x @ wf.ones(3, 2, dtype=wf.float64)


def keyword():
    return wf.bmm(x, mat2=w)


def äther():
    übung = wf.ones(5)
    return "ä", x + übung


def of_an_array():
    import numpy as np

    array = np.ones((5, 5))
    return wf.matmul(x, wf.from_numpy(array))


PICTURES = {
    compound: ["return (x * 2).sum(0) @ w.T.T",
               "       ~~~~~~~~~~~~~~   ~~~~~",
               "       │                └ f32[4,2]",
               "       └ f32[3]"],
    several_lines: ["x,", "~", "└ f32[8,3]",
                    "w * 2,  # of a part that has no name, the named parts are shown", "~", "└ f32[4,2]",
                    "bias=b,", "     ~", "     └ f32[2]"],
    augmented: ["y += few[1]", "~    ~~~~~~", "│    └ f32[2,4]", "└ f32[3]"],
    method: ["return x.view(5, 5)", "       ~", "       └ f32[8,3]"],
    in_a_list: ["return wf.cat([x, few[1]], dim=0)", "               ~  ~~~~~~", "               │  └ f32[2,4]",
                "               └ f32[8,3]"],
    a_list_by_name: ["return wf.cat(few)", "              ~~~", "              └ [f32[8,3], f32[2,4]]"],
    compared: ["return x < b", "       ~   ~", "       │   └ f32[2]", "       └ f32[8,3]"],
    indexed: ["return x[9]", "       ~", "       └ f32[8,3]"],
    of_another_dtype: ["return x @ wf.ones(3, 2, dtype=wf.float64)", "       ~   " + "~" * 31,
                       "       │   └ f64[3,2]", "       └ f32[8,3]"],
    keyword: ["return wf.bmm(x, mat2=w)", "              ~       ~", "              │       └ f32[4,2]",
              "              └ f32[8,3]"],
    äther: ['return "ä", x + übung', "            ~   ~~~~~", "            │   └ f32[5]", "            └ f32[8,3]"],
    of_an_array: ["return wf.matmul(x, wf.from_numpy(array))", "                 ~                ~~~~~",
                  "                 │                └ float64[5, 5] (an array)", "                 └ f32[8,3]"],
}  # fmt: skip


@pytest.mark.parametrize("action", PICTURES, ids=lambda action: action.__name__)
def test_pictures(action):
    assert drawn(action).splitlines() == PICTURES[action]


def test_the_sentence_stays_one_line_and_the_picture_is_in_the_traceback():
    with pytest.raises(ShapeError) as caught:
        x @ w
    assert "\n" not in str(caught.value)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert shown.startswith("wayfare.errors.ShapeError: matmul: inner sizes differ, f32[8,3] @ f32[4,2]")
    assert shown.count("x @ w\n") == 1 and "└ f32[8,3]" in shown


def test_a_layer_shows_what_it_was_given():
    net = Net()
    assert drawn(lambda: net.layers(x * 1)).splitlines()[1:] == [" " * 32 + "~", " " * 32 + "└ f32[8,3]"]


def test_a_planted_shape_error_in_one_example_of_a_batch_is_found():
    xs = [wf.ones(4) for _ in range(32)]
    xs[17] = wf.ones(3)

    def score(example):
        h = example * 2
        return (h @ w).sum()

    words = r"matmul: .*f32\[3\] @ f32\[4,2\], in example 17 of wf.map \(test_shape_errors.py:"
    with pytest.raises(ShapeError, match=words) as caught:
        wf.map(score, xs)
    assert caught.value.expression.splitlines()[2:] == ["            │   └ f32[4,2]", "            └ f32[3]"]


def test_nothing_of_the_users_is_called_to_find_out():
    class Sly:
        def __getattr__(self, name):
            raise AssertionError("this is the user's code")

        @property
        def weight(self):
            raise AssertionError("and this")

    sly = Sly()

    def act(first, *others):
        return x @ w

    assert "sly" not in drawn(lambda: act(sly, sly)) and drawn(lambda: wf.cat([x, (lambda t: t)(w)], 0) or sly.weight)


def test_names_inside_a_comprehension_are_not_guessed():
    t = wf.ones(9, 9)
    assert "9,9" not in drawn(lambda: wf.cat([t for t in (x, w)]))
    del t


def test_other_errors_have_no_picture():
    with pytest.raises(ArgumentError) as caught:
        wf.debug.break_on()
    assert caught.value.expression == "" and not getattr(caught.value, "__notes__", [])


def test_without_a_source_there_is_the_sentence_alone():
    with pytest.raises(ShapeError) as caught:
        eval("x @ w")
    assert caught.value.expression == "" and "inner sizes differ" in str(caught.value)


def test_with_another_source_than_the_one_that_runs_nothing_breaks(tmp_path):
    path = tmp_path / "changed.py"
    path.write_text("def go(x, w):\n    return x @ w\n")
    namespace = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    path.write_text("# something else\n'\n(((\n")
    with pytest.raises(ShapeError):
        namespace["go"](x, w)


def test_in_other_threads():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(drawn(compared)))
    thread.start()
    thread.join()
    assert seen[0].splitlines() == PICTURES[compared]


def test_on_the_command_line():
    code = "import wayfare as wf; wf.ones(2, 3) @ wf.ones(2, 3)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120, check=False)
    assert "ShapeError: matmul: inner sizes differ" in done.stderr


def test_errors_that_are_found_when_a_group_runs_do_not_show_another_line():
    with pytest.raises(WayfareError) as caught:
        wf.map(lambda v: x.index_select(0, (v * 20).long()).sum(), [wf.ones(1), wf.zeros(1)])
    assert "wf.map(" not in caught.value.expression
