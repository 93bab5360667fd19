"""A program that was read from a file: called like the function it was made from."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.compiler.structure import put_together
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from wayfare.core.format import plain
from wayfare.core.mode import changed_mode, current
from wayfare.core.symbolic_sizes import Dim
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.bundle.run import MOST_RECORDED, Runner, opaque
from wayfare.ir.graph import Value
from wayfare.ir.program import Program

# How many signatures of checked calls are remembered.
_KINDS = 64


class LoadedProgram:
    """`program(x, y)` or `program(x=…, y=…)` runs it, compiled, without the Python it was made from.

    Its inputs are the tensors among the arguments of the function that was exported, in order; its results have the
    form of the function's own.
    """

    def __init__(self, program: Program, function: str, size_names: list[str], limit: int, turns: int, compiled: bool
                 ) -> None:  # fmt: skip
        self.name = function
        self.input_names = tuple(program.input_names)
        self.output_names = tuple(program.output_names)
        self._program = program
        self._size_names = size_names
        found = program.block.constants()
        constants = {id(v): wrap(v.array) for v in found if v.array is not None}
        self._weights = {v.step.path: constants[id(v)] for v in found}
        # The flat list of results, without compiling.
        runner = Runner(program, constants, limit, turns)
        self._results = opaque(runner)
        results, structure, weights = self._results, program.structure, list(constants.values())

        def call(*tensors: Tensor) -> Any:
            del weights[len(weights) :]  # does nothing; names them, so that wf.compile captures the weights
            return put_together(structure, iter(results(*tensors)))

        call.__name__ = call.__qualname__ = function
        self._run: Any = wf.compile(call) if compiled else call
        self._plain, self._runner = call, runner
        # A loop may have very many iterations, which a recorded plan would unroll. So a program with a loop first runs
        # uncompiled, and is compiled only if that call had few iterations.
        self._unknown = compiled and any(step.kind == "loop" for step in program.block.walk())
        # Shapes and dtypes of arguments that were checked: the check takes longer than a small model.
        self._fitting: set[tuple[Any, ...]] = set()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run it. Its dtypes are those of the file, also under autocast."""
        if current().autocast is not None:
            with changed_mode(autocast=None):
                return self(*args, **named)
        if not named and all([t.__class__ is Tensor for t in args]):
            kind = tuple([(t._array.shape, t._array.dtype) for t in args])
            if kind in self._fitting and not self._unknown:
                return self._run(*args)
        tensors = self._arguments(args, named)
        sizes: dict[Any, tuple[int, str]] = {}
        for name, value, tensor in zip(self.input_names, self._program.block.inputs, tensors, strict=True):
            self._check(name, value, tensor, sizes)
        if len(self._fitting) >= _KINDS:
            self._fitting.clear()
        self._fitting.add(tuple([(t._array.shape, t._array.dtype) for t in tensors]))
        if not self._unknown:
            return self._run(*tensors)
        made = self._plain(*tensors)
        self._unknown = self._runner.most_turns > MOST_RECORDED
        return made

    def state_dict(self) -> dict[str, Tensor]:
        """Its constants by their names in the file: the weights of the model."""
        return dict(self._weights)

    @property
    def inputs(self) -> dict[str, str]:
        """The names of its inputs, with dtype and shape as text."""
        return dict(zip(self.input_names, map(self._shown, self._program.block.inputs), strict=True))

    @property
    def outputs(self) -> dict[str, str]:
        """The names of its results, with dtype and shape as text."""
        return dict(zip(self.output_names, map(self._shown, self._program.block.outputs), strict=True))

    @property
    def ops(self) -> dict[str, int]:
        """How often each op occurs."""
        counts: dict[str, int] = {}
        for step in self._program.block.walk():
            counts[step.name] = counts.get(step.name, 0) + 1
        return counts

    def __repr__(self) -> str:
        given = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
        made = ", ".join(self.output_names)
        return plain(f"<program {self.name}({given}) → {made}: {sum(self.ops.values())} steps>")

    def _shown(self, value: Value) -> str:
        names = {("symbol", i): name for i, name in enumerate(self._size_names)}
        sizes = [names.get(n.formula, "?") if isinstance(n, Dim) else str(n) for n in value.shape]
        return f"{value.spec.dtype.short}[{', '.join(sizes)}]"

    def _arguments(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor]:
        unknown = [name for name in named if name not in self.input_names[len(args) :]]
        if unknown or len(args) + len(named) != len(self.input_names):
            raise ArgumentError(f"program: takes {', '.join(self.input_names)}; it was given {len(args)} in order"
                                + (f" and {', '.join(named)}" if named else ""))  # fmt: skip
        given = [*args, *[named[name] for name in self.input_names[len(args) :]]]
        for name, value in zip(self.input_names, given, strict=True):
            if not isinstance(value, Tensor):
                raise ArgumentTypeError(f"program: input {name!r} must be a tensor, not {type(value).__name__}",
                                        fix="Make one with wf.tensor.")  # fmt: skip
        return given

    def _check(self, name: str, value: Value, tensor: Tensor, sizes: dict[Any, tuple[int, str]]) -> None:
        if tensor.dtype is not value.spec.dtype:
            raise DTypeError(f"program: input {name!r} must be {self._shown(value)}, it is {tensor.spec}",
                             fix=f"Convert it with .to({value.spec.dtype!r}).".replace("wayfare.", "wf."))  # fmt: skip
        fits = tensor.ndim == value.ndim
        for axis, n in enumerate(value.shape if fits else ()):
            here = tensor.shape[axis]
            if not isinstance(n, Dim):
                fits = fits and n == here
                continue
            first, where = sizes.setdefault(n.formula, (here, name))
            if first != here:
                raise ShapeError(f"program: {where!r} and {name!r} must have equal sizes where both are "
                                 f"{self._shown(value)}, not {first} and {here}")  # fmt: skip
        if not fits:
            raise ShapeError(f"program: input {name!r} must be {self._shown(value)}, it is {tensor.spec}",
                             fix="Sizes that are to vary are named in dynamic_axes of wf.export.")  # fmt: skip
