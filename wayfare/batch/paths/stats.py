"""What ran along recorded paths in one map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Decisions that are listed.
_LISTED = 12


@dataclass
class Visit:
    """A block that was run: how many examples there were, and how many of them had which outcome of its decision."""

    line: str
    depth: int
    examples: int
    outcomes: list[tuple[Any, int, bool]]  # (outcome, examples, whether it is recorded); empty for a last block


@dataclass
class PathStats:
    """Examples that ran along recorded paths, and the groups they ran in."""

    examples: int = 0  # that ran without Python
    groups: int = 0  # blocks that were run, each for all examples that had reached it
    unseen: int = 0  # that left the tree, because a decision had an outcome that was not recorded
    recorded: int = 0  # that ran as Python and were recorded
    growing: bool = False  # whether the other examples are likely to find a path soon, and wait for values until then
    checked: int = 0  # that ran as Python too, to compare the results
    failed: Exception | None = None  # the error of a group, whose examples then ran as Python
    reasons: dict[str, int] = field(default_factory=dict)  # why examples cannot run along paths
    visits: list[Visit] = field(default_factory=list, repr=False)

    def add(self, run: Any) -> None:
        """Count a run."""
        self.examples += sum([len(finished.examples) for finished in run.finished])
        self.groups += run.groups
        self.unseen += sum([len(examples) for _, _, examples in run.unseen])
        self.visits += run.visits

    def refused(self, reason: str) -> None:
        """Count an example, or all of them, that cannot run along paths."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def lines(self) -> Iterator[str]:
        """The same as text: the tree, who went where, and for how many Python ran."""
        yield (f"along recorded paths: {self.examples} example{'s' * (self.examples != 1)} in {self.groups} "
               f"group{'s' * (self.groups != 1)}")  # fmt: skip
        python = [f"{count} {what}" for count, what in (
            (self.recorded, "recorded"), (self.checked, "compared"),
            (self.unseen, "at an outcome that was not recorded"),
        ) if count]  # fmt: skip
        if python:
            yield f"  Python ran: {', '.join(python)}"
        shown = self._decisions()
        for (_, line), outcomes in shown[:_LISTED]:
            went = ", ".join([f"{_shown(outcome)} {count}{'' if known else ' (not recorded)'}"
                              for (outcome, known), count in outcomes.items()])  # fmt: skip
            yield f"  {os.path.basename(line)}: {sum(outcomes.values())} decide: {went}"
        if len(shown) > _LISTED:
            yield f"  and {len(shown) - _LISTED} more decisions"
        for reason in self.reasons:
            yield f"  not along paths, because {reason}"

    def _decisions(self) -> list[tuple[tuple[int, str], dict[tuple[Any, bool], int]]]:
        """For each depth and line: how many examples had which outcome. A map may follow the tree several times."""
        found: dict[tuple[int, str], dict[tuple[Any, bool], int]] = {}
        for visit in self.visits:
            for outcome, count, known in visit.outcomes:
                here = found.setdefault((visit.depth, visit.line), {})
                here[outcome, known] = here.get((outcome, known), 0) + count
        return sorted(found.items(), key=lambda item: item[0][0])


def _shown(outcome: Any) -> str:
    """An outcome as Python read it: True, 3, or "one value" for what has no short form."""
    if isinstance(outcome, bool):
        return str(outcome)
    return str(outcome[1]) if len(outcome) == 2 else "one value"
