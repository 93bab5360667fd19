"""Modules of the user's as one call of an example: only where `forward` does nothing but compute, and never stale."""

import sys

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch.analysis.purity import only_computes

LOG = []
SCALE = 2.0


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.factor = 1.0

    def gates(self, x):
        return [part.sigmoid() for part in self.inner(x).chunk(2, -1)]

    def forward(self, x, h=None):
        a, b = self.gates(x)
        return (a * b + (x if h is None else h)) * SCALE * self.factor


def made(function, count=4, **options):
    wf.manual_seed(0)
    xs = [wf.randn(3) for _ in range(count)]
    return wf.map(function, xs, **options)


def names():
    return {kind.name for kind in wf.batching.last().kinds}


def same(one, other):
    for a, b in zip(one, other, strict=True):
        wf.testing.assert_close(a, b)


def test_a_module_that_only_computes_is_one_call():
    cell = Cell()
    results = made(lambda x: cell(x, cell(x)))
    stats = wf.batching.last()
    assert names() == {"Cell"} and stats.nodes == 8 and stats.groups == 2
    same(results, made(lambda x: cell(x, cell(x)), batch=False))


def test_gradients_of_such_calls():
    cell = Cell()
    found = []
    for batch in (True, False):
        cell.zero_grad()
        sum(h.sum() for h in made(lambda x: cell(x, cell(x)), batch=batch)).backward()
        found.append([p.grad.clone() for p in cell.parameters()])
    same(*found)


class Prints(Cell):
    def forward(self, x):
        print("seen")
        return super().forward(x)


class Counts(Cell):
    def forward(self, x):
        self.factor = self.factor + 1
        return x * self.factor


class Logs(Cell):
    def forward(self, x):
        LOG.append(x)
        return x * 2


class Writes(Cell):
    def forward(self, x):
        y = x * 1
        y.add_(1)
        return y


class Sets(Cell):
    def forward(self, x):
        y = x * 1
        y[0] = 5
        return y


class CallsOthers(Cell):
    def forward(self, x):
        return helper(x)


def helper(x):
    LOG.append(1)
    return x


class Holds(Cell):
    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def forward(self, x):
        return self.thing.apply(x)


class Thing:
    def apply(self, x):
        LOG.append(x)
        return x


class Nested(Cell):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x)


class Yields(Cell):
    def forward(self, x):
        yield x


class Random(Cell):
    def forward(self, x):
        import random

        return x * random.random()


@pytest.mark.parametrize("module", [
    Prints(), Counts(), Logs(), Writes(), Sets(), CallsOthers(), Holds(Thing()), Nested(Logs()), Yields(), Random(),
], ids=lambda module: type(module).__name__)  # fmt: skip
def test_what_does_more_is_seen(module):
    assert not only_computes(module)


@pytest.mark.parametrize("module", [
    Cell(), Nested(Cell()), Nested(nn.LSTMCell(3, 3)), nn.Sequential(Cell(), nn.ReLU()),
], ids=["methods", "nested", "library", "sequential"])  # fmt: skip
def test_what_only_computes_is_seen(module):
    assert only_computes(module)


def test_what_does_more_runs_for_every_example(capsys):
    module = Prints()
    made(module)
    assert capsys.readouterr().out == "seen\n" * 4
    counts = Counts()
    same(made(counts), [x * (i + 2) for i, x in enumerate(made(lambda x: x))])
    assert counts.factor == 5


@pytest.mark.parametrize("change", ["attribute", "global", "weight", "frozen", "training"])
def test_changes_between_calls_are_seen(change, monkeypatch):
    def run(batch):
        wf.manual_seed(3)
        cell = nn.Sequential(Cell(), nn.Dropout(0.5)) if change == "training" else Cell()
        cell.eval()

        def function(x):
            first = cell(x)
            if change == "attribute":
                cell.factor = 3.0
            elif change == "global":
                monkeypatch.setattr(sys.modules[__name__], "SCALE", SCALE + 1)
            elif change == "weight":
                cell.inner.weight = nn.Parameter(wf.ones(6, 3))
            elif change == "frozen":
                cell.inner.requires_grad_(False)
            else:
                cell.train()
            return first, cell(x)

        try:
            return made(function, 1, batch=batch)  # What examples change behind each other has no order.
        finally:
            monkeypatch.undo()

    for mine, other in zip(run(True), run(False), strict=True):
        same(mine, other)
        assert [t.requires_grad for t in mine] == [t.requires_grad for t in other]


def test_looking_at_values_takes_the_module_apart():
    class Looks(Cell):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x * 3

    module = Looks()
    same(made(module, 8), made(module, 8, batch=False))
    assert "mul" in names()


class Reader(nn.Module):
    """Goes over its input, so that it has as many steps as that has rows."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, rows):
        h = wf.zeros(3)
        for row in rows:
            h = self.cell(row, h)
        return h


def test_a_module_that_goes_over_its_input_shares_its_steps_with_other_lengths():
    wf.manual_seed(0)
    for lengths in ((3, 5, 2, 5, 3), (3, 80, 80, 81, 82)):  # Those of 80 are longer than one call may be.
        reader, sequences = Reader(), [wf.randn(n, 3) for n in lengths]
        for _ in range(2):  # The first example that comes is not known to be one of many lengths.
            found = wf.map(reader, sequences)
            same(found, [reader(rows) for rows in sequences])
        (kind,) = wf.batching.last().kinds
        assert (kind.name, kind.nodes, kind.groups) == ("GRUCell", sum(lengths), 1)


class Folder(nn.Module):
    """Follows a tree of numbers."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 3)
        self.cell = nn.BinaryTreeLSTMCell(3, 3)

    def forward(self, tree):
        return self.encode(tree)[0]

    def encode(self, tree):
        if isinstance(tree, int):
            return self.cell.leaf(self.words(wf.tensor(tree)))
        return self.cell(*map(self.encode, tree))


@pytest.mark.parametrize("trees", [
    [((0, 1), 2), (3, (4, (0, 1))), (((2, 2), 1), (0, 3)), (4, 4)],
    [(n, n + 1) for n in range(12)],
], ids=["other shapes", "other numbers"])  # fmt: skip
def test_a_module_that_follows_a_tree_shares_its_steps_with_other_trees(trees):
    folder = Folder()
    for _ in range(2):
        same(wf.map(folder, trees), [folder(tree) for tree in trees])
    assert names() == {"Embedding", "BinaryTreeLSTMCell.leaf", "BinaryTreeLSTMCell"}


def test_a_module_with_an_optional_state_stays_one_call():
    class State(Cell):
        def forward(self, x, h=None):
            return self.inner(x).chunk(2, -1)[0] + (wf.zeros(3) if h is None else h.tanh())

    module, xs = State(), [wf.randn(3) for _ in range(4)]
    same(wf.map(lambda x: module(x, module(x)), xs), [module(x, module(x)) for x in xs])
    assert names() == {"State"}


def test_a_module_of_equal_steps_for_all_sizes_stays_one_call():
    class Pools(Cell):
        def forward(self, rows):
            return self.inner(rows).sigmoid().mean(0)

    pools, sequences = Pools(), [wf.randn(n, 3) for n in (3, 5, 2, 5, 3)]
    same(wf.map(pools, sequences), [pools(rows) for rows in sequences])
    assert names() == {"Pools"} and wf.batching.last().groups == 1


def test_a_module_that_was_changed_is_not_taken_for_one_that_goes_over_its_input():
    class Times(Cell):
        def forward(self, rows):
            for _ in range(self.times):
                rows = rows.tanh()
            return rows.mean(0)

    module = Times()
    for module.times, size in ((1, 2), (2, 3), (3, 4)):
        sequences = [wf.randn(size, 3) for _ in range(3)]
        same(wf.map(module, sequences), [module(rows) for rows in sequences])
        assert names() == {"Times"}


def test_a_debugger_sees_every_line():
    cell, lines = Cell(), []

    def trace(frame, event, arg):
        if frame.f_code is Cell.forward.__code__ and event == "call":
            lines.append(1)
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        made(cell)
    finally:
        sys.settrace(before)
    assert len(lines) == 4
    made(cell)
    assert names() == {"Cell"}


def test_a_wrong_shape_is_told_as_in_plain_python():
    cell = Cell()
    with pytest.raises(RuntimeError, match=r"linear.*example 0") as caught:
        wf.map(cell, [wf.randn(4)])
    assert "features" in str(caught.value)
