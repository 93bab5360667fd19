"""Writes docs/api from the docstrings: one page for each area of the public API, and an index.

    python tools/make_api_docs.py            write the pages
    python tools/make_api_docs.py --check    only say whether they are up to date
"""

import argparse
import functools
import importlib
import inspect
import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "docs" / "api"

# The modules a user names. What each offers is its __all__, or else every name without an underscore.
NAMESPACES = [
    "wayfare",
    "wayfare.autograd",
    "wayfare.accelerator",
    "wayfare.cuda",
    "wayfare.data",
    "wayfare.debug",
    "wayfare.func",
    "wayfare.linalg",
    "wayfare.metrics",
    "wayfare.distributed",
    "wayfare.nn",
    "wayfare.nn.functional",
    "wayfare.nn.init",
    "wayfare.nn.utils",
    "wayfare.nn.utils.rnn",
    "wayfare.onnx",
    "wayfare.optim",
    "wayfare.optim.lr_scheduler",
    "wayfare.profile",
    "wayfare.signal.windows",
    "wayfare.special",
    "wayfare.testing",
    "wayfare.train",
    "wayfare.utils.checkpoint",
    "wayfare.utils.tensorboard",
]
NOTE = "<!-- Written by tools/make_api_docs.py (make docs): change the docstrings, not this page. -->\n"


def home_of(thing, namespace):
    """The module that defines a thing, or the namespace for values that do not know."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) and module.startswith("wayfare") else namespace


class Bare(str):
    """An annotation that prints without the quotes of a string."""

    __slots__ = ()

    def __repr__(self):
        return str(self)


def bare(annotation):
    """An annotation as it stands in the source."""
    return Bare(annotation) if isinstance(annotation, str) else annotation


def signature_of(name, thing):
    """How a thing is called, as Python would write it."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [p.replace(annotation=bare(p.annotation)) for p in signature.parameters.values()]
    # The result of a class is said by its name.
    result = inspect.Signature.empty if inspect.isclass(thing) else bare(signature.return_annotation)
    signature = signature.replace(parameters=parameters, return_annotation=result)
    # Functions as defaults have a name; other objects print an address, which differs from run to run.
    text = re.sub(r"<function ([\w.]+) at 0x[0-9a-f]+>", r"\1", str(signature))
    return name + re.sub(r"<([\w.]+)[^<>]* at 0x[0-9a-f]+>", r"<\1>", text)


def text_of(thing):
    """A thing's own docstring as Markdown; a class of values without one says nothing."""
    return (inspect.getdoc(thing) or "").strip()


@functools.cache
def public_classes():
    """Class → its public name, for every class that has a place in these pages."""
    found = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name, thing in public_names(module):
            if inspect.isclass(thing):
                found.setdefault(thing, f"{namespace}.{name}")
    return found


def own_and_public_bases(cls):
    """(the class and what it is made of that has no place of its own, the nearest public classes it extends)."""
    own, public, covered = [cls], [], set()
    for base in cls.__mro__[1:]:
        if base in covered:
            continue
        if base in public_classes():
            public.append(base)
            covered.update(base.__mro__)
        elif base.__module__.split(".")[0] == cls.__module__.split(".")[0]:
            own.append(base)
    return own, public


def says_something(member):
    """Whether a member has words of its own: not those of Python's types, such as int's for a number."""
    text = (getattr(member, "__doc__", None) or "").strip()
    if not text or isinstance(member, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return False
    return isinstance(member, type) or member.__doc__ != type(member).__doc__


def public_members(classes):
    """The public methods and properties that these classes define and that have something to say, by name."""
    names = sorted({name for cls in classes for name in vars(cls) if not name.startswith("_")})
    for name in names:
        member = getattr(classes[0], name, None)  # None: a name that is left out, which only tells what to write
        # The getters of a named tuple's fields are Python's.
        if says_something(member) and not text_of(member).startswith("Alias for field number"):
            yield name, member


def summary(text):
    """The first sentence of a docstring, on one line."""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", first)[0].replace("|", "\\|")


def entry(name, thing):
    """The Markdown of one public name."""
    if inspect.isclass(thing):
        lines = [f"### class `{signature_of(name, thing)}`", "", text_of(thing), ""]
        own, bases = own_and_public_bases(thing)
        rows = [f"| `{member}` | {summary(text_of(what))} |" for member, what in public_members(own)]
        if rows:
            lines += ["| member | |", "|---|---|", *rows, ""]
        if bases:
            lines += ["and all of " + ", ".join(f"`{public_classes()[base]}`" for base in bases), ""]
        return "\n".join(lines)
    if callable(thing):
        return f"### `{signature_of(name, thing)}`\n\n{text_of(thing)}\n"
    if thing is None or type(thing) is float:
        return f"### `{name}`\n\nThe constant `{thing}`.\n"
    # Not its value, which may hold the state of this very run.
    return f"### `{name}`\n\nA `{type(thing).__name__}`: {summary(text_of(type(thing)))}\n"


def slug(title):
    """The file name of a page."""
    return re.sub(r"[._ ]", "-", title) + ".md"


def public_names(module):
    """(name, thing) for what a module offers, modules aside."""
    names = getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])
    things = ((name, getattr(module, name)) for name in sorted(names, key=str.lower))
    return [(name, thing) for name, thing in things if not inspect.ismodule(thing)]


def by_home(module):
    """The public names of a module by the module that defines them: [(home, [(name, thing), …]), …]."""
    homes = {}
    for name, thing in public_names(module):
        homes.setdefault(home_of(thing, module.__name__), []).append((name, thing))
    return sorted(homes.items())


def section(namespace, home, things):
    """What a module defines of a namespace: what the module is about, then its names."""
    about = (inspect.getdoc(importlib.import_module(home)) or "").strip()
    return about + "\n\n" + "\n".join(entry(f"{namespace}.{name}", thing) for name, thing in things)


def pages():
    """File name → Markdown for every page, the index included."""
    written, index = {}, ["# API reference", "", NOTE]
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        about = (inspect.getdoc(module) or "").strip()
        homes = by_home(module)
        index += [f"## {namespace}", "", about, ""]
        if namespace == "wayfare":
            # Too much for one page: each of the modules behind it has its own.
            whole = {
                f"{home} in wayfare" if home in NAMESPACES else home:
                f"# {home}\n\n{NOTE}\n{section(namespace, home, things)}"
                for home, things in homes
            }  # fmt: skip
            places = {home: slug(title) for title, (home, _) in zip(whole, homes, strict=True)}
        else:
            parts = [f"## {home}\n\n{section(namespace, home, things)}" for home, things in homes]
            whole = {namespace: "\n".join([f"# {namespace}\n\n{NOTE}\n{about}\n", *parts])}
            places = {home: f"{slug(namespace)}#{home.replace('.', '')}" for home, _ in homes}
        written |= {slug(title): text for title, text in whole.items()}
        for home, things in homes:
            index.append(f"- [{home}]({places[home]}): " + ", ".join(f"`{name}`" for name, _ in things))
        index.append("")
    written["README.md"] = "\n".join(index)
    return {name: text.rstrip() + "\n" for name, text in written.items()}


def stale(wanted):
    """The pages that are missing, too many, or say something else."""
    present = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.md")}
    return sorted(name for name in wanted | present if wanted.get(name) != present.get(name))


def main():
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description="Write docs/api from the docstrings.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check = parser.parse_args().check
    wanted = pages()
    old = stale(wanted)
    if check:
        if old:
            print(f"docs/api is out of date ({', '.join(old)}): run make docs.")
        return bool(old)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in old:
        if name in wanted:
            (TARGET / name).write_text(wanted[name], encoding="utf-8")
        else:
            (TARGET / name).unlink()
    print(f"docs/api: {len(wanted)} pages, {len(old)} changed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
