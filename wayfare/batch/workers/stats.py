"""What was spread over workers in one map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from wayfare.core.balance import imbalance


@dataclass
class WorkerStats:
    """Examples and seconds of each worker in the forward pass, and the bytes that they were given."""

    examples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    # Bytes of examples that were sent, and of the tensors that the function sees, in shared memory.
    sent: int = 0
    shared: int = 0
    # Seconds of the forward pass, and of the backward passes through it so far, as this process saw them.
    whole: float = 0.0
    backward: float = 0.0

    @property
    def waiting(self) -> float:
        """The fraction of time in which workers waited for the slowest one."""
        return imbalance(self.seconds)

    def lines(self) -> Iterator[str]:
        """The same as text."""
        yield (f"{len(self.examples)} workers: {', '.join(map(str, self.examples))} examples in "
               f"{', '.join([f'{1e3 * s:.1f}' for s in self.seconds])} ms, {1e3 * self.whole:.1f} ms with sending "
               f"{self.sent / 1024:.0f} KB; {self.shared / 1024:.0f} KB of weights shared")  # fmt: skip
