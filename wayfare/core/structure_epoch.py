"""The structure epoch: a number that is another one after any change to the structure of any module.

Whoever has looked at modules (a compiled function, above all) need not look again as long as the number is the same.
Hooks count as structure, those of modules and those of leaves.
"""

from __future__ import annotations

import itertools

__all__ = ["EPOCH", "NUMBERS", "structure_changed"]

# Numbers come from a counter and never again: adding one to the last could, between two threads, come back to a number
# that somebody has seen. They are written here *after* the change they stand for.
NUMBERS = itertools.count(1)
EPOCH = [0]


def structure_changed() -> None:
    """Begin a new epoch: something about a module, or the hooks of a leaf, is not as it was."""
    EPOCH[0] = next(NUMBERS)
