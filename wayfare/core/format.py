"""Formatting of sizes, times, counts and long texts for people: in tables, reports, errors and listings."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`1.5 MB`, in steps of 1024."""
    return _scaled(count, 1024, (" B", " KB", " MB", " GB", " TB"))


def count_text(count: float, unit: str = "") -> str:
    """`1.31 M`, in steps of 1000; `1.31 MFLOP` with a unit."""
    return _scaled(count, 1000, tuple(f" {prefix}{unit}".rstrip() for prefix in ("", "k", "M", "G", "T")))


def time_text(seconds: float) -> str:
    """`1.25 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * scale >= 1:
            return f"{_short(seconds * scale)} {unit}"
    return f"{_short(seconds * 1e6)} µs" if seconds else "0"


def share_text(share: float) -> str:
    """`12.5 %`."""
    return f"{100 * share:.1f} %"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 node`, `2,000 nodes`, `2 batches`; `many` is an irregular plural."""
    plural = many or one + ("es" if one.endswith("ch") and one != "epoch" else "s")
    return f"{count:,} {one if count == 1 else plural}"


def cut(text: str, width: int) -> str:
    """A text of at most `width` characters, with "…" where it is cut."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def plain(text: str) -> str:
    """A text as one line, with control characters escaped: printed to a terminal they could do harm."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _scaled(count: float, step: int, units: tuple[str, ...]) -> str:
    size = float(count)
    for unit in units[:-1]:
        # A number that rounds to a whole step belongs to the next unit: 1 MB, not 1024 KB.
        if abs(size) < step - 0.5:
            return f"{_short(size)}{unit}"
        size /= step
    return f"{_short(size)}{units[-1]}"


def _short(number: float) -> str:
    """Three significant digits, but all digits before the point."""
    return f"{number:.0f}" if abs(number) >= 99.95 else f"{number:.3g}"
