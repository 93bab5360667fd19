"""Repetitions in a sequence: found, folded, and nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from wayfare.see.graph.folding import One, Repeat, fold


def unfolded(parts):
    """The places of all items, the turns of a loop counted out."""
    for part in parts:
        if isinstance(part, One):
            yield part.start
        else:
            body = list(unfolded(part.body))
            for turn in range(part.times):
                yield from (i + turn * part.width for i in body)


def shown(parts, text):
    return "".join(
        text[p.start] if isinstance(p, One) else f"({shown(p.body, text)}){p.times}" for p in parts
    )


@given(st.lists(st.integers(0, 3), max_size=60))
def test_nothing_is_lost_and_turns_are_alike(keys):
    parts = fold(keys)
    assert sorted(unfolded(parts)) == list(range(len(keys)))
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        if isinstance(part, Repeat):
            turns = [keys[part.start + i * part.width : part.start + (i + 1) * part.width] for i in range(part.times)]
            assert part.times > 1 and all(turn == turns[0] for turn in turns)
            assert part.width == sum(inner.size for inner in part.body)
            waiting += part.body


def test_examples():
    for text, expected in (
        ("", ""), ("abc", "abc"), ("aaa", "(a)3"), ("abcbcbcd", "a(bc)3d"), ("abacabac", "(abac)2"),
        ("xxxtxxxtxxxt", "((x)3t)3"), ("aabaab", "((a)2b)2"), ("abab", "(ab)2"), ("aabbaabbc", "((a)2(b)2)2c"),
    ):  # fmt: skip
        assert shown(fold(text), text) == expected


def test_a_long_loop_of_long_turns():
    turn = [i * i % 101 for i in range(100)]
    parts = fold([*range(1000, 1010), *(turn * 50), *range(2000, 2010)])
    assert len(parts) == 21
    assert (parts[10].width, parts[10].times) == (100, 50)


def test_what_never_repeats_costs_little():
    """A sequence made to be compared with itself again and again."""
    keys = [0] * 5000 + [1] + [0] * 4999 + [2]
    parts = fold(keys)
    assert shown(parts, "".join(map(str, keys))) == "(0)50001(0)49992"
