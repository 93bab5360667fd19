"""Run all scenarios, or those whose names contain one of the words given, and list what differs.

    python -m tests.batch.scenarios.listing [-known] [-time] [word ...]

`-known` writes lines for known.py. `-time` shows the slowest.
"""

import collections
import sys
import time

from tests.batch.scenarios.collected import ALL, SCENARIOS
from tests.batch.scenarios.harness import BadScenario, check


def reason_of(name, way):
    """Why a scenario fails by one way, in one line; None where it does not."""
    try:
        return check(name, way)
    except BadScenario as bad:
        return f"BAD SCENARIO: {bad}"
    except Exception as error:
        return f"ERROR {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def words_for(reasons, ways):
    """The ways of a scenario that differ, named in as few words as can be."""
    rest = [way for way in ways if way not in reasons and way != "alone"]
    if "alone" in reasons or len(rest) > 4:
        return ", ".join(reasons)
    return "all but " + ", ".join(rest) if rest else "all"


def line(name, text):
    """A line of known.py: not too long, without quotes that would need a backslash."""
    text = text.replace("\\", "").replace("'", "").replace('"', "")
    head = f'    "{name}": "'
    if len(head) + text.index(": ") > 100:
        head = f'    "{name}":\n        "'
    room = 117 - len(head.split("\n")[-1])
    return head + (text if len(text) <= room else text[: room - 3] + "...") + '",'


def main(words):
    options = {word for word in words if word.startswith("-")}
    words = [word for word in words if not word.startswith("-")]
    found, took = collections.defaultdict(dict), collections.Counter()
    for name, way in ALL:
        if words and not any(word in name for word in words):
            continue
        start = time.perf_counter()
        reason = reason_of(name, way)
        took[name] += time.perf_counter() - start
        if reason:
            found[name][way] = reason
    for name, reasons in found.items():
        ways = words_for(reasons, SCENARIOS[name].ways)
        if "-known" in options:
            print(line(name, ways + ": " + next(iter(reasons.values()))))
        else:
            print(f"{name} [{ways}]")
            for reason in dict.fromkeys(reasons.values()):
                print(f"    {next(way for way in reasons if reasons[way] == reason)}: {reason}")
    print(f"# {len(found)} of {len(took)} scenarios differ, {sum(took.values()):.1f} s, {len(SCENARIOS)} in all")
    if "-time" in options:
        for name, seconds in took.most_common(12):
            print(f"#   {seconds:.2f} s {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
