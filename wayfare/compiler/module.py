"""A compiled module: it behaves as the module it wraps, and its calls are recorded and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wayfare.compiler.explain import Explanation
from wayfare.compiler.function import Compiled
from wayfare.nn.module import Module

# The attributes of the wrapper itself; all others are those of the wrapped module.
_OWN = frozenset({"_compiled", "_orig_mod", "_options", "explain"})


_get = object.__getattribute__


class CompiledModule(Module):
    """The result of `wf.compile(module)`: reading, writing, saving, `train()` and `to()` are the module's own.

    `state_dict()` has the module's own keys, so what is saved fits the module with and without `wf.compile`. The module
    itself is `_orig_mod`; the two share everything but the way they are called.
    """

    _compiled: Compiled
    _orig_mod: Module
    _options: dict[str, Any]

    def __init__(self, module: Module, **options: Any) -> None:
        set_ = object.__setattr__
        set_(self, "_orig_mod", module)
        set_(self, "_options", options)
        set_(self, "_compiled", Compiled(module, **options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Not through our `__getattribute__`, which is Python code and too slow for a small layer.
        return _get(self, "_compiled")(*args, **kwargs)

    def explain(self, verbose: bool = False) -> Explanation:
        """Its signatures, plans and guards, and why calls were recorded again."""
        return self._compiled.explain(verbose)  # type: ignore[no-any-return]

    # -- all the rest is the module's own

    def __getattribute__(self, name: str) -> Any:
        # Python looks up special methods on the class, so a special name asked of the instance is about this class.
        if name in _OWN or (name.startswith("__") and name != "__dict__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_orig_mod"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), *_OWN})

    def __repr__(self) -> str:
        return f"compiled {self._orig_mod!r}"

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload, no-any-return]

    def __getitem__(self, index: Any) -> Any:
        return self._orig_mod[index]  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._orig_mod[index] = value  # type: ignore[index]

    def __contains__(self, value: Any) -> bool:
        return value in self._orig_mod  # type: ignore[operator]

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # A copy or a pickle holds the module, and compiles it again.
        return _recompiled, (self._orig_mod, self._options)


def _recompiled(module: Module, options: dict[str, Any]) -> CompiledModule:
    return CompiledModule(module, **options)
