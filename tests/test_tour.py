"""The pages for engineers name real things: every file and function of docs/design exists, and every layer has a page.

In `docs/design/` a function is named by its file, an arrow and its name: `wayfare/core/dispatch.py` → `apply2`.
"""

import importlib
import re
from pathlib import Path

import pytest

from tests.test_layers import LAYERS

ROOT = Path(__file__).resolve().parents[1]
DESIGN = ROOT / "docs" / "design"
PAGES = sorted(DESIGN.glob("*.md"))

# The layers that share the page library.md, which has a heading for each.
LIBRARY = {"ragged", "io", "optim", "data", "train", "compat", "cli"}

NAMED = re.compile(r"`(?P<file>wayfare/[\w/]+\.py)`\s+→\s+(?P<names>`[\w.]+`(?:,\s+`[\w.]+`)*)")
FILE = re.compile(r"`([\w/]+\.py)`")
# A row of a table "type, file, what it is": `Step`, `Value` | `ir/graph.py` | …
TYPES = re.compile(r"^\| (?P<names>`\w+`(?:, `\w+`)*) \| (?P<files>`[\w/]+\.py`(?:, `[\w/]+\.py`)*) \|")


def named_functions(text):
    """(line, file, function) for each function a page names; a name may stand on the line after its file."""
    for found in NAMED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        for name in re.findall(r"`([\w.]+)`", found["names"]):
            yield line, found["file"], name


def is_there(module, name):
    """Whether a module has this function, class or method."""
    first, *rest = name.split(".")
    owner = vars(module).get(first)
    for part in rest:
        # Not getattr: every class has a `__call__`, that of `type`.
        owner = next((vars(base)[part] for base in getattr(owner, "__mro__", ()) if part in vars(base)), None)
    return owner is not None


def problems(text, page):
    """One sentence for each name of a page that is not there."""
    for line, file, name in named_functions(text):
        if not (ROOT / file).is_file():
            yield f"{page}:{line}: there is no file {file}"
            continue
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        if not is_there(module, name):
            yield f"{page}:{line}: {file} has no {name}"


def missing_files(text, page):
    """One sentence for each file that is not there: from the root, from wayfare/, or in the page's own room."""
    room = Path(page).stem
    for number, line in enumerate(text.splitlines(), start=1):
        for name in FILE.findall(line):
            if not any((place / name).is_file() for place in (ROOT, ROOT / "wayfare", ROOT / "wayfare" / room)):
                yield f"{page}:{number}: there is no file {name}"


def missing_types(text, page):
    """One sentence for each type in a table of a page that is not defined in a file beside it."""
    for number, line in enumerate(text.splitlines(), start=1):
        row = TYPES.match(line)
        if row is None:
            continue
        paths = [ROOT / "wayfare" / name for name in FILE.findall(row["files"])]
        source = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
        for name in re.findall(r"`(\w+)`", row["names"]):
            if re.search(rf"^(?:class|def) {name}\b|^{name}\b.*=", source, re.MULTILINE) is None:
                yield f"{page}:{number}: {row['files']} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_on_a_page_exists(page):
    text = page.read_text(encoding="utf-8")
    found = [*problems(text, page.name), *missing_files(text, page.name), *missing_types(text, page.name)]
    assert not found, "\n".join(found)


def test_the_tour_names_many_functions():
    text = (DESIGN / "tour.md").read_text(encoding="utf-8")
    assert len(list(named_functions(text))) > 80
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "Follow `x * w`", "Follow a compiled step", "Follow a map", "Follow an export"
    ]  # fmt: skip


def test_every_layer_has_a_page():
    library = (DESIGN / "library.md").read_text(encoding="utf-8")
    index = (DESIGN / "README.md").read_text(encoding="utf-8")
    for layer in set(LAYERS) - {"__init__"}:
        if layer in LIBRARY:
            assert f"\n## {layer}" in library, f"docs/design/library.md has no section '{layer}'"
        else:
            assert (DESIGN / f"{layer}.md").is_file(), f"there is no docs/design/{layer}.md"
            assert f"({layer}.md)" in index, f"docs/design/README.md does not name {layer}.md"


def test_every_page_is_in_the_index():
    index = (DESIGN / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index]
    assert not missing


# The checker itself.


@pytest.mark.parametrize(
    "text, found",
    [
        ("`wayfare/core/dispatch.py` → `apply2`, `apply1`: runs", []),
        ("`wayfare/codegen/runtime/kernel.py` → `Kernel.__call__`", []),
        ("a\n`wayfare/core/dispatch.py` →\n`apply9`", ["p.md:2: wayfare/core/dispatch.py has no apply9"]),
        ("`wayfare/core/op.py` → `Op.packer`, `Op.nothing`", ["p.md:1: wayfare/core/op.py has no Op.nothing"]),
        ("`wayfare/core/spec.py` → `Spec.__call__`", ["p.md:1: wayfare/core/spec.py has no Spec.__call__"]),
        ("`wayfare/core/nowhere.py` → `f`", ["p.md:1: there is no file wayfare/core/nowhere.py"]),
    ],
)
def test_a_name_that_is_not_there_is_found(text, found):
    assert list(problems(text, "p.md")) == found


def test_a_file_that_is_not_there_is_found():
    assert list(missing_files("`dispatch.py`, `ir/graph.py`, `tests/test_docs.py`", "core.md")) == []
    assert list(missing_files("\n`eager.py`", "core.md")) == ["core.md:2: there is no file eager.py"]


def test_a_type_that_is_not_there_is_found():
    assert list(missing_types("| `Op`, `joint` | `core/op.py` | the record |", "p.md")) == []
    assert list(missing_types("| `Node`, `Op` | `core/op.py` | x |", "p.md")) == ["p.md:1: `core/op.py` has no Node"]
