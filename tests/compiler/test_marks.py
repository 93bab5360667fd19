"""New tensors with a mark, as parameters and those of inference mode, have it at every call."""

import pytest

import wayfare as wf
from tests.compiler.checks import numbers
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")


def in_inference(x):
    with wf.inference_mode():
        return x * 2


def view_in_inference(x):
    with wf.inference_mode():
        return (x * 2).reshape(2, 2)[0]


def out_of_inference(x):
    with wf.inference_mode(False):
        return x * 2


def marks(t):
    return isinstance(t, nn.Parameter), isinstance(t, nn.Buffer), t.is_inference(), t.requires_grad, t.is_leaf


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("function", [
    lambda x: nn.Parameter(x * 2),
    lambda x: nn.Parameter(x),
    lambda x: nn.Buffer(x * 2),
    lambda x: [x + 1, {"a": nn.Parameter(x * 2, requires_grad=False)}][1]["a"],
    in_inference, view_in_inference, out_of_inference, lambda x: x * 2, lambda x: x.reshape(2, 2)[0],
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:compile")
def test_marks_of_results(function, inference):
    compiled = wf.compile(function)
    with wf.inference_mode(inference):
        for call in range(5):
            x = numbers(4, seed=call)
            assert marks(compiled(x)) == marks(function(x))


@pytest.mark.filterwarnings("ignore:compile")
def test_marks_of_what_is_assigned():
    class Keeper:
        last = None

    keeper = Keeper()

    @wf.compile
    def f(x):
        keeper.last = nn.Parameter(x * 2)
        return x + 1

    for call in range(5):
        f(numbers(4, seed=call))
        assert isinstance(keeper.last, nn.Parameter)


def test_the_reason_is_told():
    f = wf.compile(lambda x: nn.Parameter(x * 2))
    with pytest.warns(UserWarning, match=r"returns or assigns a new nn.Parameter.*test_marks.py"):
        for call in range(4):
            f(numbers(4, seed=call))
