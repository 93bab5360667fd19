"""Stops halt in the user's own frame, on the right line, with the node at hand: eager, compiled, batched, backward."""

import bdb
import inspect
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.mode import STATE
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError


def line_of(function, text):
    """The number of the line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Net(nn.Module):
    """A model in which a NaN can be planted."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        """Twice `encoder`, a logarithm that may fail, and `head`."""
        h = self.encoder(x)
        z = (h + 2 + x.sum() * 0).log()
        return self.head(z)


def bad_row():
    """An input for which the logarithm is NaN: an infinite sum times nothing."""
    return wf.tensor([[1e38, 1e38, 3e38]])


def test_a_planted_nan_stops_on_its_line_with_everything_at_hand(prompt):
    net = Net()
    prompt("here.op", "p here.module == '' and here.site.function", "p z if 'z' in dir() else 'no z yet'",
           "here.value.isnan().all().item()", "here", "c")  # fmt: skip
    with wf.debug.break_on(nan=True) as stop:
        net(bad_row())
    said = prompt.said()
    assert f"NaN: mul, forward (test_stops.py:{line_of(Net, '.log()')}, in Net)" in said
    assert "'mul'" in said and "'forward'" in said and "'no z yet'" in said
    assert "input 0    f32[] = inf" not in said and "1 infinite (first at [])" in said
    assert "(Pdb) True" in said
    assert said.count("value      f32[]") == 2  # at the stop, and asked for
    assert stop.hits == 1  # what the NaN is carried into does not stop again


def test_the_first_op_of_what_was_bad_before_stops(prompt):
    x = wf.tensor([1.0, float("nan")])
    prompt("c", "c")
    with wf.debug.break_on(nan=True) as stop:
        y = x * 2
        y = y + 1
        wf.ones(2) * y
        x.exp()
    assert stop.hits == 1
    assert "NaN: mul, forward" in prompt.said()


def test_names_can_be_changed_and_the_run_goes_on_with_them(prompt):
    def compute(x):
        factor = 2.0
        y = x * factor
        return y * factor

    prompt("factor = 10.0", "n", "p y", "c")
    with wf.debug.break_on(line=f"test_stops.py:{line_of(compute, 'y = x')}"):
        assert compute(wf.ones(1)).item() == 20.0
    assert "tensor([2.])" in prompt.said()


def test_next_and_step_go_through_the_users_lines_only(prompt):
    def inner(x):
        return x.exp()

    def compute(x):
        y = x.log()
        z = inner(y)
        return z + 1

    prompt("n", "s", "s", "s", "s", "w", "c")
    with wf.debug.break_on(op="log"):
        compute(wf.ones(1))
    said = prompt.said()
    assert "-> z = inner(y)" in said and "-> return x.exp()" in said and "-> return z + 1" in said
    stops = [text for text in said.splitlines() if text.startswith(("> ", "(Pdb) > "))]
    assert all("test_stops.py" in text for text in stops), stops


def test_quitting_raises_as_in_pdb_and_leaves_nothing_behind(prompt):
    prompt("q")
    with pytest.raises(bdb.BdbQuit), wf.debug.break_on(op="exp"):
        wf.ones(1).exp()
    assert wf.ones(1).exp().item() > 2
    assert sys.gettrace() is None or "pdb" not in str(sys.gettrace())


def test_backward_stops_where_backward_was_called_and_shows_the_forward_line(prompt):
    w = wf.tensor([0.0, 4.0], requires_grad=True)

    def step():
        y = w.sqrt()
        loss = y.sum()
        loss.backward()

    prompt("here.direction", "here.given[0].tolist()", "here.node.name()", "here.number", "c")
    with wf.debug.break_on(inf=True):
        step()
    said = prompt.said()
    assert f"infinity: sqrt, backward (test_stops.py:{line_of(step, 'sqrt')})" in said
    assert "y = w.sqrt()" in said and "-> loss.backward()" in said
    assert "'backward'" in said and "[1.0, 1.0]" in said and "SqrtBackward0" in said


def test_a_bad_gradient_that_is_summed_stops_once(prompt):
    w = wf.tensor([0.0, 4.0], requires_grad=True)
    prompt("c", "c", "c")
    with wf.debug.break_on(inf=True, nan=True) as stop:
        y = w * 1
        (y.sqrt() + y).sum().backward()
    assert stop.hits == 1


@pytest.mark.parametrize("conditions, lines", [
    ({"op": "tanh"}, ["tanh"]),
    ({"op": ("tanh", "log")}, ["tanh", "log"]),
    ({"op": "lin*"}, ["linear", "linear"]),
    ({"module": "encoder"}, ["linear", "tanh"]),
    ({"module": "encoder.*"}, ["linear", "tanh"]),
    ({"module": "encoder.1"}, ["tanh"]),
    ({"module": "Linear"}, ["linear", "linear"]),
    ({"module": ["head", "encoder.1"]}, ["tanh", "linear"]),
    ({"module": "*", "op": "log"}, ["log"]),
    ({"shape": (2, 2)}, ["linear"]),
    ({"shape": (None, 4), "op": "log"}, ["log"]),
    ({"shape": (..., 2)}, ["linear"]),
    ({"shape": ()}, ["sum", "mul"]),
    ({"shape": (7, ...)}, []),
    ({"nan": True}, []),
    ({"op": "tanh", "backward": True}, ["tanh"]),
    ({"module": "encoder", "backward": True}, ["tanh", "linear"]),
])  # fmt: skip
def test_what_can_be_asked_for(conditions, lines):
    net, seen = Net(), []
    with wf.debug.watch(**conditions, to=lambda node: seen.append(node.op)):
        y = net(wf.randn(2, 3))
        if conditions.get("backward"):
            y.backward(wf.ones(2, 2))
    assert seen == lines


def test_a_module_itself_can_be_asked_for():
    net, seen = Net(), []
    with wf.debug.watch(module=net.head, to=lambda node: seen.append((node.op, node.module))):
        net(wf.randn(2, 3))
    assert seen == [("linear", "head")]


def test_a_condition_of_ones_own_sees_node_and_value(prompt):
    seen = []

    def large(node, value):
        seen.append((node.op, node.direction, tuple(node.shape), node.dtype, tuple(value.shape), node.node is not None))
        return value.abs().max() > 100

    x = wf.ones(2, requires_grad=True)
    prompt("c", "c", "c")
    with wf.debug.break_if(large) as stop:
        with wf.no_grad():
            x * 2
        (x * 1000).sum().backward()
    assert stop.hits == 3  # the product, its sum, and the gradient of the product
    assert seen[0] == ("mul", "forward", (2,), wf.float32, (2,), False)
    assert seen[1][-1] is True
    assert ("mul", "backward", (2,), wf.float32, (2,), True) in seen
    assert wf.is_grad_enabled()


def test_directions_can_be_chosen():
    for backward, wanted in ((None, {"forward", "backward"}), (True, {"backward"}), (False, {"forward"})):
        seen = set()
        with wf.debug.watch(lambda n, v, seen=seen: seen.add(n.direction), backward=backward):
            (wf.ones(2, requires_grad=True) * 2).sum().backward()
        assert seen == wanted


def test_in_a_compiled_function_the_line_is_the_right_one(prompt):
    net = Net()

    def forward(x):
        y = net(x)
        return y.exp()

    compiled = wf.compile(forward)
    for _ in range(3):
        wanted = compiled(wf.ones(1, 3))
    prompt("p here.op, here.module", "u", "c")
    with wf.debug.break_on(op="tanh"):
        got = compiled(wf.ones(1, 3))
    said = prompt.said()
    assert "('tanh', 'encoder.1')" in said
    assert f"test_stops.py:{line_of(Net, 'self.encoder(x)')}" in said
    assert said.rstrip().endswith("-> y = net(x)\n(Pdb)")  # one up from Net.forward, with nothing of ours in between
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("make", ["map", "batching"])
def test_in_batched_code_the_line_and_the_example_are_the_right_ones(prompt, make):
    xs = [wf.full((3,), float(i + 1)) for i in range(20)]
    xs[17] = -xs[17]

    def score(x):
        y = x * 2
        return y.log().sum()

    prompt("here.example", "p x", "c")
    with wf.debug.break_on(nan=True) as stop:
        if make == "map":
            wf.map(score, xs)
        else:
            with wf.batching():
                [score(x) for x in xs]
    said = prompt.said()
    assert stop.hits == 1
    example = ", in example 17 of wf.map" if make == "map" else ""
    assert f"NaN: log, forward (test_stops.py:{line_of(score, 'log')}{example})" in said
    assert "tensor([-18., -18., -18.])" in said
    assert ("(Pdb) 17" in said) == (make == "map")


def test_one_example_can_be_asked_for():
    seen = []
    with wf.debug.watch(example=2, to=lambda node: seen.append((node.op, node.example))):
        wf.map(lambda x: (x * 2).sum(), [wf.ones(i + 1) for i in range(4)])
    assert seen == [("mul", 2), ("sum", 2)]


def test_backward_knows_the_example_and_the_module_of_forward():
    net, seen = Net(), []
    watch = wf.debug.watch(op="tanh", backward=True, to=lambda node: seen.append((node.module, node.example)))
    with watch:
        outputs = wf.map(lambda x: net(x).sum(), [wf.ones(3) for _ in range(3)])
        sum(outputs).backward()
    assert seen == [("encoder.1", 2), ("encoder.1", 1), ("encoder.1", 0)]


CHANGE_THE_HEAD = ("self.head = type(self.head)(4, 7)", "self.head.weight.data.zero_()",
                   "self.head.bias.data.fill_(3.0)")  # fmt: skip


def run_eager(net, x):
    return net(x)


def run_mapped(net, x):
    return wf.stack(wf.map(lambda row: net(row), list(x)))


@pytest.mark.parametrize("run", [run_eager, run_mapped])
def test_a_module_can_be_changed_at_the_prompt_and_the_run_goes_on(prompt, run):
    net = Net()
    prompt(*CHANGE_THE_HEAD, "here.stop.remove()", "c")
    with wf.debug.break_on(op="log"):
        got = run(net, wf.ones(2, 3))
    assert got.tolist() == [[3.0] * 7] * 2
    assert net.head.out_features == 7


def test_a_compiled_function_uses_the_module_that_was_changed_at_the_prompt(prompt):
    net = Net()
    compiled = wf.compile(lambda x: net(x))
    for _ in range(3):
        compiled(wf.ones(2, 3))
    prompt(*CHANGE_THE_HEAD, "c")
    with wf.debug.break_on(op="log"):
        assert compiled(wf.ones(2, 3)).tolist() == [[3.0] * 7] * 2
    for _ in range(3):
        assert compiled(wf.ones(2, 3)).tolist() == [[3.0] * 7] * 2
    with wf.no_grad():
        net.head.bias.fill_(4.0)
    assert compiled(wf.ones(2, 3)).tolist() == [[4.0] * 7] * 2


def test_a_stop_that_is_called_holds_until_it_is_removed(prompt):
    prompt("c", "c", "c")
    first, second = wf.debug.break_on(op="exp"), wf.debug.break_on(op="log")
    wf.ones(1).exp()
    first.remove()
    wf.ones(1).exp()
    wf.ones(1).log()
    second.remove()
    second.remove()
    wf.ones(1).log()
    assert (first.hits, second.hits) == (1, 1)


def test_a_stop_removed_inside_a_block_does_not_come_back(prompt):
    prompt("c", "c")
    stop = wf.debug.break_on(op="exp")
    with wf.no_grad():
        stop.remove()
    wf.ones(1).exp()
    assert stop.hits == 0 and STATE.mode is None


def test_a_stop_can_be_removed_at_the_prompt(prompt):
    prompt("here.stop.remove()", "c")
    stop = wf.debug.break_on(op="exp")
    wf.ones(1).exp()
    assert STATE.mode is None
    wf.ones(1).exp()
    assert stop.hits == 1


def test_a_stop_belongs_to_the_thread_that_set_it(prompt):
    prompt("c", "c")
    with wf.debug.break_on(op="exp") as stop:
        other = threading.Thread(target=lambda: wf.ones(1).exp())
        other.start()
        other.join()
        assert stop.hits == 0
    said = []

    def work():
        with wf.debug.watch(op="exp", to=lambda node: said.append(node.site.line)):
            wf.ones(1).exp()

    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert said == [line_of(work, "exp()")]


def test_python_breakpoint_is_honoured(prompt, monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    prompt("c")
    with wf.debug.break_on(op="exp") as stop:
        wf.ones(1).exp()
    assert stop.hits == 1 and prompt.left() == ["c"] and prompt.said() == ""


def test_another_debugger_is_called_from_the_users_line(prompt, monkeypatch):
    seen = []

    def hook():
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_filename, frame.f_lineno, frame.f_locals["value"], frame.f_locals["here"].op))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    def compute():
        value = 42
        return wf.ones(value).exp()

    with wf.debug.break_on(op="exp"):
        compute()
    assert seen == [(__file__, line_of(compute, "exp"), 42, "exp")]


def test_here_is_there_only_while_stopped(prompt):
    assert repr(wf.debug.here) == "nothing is stopped"
    with pytest.raises(OperationError, match="nothing is stopped"):
        wf.debug.here.value
    prompt("wf.debug.here.op", "c")
    with wf.debug.break_on(op="exp"):
        wf.ones(1).exp()
    assert "'exp'" in prompt.said() and repr(wf.debug.here) == "nothing is stopped"


def test_after_a_stop_an_interrupt_is_an_interrupt_again(prompt):
    before = signal.getsignal(signal.SIGINT)
    prompt("c")
    with wf.debug.break_on(op="exp"):
        wf.ones(1).exp()
    assert prompt.said() and signal.getsignal(signal.SIGINT) is before


def test_what_is_computed_at_the_prompt_does_not_stop(prompt):
    prompt("wf.ones(2).exp()", "c")
    with wf.debug.break_on(op="exp") as stop:
        wf.ones(1).exp()
    assert stop.hits == 1 and "2.7183, 2.7183" in prompt.said()


@pytest.mark.parametrize("call, error, words", [
    (lambda: wf.debug.break_on(), ArgumentError, "nothing to stop on"),
    (lambda: wf.debug.break_if(3), ArgumentTypeError, "not int"),
    (lambda: wf.debug.break_on(line="train.py"), ArgumentError, "train.py:31"),
    (lambda: wf.debug.break_on(line=31), ArgumentError, "train.py:31"),
    (lambda: wf.debug.break_on(shape=3), ArgumentError, "shape is a tuple"),
    (lambda: wf.debug.break_on(shape=(..., 1, ...)), ArgumentError, "once"),
    (lambda: wf.debug.break_on(example=-1), ArgumentError, "counted from 0"),
    (lambda: wf.debug.break_on(module=3), ArgumentTypeError, "encoder"),
    (lambda: wf.debug.break_on(op=3), ArgumentTypeError, "op is a name"),
    (lambda: wf.debug.break_on(nan=1), ArgumentTypeError, "nan is True or False, not 1"),
    (lambda: wf.debug.break_on(nan=True, backward="yes"), ArgumentTypeError, "backward is True, False or None"),
    (lambda: wf.debug.watch(times=-1), ArgumentError, "times"),
    (lambda: wf.debug.watch(to=3), ArgumentTypeError, "stream or a function"),
])  # fmt: skip
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
    assert STATE.mode is None


def test_an_op_that_does_not_exist_is_said_so():
    with pytest.warns(UserWarning, match="no op of Wayfare's is called 'sofmax'. Did you mean 'softmax'"):
        wf.debug.break_on(op="sofmax").remove()


def test_in_a_program_of_its_own(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""\
        import wayfare as wf

        def loss_of(x):
            scale = -1.0
            y = x * scale
            return y.log().sum()

        wf.debug.break_on(nan=True)
        print("loss", loss_of(wf.ones(3)).item())
        print("loss", loss_of(wf.ones(3)).item())
    """))
    done = subprocess.run([sys.executable, script], input="p scale, here.op\nhere.stop.remove()\nc\n", text=True,
                          capture_output=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "NaN: log, forward (train.py:6)" in done.stdout and "(-1.0, 'log')" in done.stdout
    assert done.stdout.count("loss nan") == 2
