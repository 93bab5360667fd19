"""The package is a pile of layers: a module imports from its own layer and from those below it, never up.

Imports are read from the source, wherever they stand: one inside a function hides a cycle, it does not
remove it. Only what is under `if TYPE_CHECKING:` is exempt, because it never runs.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "wayfare"
MAX_LINES = 450

# From the ground up. A layer is a folder of wayfare/. "__init__" is the package's own face, with the modules that lie
# flat beside it; the folders above it are written against the public names. `__main__` is part of the command line.
LAYERS = [
    "core",
    "codegen",
    "ir",
    "ops",
    "autograd",
    "api",
    "nn",
    "compiler",
    "batch",
    "__init__",
    "ragged",
    "io",
    "optim",
    "exporters",
    "data",
    "distributed",
    "see",
    "train",
    "compat",
    "cli",
]
FLAT = {"func": "__init__", "__main__": "cli"}


def module_name(path, root=ROOT):
    """wayfare/ops/reduce.py → wayfare.ops.reduce, and a package's __init__.py → the package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module, layers):
    """The layer a module of the package belongs to: the most particular one, or what is missing."""
    parts = module.split(".")[1:] or ["__init__"]
    parts[0] = FLAT.get(parts[0], parts[0])
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in layers), parts[0])


def is_type_checking(test):
    """Whether an `if` asks for TYPE_CHECKING."""
    return (isinstance(test, ast.Name) and test.id.lstrip("_") == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def statements(tree):
    """Every node of a tree but those that only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and is_type_checking(node.test):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def package_of(module, is_package, level):
    """What the dots of a relative import stand for."""
    parts = module.split(".")
    keep = len(parts) - level + is_package
    if keep < 1:
        raise ValueError(f"{module}: a relative import leaves the package")
    return ".".join(parts[:keep])


def imported_modules(source, module, modules, is_package=False):
    """(line, module of the package) for each import in a source; names of the package itself stay names."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package_of(module, is_package, node.level)
                base = f"{start}.{base}" if base else start
            # `from wayfare import errors` imports a module, `from wayfare import tensor` maybe a function.
            inner = [f"{base}.{alias.name}" for alias in node.names]
            found = [name if name in modules else base for name in inner]
        elif isinstance(node, ast.Call) and called_name(node.func) in ("import_module", "__import__"):
            found = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
        else:
            continue
        for name in found:
            if isinstance(name, str) and name.split(".")[0] == PACKAGE:
                yield node.lineno, name


def called_name(function):
    """The last word of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def upward_imports(sources, layers=LAYERS):
    """One sentence for each import that goes up. `sources` maps paths to source texts."""
    modules = {module_name(path, Path()): path for path in sources}
    rank = {layer: height for height, layer in enumerate(layers)}
    for path, source in sorted(sources.items()):
        module = module_name(path, Path())
        layer = layer_of(module, layers)
        if layer not in rank:
            yield f"{path}: layer '{layer}' is not in LAYERS; say where it belongs."
            continue
        for line, target in imported_modules(source, module, modules, path.name == "__init__.py"):
            below = layer_of(target, layers)
            if below not in rank:
                yield f"{path}:{line}: imports '{target}', whose layer is not in LAYERS."
            elif rank[below] > rank[layer]:
                yield f"{path}:{line}: '{layer}' imports '{target}' from the higher layer '{below}'."


def package_sources():
    """The sources of the package by their path in the repository."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


def test_every_import_goes_down():
    problems = list(upward_imports(package_sources()))
    assert not problems, "\n".join(["imports against the layer order:", *problems])


def test_every_layer_exists():
    present = {layer_of(module_name(path, Path()), LAYERS) for path in package_sources()}
    assert set(LAYERS) == present


def test_no_file_is_too_long():
    lengths = {str(path): source.count("\n") + 1 for path, source in package_sources().items()}
    long = {path: length for path, length in lengths.items() if length > MAX_LINES}
    assert not long, f"over {MAX_LINES} lines, so probably two files: {long}"


# The checker itself, on small packages that were never written.

FAKE_LAYERS = ["errors", "ops", "tensor", "__init__", "cli"]
FAKE_FILES = ("__init__.py", "errors.py", "ops/__init__.py", "ops/add.py", "tensor.py")


def check(path, source):
    """The problems of a package of empty files with this one in it."""
    files = dict.fromkeys(FAKE_FILES, "") | {path: source}
    return list(upward_imports({Path(PACKAGE, name): text for name, text in files.items()}, FAKE_LAYERS))


@pytest.mark.parametrize(
    "source",
    [
        "import wayfare.tensor",
        "import wayfare.tensor as t",
        "from wayfare.tensor import Tensor",
        "from wayfare import tensor",
        "from wayfare import zeros",
        "import wayfare as wf",
        "from ..tensor import Tensor",
        "from .. import tensor",
        "from .. import zeros",
        "def late():\n    from wayfare.tensor import Tensor",
        "class A:\n    def late(self):\n        import wayfare.tensor",
        "try:\n    import wayfare.tensor\nexcept ImportError:\n    pass",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import wayfare.tensor",
        "import importlib\nimportlib.import_module('wayfare.tensor')",
        "__import__('wayfare.tensor')",
    ],
)
def test_an_import_that_goes_up_is_found(source):
    (problem,) = check("ops/add.py", source)
    assert problem.startswith("wayfare/ops/add.py:")
    assert "higher layer" in problem


@pytest.mark.parametrize(
    "source",
    [
        "import numpy, os.path",
        "import wayfarer.tensor",
        "from wayfare.errors import WayfareError",
        "from wayfare import errors",
        "from ..errors import WayfareError",
        "from . import add",
        "from .add import add",
        "from wayfare.ops import add",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wayfare.tensor import Tensor",
        "import typing\nif typing.TYPE_CHECKING:\n    from ..tensor import Tensor",
    ],
)
def test_an_import_that_goes_down_or_sideways_passes(source):
    assert check("ops/mul.py", source) == []


def test_dots_count_from_the_package_in_its_init_file():
    assert check("ops/__init__.py", "from .add import add\nfrom ..errors import WayfareError") == []
    (problem,) = check("ops/__init__.py", "from ..tensor import Tensor")
    assert problem.startswith("wayfare/ops/__init__.py:1:")


def test_a_relative_import_cannot_leave_the_package():
    with pytest.raises(ValueError, match=r"wayfare\.ops\.add: a relative import leaves the package"):
        check("ops/add.py", "from ... import wayfare")


def test_a_module_may_stand_apart_from_its_package():
    sources = {Path("wayfare/graph/node.py"): "", Path("wayfare/graph/text.py"): "import wayfare.tensor"}
    assert list(upward_imports(sources, ["graph", "tensor", "graph.text"])) == []
    (problem,) = upward_imports(sources, ["graph", "tensor"])
    assert "wayfare/graph/text.py:1" in problem
    (problem,) = upward_imports({Path("wayfare/graph/node.py"): "import wayfare.graph.text"}, ["graph", "graph.text"])
    assert "higher layer 'graph.text'" in problem


def test_a_file_in_no_layer_is_named():
    (problem,) = check("helpers.py", "")
    assert problem == "wayfare/helpers.py: layer 'helpers' is not in LAYERS; say where it belongs."


def test_the_line_of_the_import_is_named():
    (problem,) = check("ops/add.py", "import os\n\nx = 1\nimport wayfare.cli\n")
    assert problem == "wayfare/ops/add.py:4: 'ops' imports 'wayfare.cli' from the higher layer 'cli'."
