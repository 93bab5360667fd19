"""The figures of the suite `gpu` as a table for the documentation, made from nothing but the file of figures."""

from __future__ import annotations

from typing import Any

NONE = "–"
# How the sides are called in the file of figures, and in the table.
PEERS = {
    "PyTorch eager": "PyTorch",
    "torch. compile": "`torch.compile`",
    "reduce- overhead": "`reduce-overhead`",
    "reduce- overhead, capturable": "the same, `capturable`",
    "PyTorch fused Adam": "fused Adam",
}


def markdown(figures: dict[str, Any]) -> str:
    """Where and when it was measured, a line for each row with its limits, and what is missing."""
    environment, curves = figures["environment"], figures["curves"]
    rows = curves.get("rows", [])
    peers = [name for name in PEERS if any(name in row["best"] for row in rows)]
    card = curves.get("device", {}).get("name", "unknown device")
    lines = [
        f"{environment['date']}, {card}, {environment['compared']}, {environment['under']}; {environment['suite']}.",
        "",
        _line(["work", *(PEERS[name] for name in peers), "Wayfare", "ratio", "must", "aim"]),
        _line(["---"] * (len(peers) + 5)),
    ]
    for row in rows:
        mine = row["best"].get(row["mine"])
        took = [_cell(row["best"].get(name), row["unit"]) for name in peers]
        judged = row["judged"] or [None]
        for number, found in enumerate(judged):
            first = [row["title"], *took, _cell(mine, row["unit"])] if number == 0 else [""] * (len(peers) + 2)
            if number and found["work"] != row["title"]:
                first[0] = "… " + found["work"].removeprefix(row["title"]).lstrip(",: ")
            lines.append(_line([*first, *_judgement(found)]))
    for found in figures["measurements"]:
        if found["part"] == "first call":
            sides = [_cell(min(side), found["unit"]) for side in found["rounds"]]
            compiled = [sides[1] if name == "torch. compile" else "" for name in peers]
            title = f"first three calls: {found['work']}"
            if "torch. compile" not in peers:
                title += f" ({sides[1]})"
            lines.append(_line([title, *compiled, sides[0], *_judgement(found)]))
    if "copy, bytes a second" in curves:
        lines += ["", f"A copy moves {curves['copy, bytes a second'] / 1e9:.0f} GB/s, read and write counted."]
    said = [f"- {row['title']}: {text}" for row in rows for texts in row["remarks"].values() for text in texts]
    if said:
        lines += ["", "Wayfare warned:", "", *said]
    missing = figures["skipped"]
    if missing:
        lines += ["", "Not measured:", "", *(f"- {entry['work']}: {entry['reason']}" for entry in missing)]
    return "\n".join(lines) + "\n"


def _judgement(found: dict[str, Any] | None) -> list[str]:
    """The ratio of best rounds, and both limits with what came of them."""
    if found is None:
        return ["", "", ""]
    ratio = found["ratio_of_best"]
    return [
        "" if ratio is None else f"{ratio:.2f}×" if ratio >= 0.1 else f"{ratio:.3f}×",
        _limit(found["wanted"], found["met"]),
        _limit(found["aim"], found["aim_met"]),
    ]


def _limit(limit: float | None, met: bool | None) -> str:
    return "" if limit is None or met is None else f"≤ {limit:.3g} {'✓' if met else '✗'}"


def _cell(value: float | None, unit: str) -> str:
    return NONE if value is None else f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
