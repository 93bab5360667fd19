"""Tables of a contest: what each side took, and how the subject stands against what must be and what is aimed at."""

from __future__ import annotations

from rich import box
from rich.table import Table

from benchmarks.harness import Measurement, Report, figure, limit_text

GAP = 3  # between columns
FIRST_COLUMN = 30


def grid(report: Report, title: str, columns: list[str], cells: list[list[str]]) -> None:
    """Print a plain table: the first column takes what room there is, the others hold figures."""
    if not cells:
        return
    width = report.console.width
    table = Table(title=title, title_justify="left", title_style="bold", width=width, box=box.SIMPLE_HEAD)
    table.add_column(columns[0], ratio=1)
    figures = [max(len(row[number]) for row in cells) for number in range(1, len(columns))]
    whole = [max(len(name), widest) for name, widest in zip(columns[1:], figures, strict=True)]
    words = [max(widest, *map(len, name.split())) for name, widest in zip(columns[1:], figures, strict=True)]
    fits = sum(whole) + GAP * len(columns) <= width - FIRST_COLUMN
    # Figures never break; headings do, between words, where they would take the first column's room.
    for name, room in zip(columns[1:], whole if fits else words, strict=True):
        table.add_column(name, justify="right", width=room)
    for row in cells:
        table.add_row(*row)
    report.console.print()
    report.console.print(table)


def judge(report: Report, title: str, rows: list[Measurement]) -> None:
    """Keep rows and print them with what they must be, what is aimed at, and whether they are."""
    report.measurements += rows
    show(report, title, rows)


def show(report: Report, title: str, rows: list[Measurement]) -> None:
    """Print rows with what they must be, what is aimed at, and whether they are."""
    cells = []
    for row in rows:
        if row.absolute:
            ratios = [figure(row.best(0)), ""]
        else:
            ratios = [f"{row.ratio_of_best:.3f}×", f"{row.median_ratio:.3f}×"]
        cells.append([row.work, *ratios, limit_text(row.wanted, row.met), limit_text(row.aim, row.aim_met)])
    grid(report, title, ["judged", "ratio", "median", "must", "aim"], cells)


def sum_up(report: Report, how: str) -> None:
    """How many rows met what they must and what is aimed at, and how it was measured (`how`: in this suite)."""
    judged = [row for row in report.measurements if row.met is not None]
    aimed = [row for row in report.measurements if row.aim_met is not None]
    report.note(f"\nmust: {sum(row.met is True for row in judged)} of {len(judged)} rows met")
    report.note(f"aim:  {sum(row.aim_met is True for row in aimed)} of {len(aimed)} rows met")
    report.note(
        f"Steps: best of {report.options.rounds} interleaved rounds after warm-up, each side in its own process, "
        "counting only rounds whose threads always had a core (~: too few of those); median: of the ratios of rounds "
        f"in order. {how}"
    )
    if report.skipped:
        report.note(f"{len(report.skipped)} figures are missing, for the reasons above.")
