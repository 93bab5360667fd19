"""Deep recursion: 10,000 levels by every usual way without a crash, limits put back, and cycles found."""

import enum
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import wayfare as wf
from wayfare.batch.fibers import recursion
from wayfare.batch.fibers.recursion import explain_recursion, room_for_recursion

greenlet = pytest.importorskip("greenlet").greenlet
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="stacks grow on Linux")
ROOT = Path(wf.__file__).parents[1]
DEPTH = 10_000


class Tree:
    """A node that must not be looked at."""

    def __init__(self, child=None):
        self.child = child

    def __eq__(self, other):
        raise AssertionError("compared")

    def __repr__(self):
        raise AssertionError("shown")

    __hash__ = None

    def depth(self):
        return 1 + (self.child.depth() if self.child is not None else 0)


def chain(depth):
    tree = None
    for _ in range(depth):
        tree = Tree(tree)
    return tree


def ring(size):
    last = tree = Tree()
    for _ in range(size - 1):
        tree = Tree(tree)
    last.child = tree
    return tree


def plain(tree):
    return 0 if tree is None else 1 + plain(tree.child)


def by_map(tree):
    return 0 if tree is None else 1 + sum(map(by_map, [tree.child]))


def by_comprehension(tree):
    return 0 if tree is None else 1 + sum([by_comprehension(t) for t in [tree.child]])


def by_generator(tree):
    return 0 if tree is None else 1 + sum(by_generator(t) for t in [tree.child])


def by_sorting(tree):
    seen = []
    if tree is not None:
        sorted([tree.child], key=lambda t: seen.append(by_sorting(t)) or 0)
    return 1 + seen[0] if seen else 0


class Walk(wf.nn.Module):
    """Visits children by calling itself as a module."""

    def forward(self, tree, *rest, **options):
        return 0 if tree is None else 1 + self(tree.child, *rest, **options)


class Property:
    """A depth that is a property."""

    def __init__(self, tree):
        self.tree = tree

    @property
    def depth(self):
        return 0 if self.tree is None else 1 + Property(self.tree.child).depth


WAYS = {
    "plain": plain,
    "map": by_map,
    "comprehension": by_comprehension,
    "generator": by_generator,
    "sorted": by_sorting,
    "module": Walk(),
    "method": lambda tree: tree.depth(),
    "property": lambda tree: Property(tree).depth,
}


def deep_ways(*names):
    """These ways of going down; those that go through C only where Python does not count such calls apart."""
    plain_python = {"plain", "comprehension", "method"}
    skip = pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python allows few calls through C, and no more")
    return pytest.mark.parametrize("way", [pytest.param(n, marks=() if n in plain_python else skip) for n in names])


def in_a_greenlet(function, *given):
    return greenlet(function).switch(*given)


@on_linux
@pytest.mark.parametrize("where", [lambda function, *given: function(*given), in_a_greenlet], ids=["here", "greenlet"])
@deep_ways(*WAYS)
def test_a_chain_of_ten_thousand(way, where):
    tree, way = chain(DEPTH), WAYS[way]
    with pytest.raises(RecursionError):
        where(way, tree)
    with room_for_recursion():
        assert where(way, tree) == DEPTH
    with pytest.raises(RecursionError):
        where(way, tree)


class Pausing:
    """The end of a tree: whoever gets here lets the others run first."""

    def __init__(self, turns, number):
        self.turns, self.number = turns, number

    @property
    def child(self):
        self.turns.append(self.number)
        greenlet.getcurrent().parent.switch()
        self.turns.append(self.number)
        return None


@on_linux
@deep_ways("plain", "map", "module")
def test_greenlets_that_take_turns_deep_down(way):
    """Each is left and taken up again at the bottom of its own recursion."""
    turns = []

    def example(number):
        tree = Pausing(turns, number)
        for _ in range(DEPTH + number):
            tree = Tree(tree)
        with room_for_recursion():
            return WAYS[way](tree)

    examples = [greenlet(example) for _ in range(3)]
    with room_for_recursion():
        for number, one in enumerate(examples):
            one.switch(number)
        assert [one.switch() for one in examples] == [DEPTH + 1, DEPTH + 2, DEPTH + 3]
    assert turns == [0, 1, 2, 0, 1, 2]
    with pytest.raises(RecursionError):
        WAYS[way](chain(DEPTH))


def limits():
    found = [sys.getrecursionlimit()]
    if sys.platform == "linux":
        import resource

        found.append(resource.getrlimit(resource.RLIMIT_STACK))
    return found


def test_limits_are_put_back():
    before = limits()
    block = room_for_recursion()
    with block:
        inside = limits()
        with block, room_for_recursion():
            assert limits() == inside
        assert limits() == inside
    assert limits() == before
    with pytest.raises(KeyError), room_for_recursion():
        raise KeyError("an error inside")
    assert limits() == before
    if sys.platform == "linux":
        assert inside[0] > 100_000 and inside[1][0] > before[1][0] and inside[1][1] == before[1][1]


def test_blocks_of_greenlets_that_end_in_another_order():
    before = limits()
    here = greenlet.getcurrent()

    def work():
        with room_for_recursion():
            here.switch()
            assert plain(chain(500)) == 500
        here.switch()
        return by_map(chain(200))

    first, second = greenlet(work), greenlet(work)
    first.switch()
    inside = limits()
    second.switch()
    first.switch()
    assert limits() == inside
    second.switch()
    assert limits() == before
    assert first.switch() == 200 and second.switch() == 200


def test_a_limit_somebody_sets_inside_stays():
    before = sys.getrecursionlimit()
    try:
        with room_for_recursion():
            sys.setrecursionlimit(before + 5)
        assert sys.getrecursionlimit() == before + 5
    finally:
        sys.setrecursionlimit(before)


def test_little_is_allowed_where_little_is_known(monkeypatch):
    before = limits()
    monkeypatch.setattr(recursion, "_HERE", recursion._Here())
    monkeypatch.setattr(recursion, "_stack", lambda: (0, 0))
    with room_for_recursion():
        assert limits() == before


def in_a_thread(function, size=0):
    found = []

    def work():
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    before = threading.stack_size(size)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return found[0]


@on_linux
@deep_ways("plain", "sorted", "module")
def test_another_thread_is_allowed_what_its_stack_holds(way):
    before = limits()

    def work():
        with room_for_recursion():
            assert limits()[1:] == before[1:]
            return WAYS[way](ring(3))

    assert isinstance(in_a_thread(work, 8 * 2**20), RecursionError)
    assert isinstance(in_a_thread(work, 64 * 2**20), RecursionError)

    def finite():
        with room_for_recursion():
            return WAYS[way](chain(DEPTH))

    assert in_a_thread(finite, 512 * 2**20) == DEPTH
    assert limits() == before


ENDLESS = """
from greenlet import greenlet
from tests.batch import test_recursion
from wayfare.batch.fibers.recursion import explain_recursion, room_for_recursion

def work(way):
    with room_for_recursion():
        try:
            way(test_recursion.ring(3))
        except RecursionError as error:
            return explain_recursion(error)

for name in ("plain", "sorted", "module"):
    print(name, greenlet(work).switch(test_recursion.WAYS[name]), sep=": ")
for name in ("map", "property"):
    print(name, work(test_recursion.WAYS[name]), sep=": ")
"""


@on_linux
def test_a_cyclic_structure_ends_in_an_error_and_not_in_a_crash():
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    # What the property is asked of is made anew each time: that the tree in it is an old one cannot be seen.
    assert "has no end" in said.pop("property")
    names = {"plain": "plain()", "map": "by_map()", "sorted": "by_sorting()", "module": "Walk.forward()"}
    assert said == {way: cyclic(name, "Tree", "3 steps") for way, name in names.items()}


# -- why it did not end


def error_of(function, *given):
    with pytest.raises(RecursionError) as caught:
        function(*given)
    return caught.value


def cyclic(name, kind, steps):
    return (
        f"{name} was called again with the very same {kind} while still working on it: the structure is cyclic "
        f"(it comes back to itself after {steps})"
    )


class Side(enum.Enum):
    """Says nothing about a structure."""

    LEFT = 0
    RIGHT = 1


def with_a_count(tree, depth=0):
    return with_a_count(tree.child, depth + 1)


def with_a_path(model, tree, path=(), *, side=Side.LEFT):
    other = Side.RIGHT if side is Side.LEFT else Side.LEFT
    return with_a_path(model, tree.child, [*path[-3:], len(path)], side=other)


def with_a_state(tree, state):
    return with_a_state(tree.child, state + 1)


def one(tree):
    return other_one(tree.child)


def other_one(tree):
    return one(tree.child)


def in_a_closure(tree):
    def look():
        return in_a_closure(tree.child)

    return look()


@pytest.mark.parametrize(
    ("function", "size", "said"),
    [
        (plain, 1, cyclic("plain()", "Tree", "1 step")),
        (plain, 2, cyclic("plain()", "Tree", "2 steps")),
        (plain, 300, cyclic("plain()", "Tree", "300 steps")),
        (by_comprehension, 3, cyclic("by_comprehension()", "Tree", "3 steps")),
        (by_generator, 3, cyclic("by_generator()", "Tree", "3 steps")),
        (WAYS["method"], 3, cyclic("Tree.depth()", "Tree", "3 steps")),
        (with_a_count, 7, cyclic("with_a_count()", "Tree", "7 steps")),
        (in_a_closure, 3, cyclic("in_a_closure()", "Tree", "3 steps")),
        (one, 6, cyclic("one()", "Tree", "3 steps")),
        (Walk(), 4, cyclic("Walk.forward()", "Tree", "4 steps")),
        (lambda tree: with_a_state(tree, wf.zeros(1)), 5, cyclic("with_a_state()", "Tree", "5 steps")),
        (lambda tree: with_a_path(Walk(), tree), 5, cyclic("with_a_path()", "Tree", "5 steps")),
    ],
)
def test_a_cycle_is_explained(function, size, said):
    assert explain_recursion(error_of(function, ring(size))) == said


def test_lists_and_dicts_can_be_cyclic():
    def visit(node):
        for child in node:
            visit(child)

    node = [[]]
    node[0].append(node)
    assert explain_recursion(error_of(visit, node)) == cyclic("visit()", "list", "2 steps")


def test_only_deep():
    for function in (plain, Walk(), with_a_count, lambda tree: with_a_path(Walk(), tree)):
        said = explain_recursion(error_of(function, chain(DEPTH)))
        assert "called itself" in said and "deeper than that" in said and "cyclic" not in said


def test_a_count_that_never_ends_is_no_cycle():
    def count(table, n):
        return count(table, n + 1)

    assert "has no end" in explain_recursion(error_of(count, Tree(), 0))


def test_nothing_recurs():
    try:
        raise RecursionError("said by somebody")
    except RecursionError as error:
        assert explain_recursion(error) is None
    assert explain_recursion(RecursionError("never raised")) is None


@on_linux
def test_very_many_frames():
    with room_for_recursion():
        error = error_of(plain, ring(1000))
        said = explain_recursion(error)
    assert said == cyclic("plain()", "Tree", "1,000 steps")
