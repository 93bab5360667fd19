"""Writes docs/onnx_ops.md: which ops have a rule for ONNX, what it writes, and why the others have none.

    python tools/make_onnx_ops.py            write the page
    python tools/make_onnx_ops.py --check    only say whether it is up to date
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from wayfare.api.testing.every_op import samples_of  # noqa: E402
from wayfare.core.op import REGISTRY, NotExportable  # noqa: E402
from wayfare.core.spec import OF_NUMPY  # noqa: E402
from wayfare.errors import ExportError  # noqa: E402
from wayfare.exporters.onnx.builder import NEWEST_OPSET, OLDEST_OPSET, Builder, rule_of  # noqa: E402

PAGE = ROOT / "docs" / "onnx_ops.md"
NOTE = "<!-- Written by tools/make_onnx_ops.py: change the rules on the op records, not this page. -->\n"


def written_as(op):
    """The ONNX operators that the samples of an op become, in single precision."""
    found = {}
    for sample in samples_of(op):
        b = Builder()
        arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in sample.inputs]
        inputs = [b.input("x", OF_NUMPY[a.dtype], a.shape) for a in arrays]
        try:
            b.apply(op, inputs, sample.attrs)
        except ExportError:
            continue
        found.update(dict.fromkeys(node.kind for graph in b.graph.walk() for node in graph.nodes))
    return list(found)


def shown(name):
    kinds = written_as(REGISTRY[name])
    return f"| `{name}` | {', '.join(kinds) if kinds else 'nothing: the value itself'} |"


def without_rule():
    """A table of the ops that cannot be written in ONNX, by the reason; docs/coverage.md has it too."""
    reasons = {}
    for name, op in REGISTRY.items():
        rule = rule_of(op)
        if isinstance(rule, NotExportable):
            reasons.setdefault(rule.reason, []).append(name)
    rows = [f"| {reason} | {', '.join(f'`{n}`' for n in sorted(names))} |" for reason, names in sorted(reasons.items())]
    return ["| why | ops |", "|---|---|", *rows]


def page():
    """The text of the page."""
    families = {}
    for name, op in REGISTRY.items():
        if not isinstance(rule_of(op), NotExportable):
            families.setdefault(op.family, []).append(name)
    count = sum(map(len, families.values()))
    lines = [
        "# Ops in ONNX", NOTE,
        f"{count} of Wayfare's {len(REGISTRY)} ops have a rule that writes them in ONNX (operator sets {OLDEST_OPSET} "
        f"to {NEWEST_OPSET}); each is exported alone and run in ONNX Runtime on the samples of its record by "
        "`tests/exporters/onnx/test_every_op.py`. The other "
        f"{len(REGISTRY) - count} say why not. A function of the public API is made of one or several ops: "
        "`wf.onnx.export` names the one that has no rule, with the line that called it.",
    ]  # fmt: skip
    for family, names in sorted(families.items()):
        lines += ["", f"## {family[0].upper()}{family[1:]}", "", "| op | in ONNX |", "|---|---|"]
        lines += [shown(name) for name in sorted(names)]
    lines += ["", "## Ops without a rule", "", *without_rule()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Write docs/onnx_ops.md from the op records.")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is out of date")
    check = parser.parse_args().check
    text = page()
    if not check:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        print("docs/onnx_ops.md is out of date: run python tools/make_onnx_ops.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
