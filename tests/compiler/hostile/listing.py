"""Run all cases, or those whose names contain the words given, and list what is different.

    python -m tests.compiler.hostile.listing [-o FILE] [-check] [word …]
"""

import collections
import sys
import time

from tests.compiler.hostile.collected import ALL
from tests.compiler.hostile.harness import BadCase, Wrong, at_most, run


def main(words):
    """Lines by family; a summary of times at the end."""
    file, options = None, {"check": False}
    if words and words[0] == "-o":
        file, words = words[1], words[2:]
    if words and words[0] == "-check":
        options, words = {}, words[1:]
    lines, times, total = collections.defaultdict(list), [], 0
    start = time.perf_counter()
    for name in ALL:
        if words and not any(word in name for word in words):
            continue
        total += 1
        began = time.perf_counter()
        reason = reason_of(name, options)
        times.append((time.perf_counter() - began, name))
        if reason:
            lines[name.split("/")[0]].append(f"{name}: {reason}")
            if file is None:
                print(f"{name}: {reason}", flush=True)
    failing = sum(map(len, lines.values()))
    text = [f"{failing} of {total} cases fail"]
    for kind, found in lines.items():
        text += ["", f"== {kind} ({len(found)})", *found]
    if file is not None:
        with open(file, "w") as out:
            out.write("\n".join(text) + "\n")
    print(f"{text[0]}, {time.perf_counter() - start:.0f} s; slowest:")
    for took, name in sorted(times, reverse=True)[:8]:
        print(f"  {took:.2f} s {name}")


def reason_of(name, options):
    """Why a case fails, in one line; None if it does not."""
    try:
        with at_most(60):
            run(name, **options)
    except Wrong as wrong:
        return str(wrong)
    except BadCase as bad:
        return f"BAD CASE: {bad}"
    except Exception as error:
        return f"ERROR: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
