"""How tensors print, side by side: PyTorch's text to the letter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree

NAN, INF = float("nan"), float("inf")

TENSORS = {
    "number": lambda m: m.tensor(1.5),
    "int": lambda m: m.tensor(3),
    "bool": lambda m: m.tensor(True),
    "whole floats": lambda m: m.tensor([1.0, 2.0]),
    "floats": lambda m: m.tensor([1.5, 2.25, -3.125]),
    "ints": lambda m: m.tensor([1, -20, 300]),
    "bools": lambda m: m.tensor([True, False]),
    "uint8": lambda m: m.tensor([1, 200], dtype=m.uint8),
    "int8": lambda m: m.tensor([1, -100], dtype=m.int8),
    "int16": lambda m: m.tensor([1, -100], dtype=m.int16),
    "int32": lambda m: m.tensor([1, -100], dtype=m.int32),
    "float16": lambda m: m.tensor([1.0, 0.1], dtype=m.float16),
    "float64": lambda m: m.tensor([1.0, 0.1], dtype=m.float64),
    "empty": lambda m: m.tensor([]),
    "empty of a shape": lambda m: m.zeros(0, 3),
    "empty ints": lambda m: m.zeros(0, dtype=m.int64),
    "empty int32": lambda m: m.zeros(2, 0, dtype=m.int32),
    "matrix": lambda m: m.tensor([[1.0, 2.0], [3.0, 4.5]]),
    "three dims": lambda m: m.arange(24).reshape(2, 3, 4),
    "four dims": lambda m: m.arange(16.0).reshape(2, 2, 2, 2),
    "negative": lambda m: m.tensor([-1.0, 2.0]),
    "nan": lambda m: m.tensor([1.0, NAN]),
    "nan alone": lambda m: m.tensor(NAN),
    "infinities": lambda m: m.tensor([INF, -INF, 1.5]),
    "only nan and inf": lambda m: m.tensor([NAN, INF, -INF]),
    "small": lambda m: m.tensor([1e-5, 1.0]),
    "very small": lambda m: m.tensor([1e-10, 2e-10]),
    "tiny difference": lambda m: m.tensor([1.00001, 1.0]),
    "large": lambda m: m.tensor([1e8, 1.0]),
    "large whole": lambda m: m.tensor([100000.0, 2.0]),
    "very large whole": lambda m: m.tensor([1e9, 2e9]),
    "wide range": lambda m: m.tensor([0.0001, 1000.0]),
    "wider range": lambda m: m.tensor([0.00001, 100000.0]),
    "zeros": lambda m: m.zeros(2, 2),
    "negative zero": lambda m: m.tensor([-0.0, 0.0]),
    "thirds": lambda m: m.arange(6.0) / 3,
    "long row": lambda m: m.arange(100),
    "long row of floats": lambda m: m.arange(100.0) / 7,
    "matrix of long rows": lambda m: m.arange(60.0).reshape(2, 30) / 7,
    "one column": lambda m: m.arange(5.0).reshape(5, 1),
    "a thousand": lambda m: m.arange(1000),
    "requires grad": lambda m: m.tensor([1.0, 2.0], requires_grad=True),
    "requires grad and dtype": lambda m: m.tensor([1.0], dtype=m.float64, requires_grad=True),
    "grad_fn": lambda m: m.tensor([1.0, 2.0], requires_grad=True) * 2,
    "grad_fn and dtype": lambda m: m.ones(2, dtype=m.float64, requires_grad=True) * 2,
    "grad_fn of a number": lambda m: m.ones(2, requires_grad=True).sum(),
    "grad_fn on a matrix": lambda m: m.ones(2, 2, requires_grad=True) @ m.ones(2, 2),
    "detached": lambda m: (m.ones(2, requires_grad=True) * 2).detach(),
    "long with grad_fn": lambda m: m.arange(30.0, requires_grad=True) * 1.5,
    "bool matrix": lambda m: m.eye(3) > 0,
    "transposed": lambda m: m.arange(6).reshape(2, 3).t(),
    "format": lambda m: [f"{m.tensor(1.23456):.2f}", f"{m.tensor(7)}", f"{m.tensor([1.5])}"],
    "str": lambda m: str(m.tensor([1.5])),
    "size": lambda m: str(list(m.zeros(2, 3).shape)),
}


def _text(m, value):
    """What prints, with dtypes under no module's name: float64 for torch.float64 and wayfare.float64."""
    return repr(value).replace(f"dtype={m.__name__}.", "dtype=")


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_repr(make):
    agree(lambda m: _text(m, make(m)))


_GRADIENT_NODES = (
    "add sub mul div pow neg exp log sin cos tanh sigmoid relu sqrt abs sum mean prod amax matmul "
    "mm reshape view transpose permute squeeze unsqueeze expand cat stack index_select gather where clone "
    "softmax log_softmax cumsum clamp maximum std var norm flatten select slice"
)


def _make(m, name):
    x = m.ones(2, 2, requires_grad=True)
    other = {"add": 1, "sub": 1, "mul": 2, "div": 2, "pow": 2, "matmul": x, "mm": x, "maximum": x.detach()}
    special = {
        "reshape": lambda: (x * 1).t().reshape(4),
        "view": lambda: x.view(4),
        "transpose": lambda: x.transpose(0, 1),
        "permute": lambda: x.permute(1, 0),
        "unsqueeze": lambda: x.unsqueeze(0),
        "expand": lambda: x.expand(3, 2, 2),
        "cat": lambda: m.cat([x, x]),
        "stack": lambda: m.stack([x, x]),
        "index_select": lambda: x.index_select(0, m.tensor([0])),
        "gather": lambda: x.gather(0, m.tensor([[0, 0]])),
        "where": lambda: m.where(x > 0, x, x),
        "softmax": lambda: m.softmax(x, 0),
        "log_softmax": lambda: m.log_softmax(x, 0),
        "cumsum": lambda: x.cumsum(0),
        "clamp": lambda: x.clamp(0, 1),
        "select": lambda: x[0],
        "slice": lambda: x[0:1],
    }
    if name in special:
        return special[name]()
    return getattr(m, name)(x, other[name]) if name in other else getattr(m, name)(x)


@pytest.mark.parametrize("name", _GRADIENT_NODES.split())
def test_name_of_the_gradient_node(name):
    # The digit at the end counts PyTorch's overloads of one function and means nothing here.
    agree(lambda m: _make(m, name).grad_fn.name().rstrip("0123456789"))


def test_print_options():
    def snippet(m):
        try:
            m.set_printoptions(precision=2)
            return repr(m.tensor([1.23456, 2.0]))
        finally:
            m.set_printoptions(profile="default")

    agree(snippet)


def test_large_tensors_are_shortened_alike():
    """Wayfare adds statistics after the values of a large tensor; the values print as in PyTorch."""

    def values(m, tensor):
        return repr(tensor).partition("\n#")[0]

    agree(lambda m: values(m, m.arange(2000)))
    agree(lambda m: values(m, m.arange(10_000.0).reshape(100, 100) / 3))
