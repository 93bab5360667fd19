"""The library's functions as data: read in one order, parted by file, and nothing breaks on odd sources."""

import ast
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from wayfare.cli.demo import corpus, syntax, words
from wayfare.cli.demo.corpus import Function, NoSourcesError, functions_of, source_files, split_by_file, without_repeats
from wayfare.cli.demo.syntax import Tree, build_tree, first_word
from wayfare.cli.demo.words import Sentence, Vocabulary, words_of


@pytest.fixture
def library(monkeypatch, tmp_path):
    """An empty folder in the place of the standard library."""
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def function(source, file="package/module.py"):
    node = ast.parse(source).body[0]
    return Function(Path(file), node.name, node)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_functions_come_in_the_order_of_the_source(library):
    (library / "b.py").write_text("class A:\n def f(self):\n  def g(): pass\n async def h(self): pass\n")
    (library / "a.py").write_text("try:\n def one(): pass\nexcept E:\n def two(): pass\nelse:\n def three(): pass\n")
    assert [f.name for f in functions_of(source_files())] == ["one", "two", "three", "f", "g", "h"]
    found = {f.name: f for f in functions_of(source_files())}
    assert found["f"].file == Path("b.py") and found["f"].package == ""


def test_tests_and_installed_packages_are_left_out(library):
    for folder in ("test", "site-packages", "pkg/tests", "pkg"):
        (library / folder).mkdir(parents=True, exist_ok=True)
        (library / folder / "m.py").write_text("")
    assert source_files() == [Path("pkg/m.py")]


def test_odd_sources_are_passed_over(library):
    (library / "broken.py").write_text("def f(:\n")
    (library / "bytes.py").write_bytes(b"\xff\xfe\x00")
    (library / "deep.py").write_text("def get_deep():\n    return " + "(" * 5000 + ")" * 5000)
    (library / "fine.py").write_text("def get_one(): return '\\d'\n")
    assert [f.name for f in functions_of(source_files())] == ["get_one"]


def test_a_deep_tree_is_left_out_and_its_neighbours_stay(library):
    body = "    if self.x:\n        return self.y[{n}]\n    return {n}\n"
    for file in range(6):
        for word in ("get", "set"):
            path = library / f"{word}{file}.py"
            path.write_text("".join(f"def {word}_{n}(self):\n{body.format(n=n)}" for n in range(5)))
        deep = " + ".join(["x"] * 2500)
        (library / f"deep{file}.py").write_text(f"def get_deep(x):\n    return {deep}\n")
    found = syntax.read_trees()
    # The constants differ only in their values, which are hidden: one tree is left of all these.
    assert [(tree.name, tree.tree.size) for tree in found] == [("get_0", 13)]


@pytest.mark.parametrize("read", [words.read_sentences, syntax.read_trees])
def test_no_sources_are_said_in_a_sentence(read, library):
    with pytest.raises(NoSourcesError, match="no Python sources"):
        read()
    (library / "alone.py").write_text("def get_one(): pass\n")
    with pytest.raises(NoSourcesError, match="too few"):
        read()


def test_a_folder_that_is_not_there_is_no_other_error(library, monkeypatch):
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(library / "python3.zip"))
    with pytest.raises(NoSourcesError, match=r"python3\.zip"):
        source_files()


# -- parting ---------------------------------------------------------------------------------------------------------


def made_up(count=400, files=40):
    draw = random.Random(1)
    return [
        Sentence(Path(f"{draw.randrange(files)}.py"), "f", draw.choice("abb"), (str(i),)) for i in range(count)
    ]  # fmt: skip


def test_no_file_is_in_both_parts_and_a_fifth_is_held_out():
    examples = made_up()
    train, held_out = split_by_file(examples, seed=0)
    assert sorted([*train, *held_out], key=str) == sorted(examples, key=str)
    assert not {e.file for e in train} & {e.file for e in held_out}
    totals, kept = Counter(e.label for e in examples), Counter(e.label for e in held_out)
    for label in "ab":
        assert 0.15 < kept[label] / totals[label] <= 0.3
    assert split_by_file(examples, seed=1)[1] != held_out


def test_one_file_cannot_be_parted():
    with pytest.raises(NoSourcesError, match="too few"):
        split_by_file(made_up(files=1), seed=0)


def test_repeats_keep_the_first():
    one, two = (Sentence(Path("a"), name, "x", ("same",)) for name in ("one", "two"))
    other = Sentence(Path("a"), "other", "x", ("other",))
    assert without_repeats([one, other, two]) == [one, other]


def test_real_data_does_not_leak(all_sentences, all_trees):
    for examples in (all_sentences, all_trees):
        train, held_out = split_by_file(examples, seed=0)
        assert not {e.file for e in train} & {e.file for e in held_out}
        assert not {e.content for e in train} & {e.content for e in held_out}
        assert {e.label for e in held_out} == {e.label for e in train}


# -- words -----------------------------------------------------------------------------------------------------------


def test_words_are_those_of_the_source_in_order():
    source = "def readHeader(self, file_name=DEFAULT):\n    self.HTTPServer.open(file_name, mode='r', x=1)\n"
    assert words_of(function(source)) == (
        "self", "file", "name", "default", "self", "http", "server", "open", "file", "name", "mode",
    )  # fmt: skip


def test_the_name_of_the_package_is_taken_out(all_sentences):
    assert words_of(function("def f(asyncio, loop): myasyncio", "asyncio/x.py")) == ("loop",)
    assert not [s for s in all_sentences for word in s.words if s.label in word]


def test_vocabulary_numbers_frequent_words():
    vocabulary = Vocabulary.of([["b", "a", "c"], ["a", "b"], ["a"]], at_least=2)
    assert vocabulary.words == ["<unknown>", "a", "b"]
    assert vocabulary.encode(["b", "c", "a", "new"]).tolist() == [2, 0, 1, 0]


# -- trees -----------------------------------------------------------------------------------------------------------


def test_first_words():
    names = ["get_name", "_getName", "getname", "isHidden", "__init__", "_", "HTTPServer", "x9"]
    assert [first_word(name) for name in names] == ["get", "get", "getname", "is", "", "", "", "x"]


def test_tree_hides_names_operators_are_kinds_and_docstrings_are_gone():
    source = "def get_it(self, secret):\n    'Says it.'\n    self.value = -secret + len(getattr(secret))\n"
    tree = build_tree(function(source).node, ["get"])
    assert list(tree.drawn()) == [
        "FunctionDef",
        "  arguments", "    arg self", "    arg",
        "  Assign", "    Attribute store", "      Name self",
        "    BinOp Add", "      UnaryOp USub", "        Name load",
        "      Call", "        Name len", "        Call", "          Name load", "          Name load",
    ]  # fmt: skip
    assert (tree.size, tree.depth) == (15, 6)
    assert [node.kind for node in tree][-1] == "FunctionDef"


def test_children_come_before_their_parent():
    leaf = Tree("leaf")
    assert [node.kind for node in Tree("root", (Tree("a", (leaf,)), Tree("b")))] == ["leaf", "a", "b", "root"]


def test_real_trees_are_of_the_size_they_should_be(all_trees):
    assert all(syntax.SMALLEST <= named.tree.size <= syntax.LARGEST for named in all_trees)
    answers = {named.label for named in all_trees}
    kinds = {node.kind for named in all_trees for node in named.tree if node.kind.startswith("Name ")}
    assert len(answers) == syntax.CLASSES
    assert not [kind for kind in kinds for answer in answers if answer in kind.removeprefix("Name ")]


# -- the same in every process ---------------------------------------------------------------------------------------

SMALL = """
from pathlib import Path
from wayfare.cli.demo import sequences, trees
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import Results
for demo, name, keep in ((sequences, "read_sentences", 12), (trees, "read_trees", 12)):
    read = getattr(demo, name)
    setattr(demo, name, lambda: read()[::keep])
    demo.run(Page(), Results(Path(name)), epochs=2, seed=3)
"""


def test_same_seed_same_losses_in_fresh_processes(tmp_path, environment):
    """Also where sets and dictionaries are hashed otherwise."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SMALL], stdout=subprocess.PIPE, text=True, encoding="utf-8", cwd=folder,
            env={**environment, "PYTHONHASHSEED": seed},
        )
        for seed, folder in zip("12", folders, strict=True)
    ]  # fmt: skip
    texts = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]

    def without_times(text):
        # An epoch's row ends with the time of an iteration and the memory that was used; the last stage tells times.
        lines = re.sub(r"\b[\d.]+ (µs|ms|s) in\b", "", text).splitlines()
        return [" ".join(line.split()[:7]) if line[:5].strip().isdigit() else line for line in lines]

    first, again = map(without_times, texts)
    assert sum(line[:5].strip().isdigit() for line in texts[0].splitlines()) >= 4
    assert first == again
