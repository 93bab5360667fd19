"""What a function does with tensors, call by call, as Python sees it: the order that dynamic replay follows."""

from __future__ import annotations

from typing import Any


class Event:
    """One thing that happened: an op, a write, a backward pass, a look at a value, …

    Arrays have numbers, in the order in which they were met. `refs` are those it was given, `outs` those it made;
    `binds` describe the ones that were met here for the first time: those of tensors from outside.
    """

    __slots__ = ("attrs", "binds", "flags", "grad", "kind", "needs", "op", "outs", "refs", "specs")

    def __init__(
        self, kind: str, op: Any, refs: tuple[Any, ...], attrs: Any, outs: tuple[int, ...], needs: tuple[bool, ...],
        specs: tuple[Any, ...], grad: bool, binds: tuple[Bind, ...], flags: tuple[bool, ...],
    ) -> None:  # fmt: skip
        self.kind = kind
        self.flags = flags  # which of the tensors it was given require a gradient (`x.detach()` has the array of `x`)
        self.op = op
        self.refs = refs
        self.attrs = attrs
        self.outs = outs
        self.needs = needs
        self.specs = specs
        self.grad = grad
        self.binds = binds

    def same(self, other: Event) -> bool:
        """Did the same happen?"""
        try:
            return (
                self.kind == other.kind and self.op is other.op and self.refs == other.refs and self.outs == other.outs
                and self.needs == other.needs and self.specs == other.specs and self.grad == other.grad
                and self.flags == other.flags
                and bool(self.attrs == other.attrs) and len(self.binds) == len(other.binds)
                and all(a.same(b) for a, b in zip(self.binds, other.binds, strict=True))
            )  # fmt: skip
        except ValueError:  # attributes that are arrays
            return False


class Bind:
    """An array met for the first time, that of a tensor from outside."""

    __slots__ = ("kind", "last", "needs", "number", "place", "what")

    def __init__(self, kind: str, number: int, what: Any, needs: bool, place: int) -> None:
        self.kind = kind  # "tensor", "grad" of one, or "base" of one
        self.number = number
        self.what = what  # shape, dtype and what else it must be like
        self.needs = needs
        self.place = place  # the so-many-th tensor from outside
        self.last: Any = None  # (tensor, array) that stood here last, by weak references: mostly the same again

    def same(self, other: Bind) -> bool:
        """Is it met in the same way?"""
        return (self.kind, self.number, self.what, self.needs, self.place) == (
            other.kind, other.number, other.what, other.needs, other.place,
        )  # fmt: skip
