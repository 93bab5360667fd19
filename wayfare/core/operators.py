"""Python's operators for objects that build an expression instead of computing: graph values, loop expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

S = TypeVar("S")


def _operator(op: str, reverse: bool = False) -> Callable[[S, Any], S]:
    def method(self: Any, other: Any) -> Any:
        return self._apply(op, other, self) if reverse else self._apply(op, self, other)

    return method


class Operators:
    """`a + b` is `_apply("add", a, b)`, and so on. `==` builds an expression, so hashing is by identity."""

    __slots__ = ()

    _apply: Callable[..., Any]

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", True)
    __mod__, __floordiv__ = _operator("remainder"), _operator("floor_divide")
    __and__, __or__, __xor__ = _operator("bitwise_and"), _operator("bitwise_or"), _operator("bitwise_xor")
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # type: ignore[assignment]
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")

    def __neg__(self) -> Self:
        return self._apply("neg", self)  # type: ignore[no-any-return]

    def __abs__(self) -> Self:
        return self._apply("abs", self)  # type: ignore[no-any-return]

    __hash__ = object.__hash__
