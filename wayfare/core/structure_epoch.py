"""The structure epoch: a number that changes with every change to the structure of any module.

Code that has examined modules (mainly compiled functions) need not do so again as long as the number is the same.
Hooks of modules and of leaves count as structure.
"""

from __future__ import annotations

import itertools

__all__ = ["EPOCH", "NUMBERS", "structure_changed"]

# Numbers come from a counter and are never reused: with `+= 1`, two threads could return to an earlier number. A number
# is written *after* the change it stands for.
NUMBERS = itertools.count(1)
EPOCH = [0]


def structure_changed() -> None:
    """Begin a new epoch: a module, or the hooks of a leaf, have changed."""
    EPOCH[0] = next(NUMBERS)
