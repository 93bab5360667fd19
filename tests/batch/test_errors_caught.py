"""Errors that hang on values, where the user's code may catch them: each is caught where the loop catches it."""

import contextlib
import threading

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.nn import functional as F

table = nn.Embedding(3, 2)


@contextlib.contextmanager
def skip():
    try:
        yield
    except IndexError:
        pass


@contextlib.contextmanager
def translated():
    try:
        yield
    except IndexError as error:
        raise LookupError("unknown") from error


class Skip:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, IndexError)


class Holder:
    def __init__(self):
        self.skip = Skip()
        self.lock = threading.RLock()

    def known(self, i):
        with self.skip:
            table(wf.tensor(i))
            return "known"
        return "unknown"


holder = Holder()


def by_generator(i):
    with skip():
        table(wf.tensor(i))
        return "known"
    return "unknown"


def by_class(i):
    with Skip():
        table(wf.tensor(i))
        return "known"
    return "unknown"


def by_two(i):
    with wf.no_grad(), Skip(), holder.lock:
        table(wf.tensor(i))
        return "known"
    return "unknown"


def by_local(i):
    manager = skip()
    with manager:
        table(wf.tensor(i))
        return "known"
    return "unknown"


def by_translating(i):
    try:
        with translated():
            return table(wf.tensor(i)).shape
    except LookupError as error:
        return str(error)[:3]


def and_read(i):
    r = "unknown"
    with skip():
        r = table(wf.tensor(i))
        r = r.tolist()
    return len(r)


def and_read_by_class(i):
    r = "unknown"
    with Skip():
        r = table(wf.tensor(i))
        r = r.tolist()
    return len(r)


def with_inside_try(i):
    try:
        with wf.no_grad(), holder.lock:
            return table(wf.tensor(i)).shape
    except IndexError:
        return "unknown"


def block_inside_try(i):
    try:
        with wf.batching():
            table(wf.tensor(i))
    except IndexError:
        return "unknown"
    return "known"


def loop_inside_try(i):
    try:
        for number in (i, i):
            with wf.no_grad():
                table(wf.tensor(number))
        return [table(wf.tensor(n)).shape for n in (i,)]
    except IndexError:
        return "unknown"


def cross_entropy(i):
    try:
        return F.cross_entropy(wf.zeros(1, 3), wf.tensor([i])).shape
    except IndexError:
        return "unknown"


def cross_entropy_of_one(i):
    try:
        return F.cross_entropy(wf.zeros(3), wf.tensor(i)).shape
    except IndexError:
        return "unknown"


def nll_loss(i):
    try:
        return F.nll_loss(wf.zeros(1, 3), wf.tensor([i])).shape
    except IndexError:
        return "unknown"


def cross_entropy_module(i):
    try:
        return nn.CrossEntropyLoss()(wf.zeros(1, 3), wf.tensor([i])).shape
    except IndexError:
        return "unknown"


def nll_loss_module(i):
    try:
        return nn.NLLLoss()(wf.zeros(1, 3), wf.tensor([i])).shape
    except IndexError:
        return "unknown"


def least_squares(i):
    try:
        return wf.linalg.lstsq(wf.full((2, 2), float("nan") if i > 2 else 1.0), wf.ones(2, 1))[0].shape
    except RuntimeError:
        return "failed"


class Try(nn.Module):
    def forward(self, i):
        try:
            return table(i)
        except IndexError:
            return wf.zeros(2)


between = nn.Sequential(Try(), nn.Identity())


def a_library_module_between(i):
    return between(wf.tensor(i)).shape


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(Try()))

    def forward(self, i):
        return self.inner(i) * 2


outer = Outer()


def a_module_of_modules(i):
    return outer(wf.tensor(i)).shape


@pytest.mark.parametrize("function", [
    by_generator, by_class, by_two, by_local, by_translating, holder.known, and_read, and_read_by_class,
    with_inside_try, block_inside_try, loop_inside_try, cross_entropy, cross_entropy_of_one, nll_loss,
    cross_entropy_module, nll_loss_module, least_squares, a_library_module_between, a_module_of_modules,
], ids=lambda f: f.__name__)  # fmt: skip
@pytest.mark.parametrize("batch", [None, True])
def test_an_error_is_caught_where_the_loop_catches_it(function, batch):
    numbers = (0, 5, 1)
    assert wf.map(function, numbers, batch=batch) == [function(i) for i in numbers]


def test_blocks_that_catch_nothing_do_not_keep_calls_apart():
    def function(i):
        with wf.no_grad(), holder.lock:
            return table(wf.tensor(i))

    wf.map(function, range(3), batch=True)
    assert wf.batching.last().groups == 1


@pytest.mark.parametrize("error", [RecursionError("too deep for me"), MemoryError("mine")], ids=repr)
@pytest.mark.parametrize("batch", [True, False, None])
def test_errors_that_the_user_raises_keep_their_text(error, batch):
    def f(x, depth=0):
        if depth == 40:
            raise error
        return f(x, depth + 1)

    with pytest.raises(type(error), match=error.args[0]):
        wf.map(f, [wf.ones(2), wf.ones(2)], batch=batch)


WRONG = {"name": lambda h: h.no_such_thing, "+": lambda h: h + [1.0], "call": lambda h: h()}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_errors_of_python_itself_name_tensors_as_in_the_loop(wrong):
    said = []
    for batch in (False, True):
        with pytest.raises((AttributeError, TypeError)) as caught:
            wf.map(lambda x: wrong(x * 2), [wf.ones(2), wf.zeros(2)], batch=batch)
        said.append(str(caught.value))
    assert "'Tensor'" in said[0] and said[0] == said[1]
