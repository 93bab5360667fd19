"""Arguments and captured tensors that lie in the same memory, one of which is written: replays do what Python does."""

import warnings

import pytest

import wayfare as wf

SECOND = {
    "transposed": lambda x: x.T,
    "a row": lambda x: x[0],
    "a column": lambda x: x[:, :1],
    "expanded": lambda x: x[:1].expand(3, 3),
    "the diagonal": lambda x: x.diagonal(),
    "one number": lambda x: x[1, 1],
    "all of it": lambda x: x[:],
    "itself": lambda x: x,
    "shifted": lambda x: x.view(-1)[3:].view(2, 3)[:1],
    "detached": lambda x: x.detach(),
}


def adds(a, b):
    a.add_(b)
    return a


def adds_and_multiplies(a, b):
    a.add_(b)
    return a * b


def reads_around(a, b):
    t = b * 2
    a.mul_(3)
    return t + b


def writes_the_second(a, b):
    t = a * 2
    b.mul_(3)
    return t + a, b * 1


def copies(a, b):
    p = wf.zeros(1)
    p = p + b
    b.mul_(2)
    a.add_(1)
    return p, a + b


def swaps(a, b):
    old = a.clone()
    a.copy_(b.expand_as(a) + 1)
    return old - a


PROGRAMS = [adds, adds_and_multiplies, reads_around, writes_the_second, copies, swaps]


def run(function, second, swapped, rounds=6):
    found = []
    for number in range(rounds):
        x = wf.arange(9.0).view(3, 3) + number
        pair = (x, SECOND[second](x))
        try:
            made = function(*reversed(pair)) if swapped else function(*pair)
        except RuntimeError as error:
            made = wf.zeros(0), type(error).__name__
        made = made if isinstance(made, tuple) else (made,)
        found.append([x.tolist(), *[t.tolist() if isinstance(t, wf.Tensor) else t for t in made]])
    return found


@pytest.mark.parametrize("check", [False, True, None])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("program", PROGRAMS)
def test_arguments(program, second, swapped, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert run(wf.compile(program, check=check), second, swapped) == run(program, second, swapped)


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("program", PROGRAMS)
def test_captured(program, second):
    results = []
    for compiled in (False, True):
        x = wf.arange(9.0).view(3, 3) + 1
        other = SECOND[second](x)

        def f(scale, x=x, other=other):
            try:
                return program(x, other), x * scale
            except RuntimeError as error:
                return type(error).__name__

        call = wf.compile(f, check=False) if compiled else f
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for number in range(5):
                with wf.no_grad():
                    x.copy_(wf.arange(9.0).view(3, 3) + number)
                found.append(str(call(wf.tensor(2.0))))
                found.append(x.tolist())
        results.append(found)
    assert results[0] == results[1]


def test_two_views_of_a_third_tensor():
    p = wf.zeros(3)

    def g(b, c):
        p.copy_(b)
        b.mul_(c)

    for first, second in ((slice(None), slice(None)), (slice(1, 4), slice(0, 3)), (slice(0, 3), slice(1, 4))):
        for check in (False, True, None):
            results = []
            for function in (g, wf.compile(g, check=check)):
                found = []
                for _ in range(5):
                    x = wf.arange(1.0, 4.0) if first == slice(None) else wf.arange(1.0, 5.0)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)
                        function(x[first], x[second])
                    found += [p.tolist(), x.tolist()]
                results.append(found)
            assert results[0] == results[1]


@pytest.mark.parametrize("second", ["a row", "all of it", "transposed"])
def test_gradients_of_views_beside_a_write(second):
    def g(a, b, w):
        y = (b * w).sum()
        with wf.no_grad():
            a.mul_(2)
        return y + (b.detach() * w).sum()

    results = []
    for function in (g, wf.compile(g, check=False)):
        found = []
        for _ in range(4):
            x = (wf.arange(9.0).view(3, 3) + 1).requires_grad_()
            with wf.no_grad():
                base = x.view(3, 3)
            b = SECOND[second](x)
            w = wf.tensor(2.0, requires_grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                try:
                    function(base, b, w).backward()
                    found.append([x.grad.tolist(), w.grad.tolist(), x.tolist()])
                except RuntimeError as error:
                    found.append(type(error).__name__)
        results.append(found)
    assert results[0] == results[1]
