"""Sizes, times and counts in words: three digits, the right unit at every edge, no plural of one."""

import pytest

from wayfare.core.format import bytes_text, count_text, counted, cut, share_text, time_text


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 B"), (1, "1 B"), (999, "999 B"), (1023, "1023 B"), (1024, "1 KB"), (1536, "1.5 KB"), (102_400, "100 KB"),
    (2**20 - 1, "1 MB"), (2**20, "1 MB"), (3 * 2**30, "3 GB"), (2**50, "1024 TB"), (-2048, "-2 KB"),
])  # fmt: skip
def test_bytes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(("count", "text"), [
    (0, "0"), (7, "7"), (999, "999"), (1000, "1 k"), (99_960, "100 k"), (999_999, "1 M"), (1_310_000, "1.31 M"),
    (2e9, "2 G"), (5e12, "5 T"), (5e16, "50000 T"),
])  # fmt: skip
def test_counts(count, text):
    assert count_text(count) == text
    number, _, prefix = text.partition(" ")
    assert count_text(count, "FLOP") == f"{number} {prefix}FLOP"


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0"), (1e-9, "0.001 µs"), (1.77e-6, "1.77 µs"), (1e-3, "1 ms"), (0.1234, "123 ms"), (1.5, "1.5 s"),
    (3600, "3600 s"),
])  # fmt: skip
def test_times(seconds, text):
    assert time_text(seconds) == text


def test_shares():
    assert share_text(0.125) == "12.5 %" and share_text(1) == "100.0 %"


def test_one_and_many():
    assert counted(1, "node") == "1 node" and counted(0, "node") == "0 nodes" and counted(2000, "node") == "2,000 nodes"
    assert counted(2, "batch") == "2 batches" and counted(2, "epoch") == "2 epochs"
    assert counted(2, "leaf", "leaves") == "2 leaves" and counted(1, "leaf", "leaves") == "1 leaf"


def test_a_long_text_is_cut_and_says_so():
    assert cut("abcdef", 6) == "abcdef" and cut("abcdefg", 6) == "abcde…" and cut("abcd efg", 6) == "abcd…"
