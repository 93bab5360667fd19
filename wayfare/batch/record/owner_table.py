"""A table on an object: what batching has learnt about its functions, freed together with the object.

Guards hold the object. In a table of this module it would never be freed; on the object itself both are freed together.
"""

from __future__ import annotations

import weakref
from typing import Any

_ATTRIBUTE = "_wayfare_calls"


class OwnerTable(dict[Any, Any]):
    """What is known of an owner. Copies and pickles of the owner get an empty one."""

    def __init__(self, owner: Any = None) -> None:
        super().__init__()
        self._owner = None if owner is None else weakref.ref(owner)

    def belongs_to(self, owner: Any) -> bool:
        """Whether this is the owner's own table: a shallow copy of a module has the same one in its `__dict__`."""
        return self._owner is not None and self._owner() is owner

    def __deepcopy__(self, _memo: Any) -> OwnerTable:
        return OwnerTable()

    def __copy__(self) -> OwnerTable:
        return OwnerTable()

    def __reduce__(self) -> Any:
        return OwnerTable, ()


def table_of(owner: Any) -> OwnerTable:
    """The table of an object, made at the first use."""
    table = owner.__dict__.get(_ATTRIBUTE)
    if table is None or not table.belongs_to(owner):
        table = owner.__dict__[_ATTRIBUTE] = OwnerTable(owner)
    return table  # type: ignore[no-any-return]
