"""Docs run: every Python block of README.md and docs/ is executed, and shown output is compared.

The blocks of a page share one namespace and run in order. A ```text or ```output block directly after one
is what that block prints; `...` in it stands for any text, and white space counts only as a separator.
A block that begins with `# needs: torch` is skipped where PyTorch is absent.
"""

import contextlib
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from wayfare.batch.workers import pool as pools

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "docs" / "api"
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if GENERATED not in p.parents)]

# Pages that look at everything that is alive: where much is, as in a process of tests, that takes long.
IN_A_FRESH_PROCESS = {"docs/seeing.md"}

# Blocks marked ```python no-run: (page, first line of the block) → why it cannot run.
NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/scaling.md", "from ray.train import ScalingConfig"):
        "it starts a Ray cluster (tests/distributed/test_ray.py)",
    ("docs/scaling.md", "with wf.profile() as p:                                    # on every rank"):
        "it needs several ranks (tests/see/profile/test_ranks.py)",
}  # fmt: skip

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
NEEDS = re.compile(r"# needs: (?P<module>\w+)")


@dataclass(frozen=True)
class Block:
    """A fenced block: what follows its fence, the line of its first line of text, and the text."""

    info: str
    line: int
    text: str
    follows: bool = False  # nothing but blank lines lies between this block and the one before it


class DocError(AssertionError):
    """A page that does not do what it says."""


def blocks(page):
    """The fenced blocks of a page, in order."""
    found = []
    opening, body, apart = None, [], True
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, body, start = fence, [], number + 1
            elif line.strip():
                apart = True
        elif fence and fence["ticks"].startswith(opening["ticks"]) and not fence["info"].strip():
            indent = len(opening["indent"])
            text = "".join(f"{text[:indent].strip()}{text[indent:]}\n" for text in body)
            found.append(Block(opening["info"].strip(), start, text, follows=not apart))
            opening, apart = None, False
        else:
            body.append(line)
    if opening is not None:
        raise DocError(f"line {start - 1}: the fence is never closed")
    return found


def same_text(printed, shown):
    """Whether what was printed is what the page shows."""
    # A wildcard between spaces may stand for nothing, and then one space is left of the two.
    gaps = {" ... ": "(?: .*)? ", "...": ".*"}
    pieces = re.split(r"( \.\.\. |\.\.\.)", " ".join(shown.split()))
    pattern = "".join(gaps.get(piece, re.escape(piece)) for piece in pieces)
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


def missing_module(block):
    """The module a block says it needs and this environment has not, or None."""
    need = NEEDS.match(block.text)
    return need["module"] if need and importlib.util.find_spec(need["module"]) is None else None


def show_source(text, name):
    """Let Python find the source of what a page defines: its blocks at their lines, and nothing between them."""
    lines = [""] * (len(text.splitlines()) + 1)
    for block in blocks(text):
        if block.info == "python":
            for number, line in enumerate(block.text.splitlines(), block.line - 1):
                lines[number] = line
    source = "\n".join(lines) + "\n"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def run_block(block, name, namespace):
    """Execute a block and return what it printed. Its lines keep the numbers they have in the page."""
    printed = io.StringIO()
    try:
        code = compile("\n" * (block.line - 1) + block.text, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == name), block.line)
        raise DocError(f"{name}:{line}: {type(error).__name__}: {error}") from error
    return printed.getvalue()


def run_page(text, name, not_run=NOT_RUN):
    """Execute a page. Returns how many blocks ran and how many were skipped for a missing module."""
    namespace = {"__name__": "__main__"}
    ran = skipped = 0
    printed = None
    show_source(text, name)
    for block in blocks(text):
        language, *flags = block.info.split()[:2] or [""]
        if language == "python" and not flags:
            if missing_module(block):
                skipped += 1
                printed = None
            else:
                printed = run_block(block, name, namespace)
                ran += 1
            continue
        if language == "python":
            first = block.text.split("\n")[0]
            if flags != ["no-run"] or (name, first) not in not_run:
                raise DocError(f"{name}:{block.line}: NOT_RUN does not list this '{block.info}' block")
        elif language in ("text", "output") and block.follows and printed is not None:
            if not same_text(printed, block.text):
                both = f"the page shows\n{block.text}\nbut the block before it printed\n{printed}"
                raise DocError(f"{name}:{block.line}: {both}")
        printed = None
    return ran, skipped


def run_apart(path, name):
    """Execute a page in a process of its own."""
    lines = "from pathlib import Path", "from tests.test_docs import run_page"
    code = "\n".join([*lines, f"run_page(Path({str(path)!r}).read_text(encoding='utf-8'), {name!r})"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = str(path.relative_to(ROOT))
    if name in IN_A_FRESH_PROCESS:
        run_apart(path, name)
        return
    try:
        ran, skipped = run_page(path.read_text(encoding="utf-8"), name)
    finally:
        if pools._pool is not None:  # forked workers hold the pipes of this process, and a browser waits for their end
            pools._pool.stop()
    if skipped and not ran:
        pytest.skip(f"{name}: every block needs a module that is not installed")


def test_readme_has_something_to_run():
    assert any(block.info == "python" for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")))


def test_links_between_pages_lead_somewhere():
    broken = []
    for path in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        # Code in a line may look like a link too: `model["embed"](ids)`.
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)|src=\"([^\"]+)\"", prose):
            target = "".join(target)
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)} → {target}")
    assert not broken, "\n".join(broken)


def test_files_that_engineers_are_sent_to_exist():
    missing = []
    for path in [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"`((?:wayfare|tests|tools|benchmarks|docs|examples)/[\w./]*)`", text)
        missing += [f"{path.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert not missing, "\n".join(missing)


# The checker itself, on pages of a few lines.


def page(*parts):
    """A page of fenced blocks: 'python: x = 1', and prose as it is."""
    lines = ["# A page", ""]
    for part in parts:
        info, colon, text = part.partition(": ")
        lines += [f"```{info}", text, "```", ""] if colon else [part, ""]
    return "\n".join(lines)


def test_blocks_share_names_and_run_in_order():
    assert run_page(page("python: x = 20", "Then,", "python: assert x + 1 == 21"), "p.md") == (2, 0)


def test_pages_share_nothing():
    run_page(page("python: shared = 1"), "p.md")
    with pytest.raises(DocError, match="shared"):
        run_page(page("python: shared"), "q.md")


def test_a_failing_block_names_its_page_and_line():
    text = page("python: x = 1", "python: y = 1\n\nx / 0")
    line = text.splitlines().index("x / 0") + 1
    with pytest.raises(DocError, match=rf"p\.md:{line}: ZeroDivisionError"):
        run_page(text, "p.md")


def test_a_line_that_is_not_python_names_its_page():
    with pytest.raises(DocError, match=r"p\.md:\d+: SyntaxError"):
        run_page(page("python: x = = 1"), "p.md")


@pytest.mark.parametrize("language", ["text", "output"])
def test_shown_output_is_compared(language):
    right = page("python: print('a  b')\nprint('c')", f"{language}: a b\nc")
    wrong = page("python: print('a  b')\nprint('c')", f"{language}: a b\nd")
    run_page(right, "p.md")
    with pytest.raises(DocError, match=r"p\.md:\d+: the page shows"):
        run_page(wrong, "p.md")


@pytest.mark.parametrize(
    "printed, shown, same",
    [
        ("took 1.25 s\n", "took ... s", True),
        ("took 1.25 s\n", "took ...", True),
        ("one\ntwo\nthree\n", "one\n...\nthree", True),
        ("one\nthree\n", "one\n...\nthree", True),
        ("a(b)", "a(...)", True),
        ("took 1.25 ms\n", "took ... s", False),
        ("one\n", "two", False),
        ("a b", "ab", False),
        ("ab", "a b", False),
        ("x", "", False),
        ("a+b", "aab", False),
    ],
)
def test_wildcards_and_white_space(printed, shown, same):
    assert same_text(printed, shown) is same


def test_text_that_prose_parts_from_a_block_is_not_its_output():
    run_page(page("python: print(1)", "A picture:", "text: +--+"), "p.md")


def test_a_no_run_block_must_be_listed():
    text = page("python no-run: while True: pass")
    with pytest.raises(DocError, match="NOT_RUN does not list"):
        run_page(text, "p.md")
    assert run_page(text, "p.md", {("p.md", "while True: pass"): "it never ends"}) == (0, 0)


def test_a_flag_nobody_knows_is_refused():
    with pytest.raises(DocError, match="python norun"):
        run_page(page("python norun: x = 1"), "p.md")


def test_a_block_that_needs_an_absent_module_is_skipped_with_its_output():
    text = page("python: # needs: no_such_module\nprint(no_such_module)", "text: whatever", "python: x = 1")
    assert run_page(text, "p.md") == (1, 1)


def test_a_block_that_needs_a_present_module_runs():
    assert run_page(page("python: # needs: json\nimport json"), "p.md") == (1, 0)


def test_other_languages_are_left_alone():
    assert run_page(page("bash: exit 1", "text: nothing before it", "json: {"), "p.md") == (0, 0)


def test_an_indented_block_in_a_list_runs():
    assert run_page("- item\n\n  ```python\n  if True:\n      x = 1\n  ```\n", "p.md") == (1, 0)


def test_a_fence_left_open_is_an_error():
    with pytest.raises(DocError, match="line 3: the fence is never closed"):
        run_page("# A page\n\n```python\nx = 1\n", "p.md")
