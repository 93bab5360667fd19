"""`vmap`: a function written for one example, run on a batch of them.

Inside, a tensor is a BatchedTensor: the function sees the shape of one example; its `value` is a tensor with the whole
batch in dimension 0. The executor runs each op by the batch rule of its record, so this file is about no op in
particular.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.vmap_dims import OtherStructure, VmapInfo, each, is_dim, no_dims
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.errors import (
    ArgumentError,
    InPlaceError,
    MismatchError,
    NoSuchDimensionError,
    OperationError,
    RefusedArgumentError,
    WayfareError,
    WrongKindError,
)
from wayfare.core.executor import EAGER, Executor, Interceptor
from wayfare.core.mode import Mode, changed_mode, current, outer_mode
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import DType, Size
from wayfare.core.tensor import Tensor, on_device_of


class BatchedTensor(Tensor):
    """One example's view of a tensor that holds the whole batch in dimension 0 of `value`."""

    __slots__ = ("level", "value")
    device = property(lambda self: self.value.device)

    def __init__(self, value: Tensor, level: int) -> None:
        self.value = value
        self.level = level
        self._grad = self._view = self._extras = None

    @property
    def shape(self) -> Size:
        """The shape of one example."""
        return Size(self.value.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of dimensions of one example."""
        return self.value.ndim - 1

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.value.dtype

    @property  # type: ignore[misc]
    def requires_grad(self) -> bool:
        """Does the batch behind it require a gradient?"""
        return self.value.requires_grad

    @property
    def _array(self) -> Any:  # type: ignore[override]
        raise OperationError("vmap: this needs the numbers of one example, but a whole batch is being computed",
                             fix="Use wf.where in place of `if`, and ops in place of .item() and NumPy.")  # fmt: skip

    @property
    def _edge(self) -> Any:
        return self.value._edge

    @property
    def _requires_grad(self) -> bool:  # type: ignore[override]
        return self.value._requires_grad

    def detach(self) -> Tensor:
        """The same values, cut from the history."""
        return BatchedTensor(self.value.detach(), self.level)

    def __repr__(self) -> str:
        return f"BatchedTensor(level={self.level}, one example is {self.spec}, behind it {self.value.spec})"


class VmapExecutor(Interceptor):
    """Runs ops for one level of vmap; ops on tensors that are not batched run in the outer mode."""

    __slots__ = ("level", "outer", "randomness", "size")

    keeps_graph = True
    # A module inside is called for a whole batch: by automatic batching, which has counted the examples, as a rule.
    counts_modules = times_modules = False

    def __init__(self, size: int, outer: Mode | None, randomness: str) -> None:
        self.size = size
        self.outer = outer
        self.randomness = randomness
        below = self._below()
        self.level: int = below.level + 1 if isinstance(below, VmapExecutor) else 1

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run one op for the whole batch."""
        batched = tuple([isinstance(t, BatchedTensor) and t.level == self.level for t in inputs])
        if not any(batched) and "key" not in attrs:
            with self.outside():
                return apply(op, inputs, attrs)
        if "key" in attrs and self.randomness != "same":
            return self._random(op, inputs, batched, attrs)
        if not op.broadcasts:  # elementwise ops broadcast, and fail exactly where one example would
            _check_one_example(op, inputs, attrs)
        values = tuple(
            [t.value if b else t for t, b in zip(inputs, batched, strict=True)]  # type: ignore[attr-defined]
        )
        try:
            with self.outside():
                if not any(batched):
                    return apply(op, inputs, attrs)
                out = op.batch(tensor_ops, self.size, values, batched, attrs)
        except WayfareError:
            _check_one_example(op, inputs, attrs)
            raise
        return tuple(self.wrap(o) for o in out) if isinstance(out, (tuple, list)) else self.wrap(out)

    def _random(self, op: Op, inputs: tuple[Tensor, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        """Different numbers for each example: the key of each draw is made from the example's number."""
        if self.randomness == "error":
            raise OperationError(f"vmap: {op.name} draws random numbers, and randomness is 'error'",
                                 fix="Pass randomness='different' or randomness='same' to vmap.")  # fmt: skip
        # The keys of the examples do not come from a generator, so they cannot be replayed.
        self.not_replayable("it draws random numbers for each example of a vmap")
        seed, call = attrs["key"]
        rows = []
        with self.outside():
            for i in range(self.size):
                own = attrs | {"key": (seed, call + (i + 1) * 2**40)}
                row = tuple(
                    tensor_ops.select(t.value, dim=0, index=i) if b else t  # type: ignore[attr-defined]
                    for t, b in zip(inputs, batched, strict=True)
                )
                rows.append(apply(op, row, own))
            return self.wrap(tensor_ops.stack(*rows, dim=0))

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python reads a value: allowed only if it is the same for all examples."""
        if isinstance(tensor, BatchedTensor) and tensor.level == self.level:
            return tensor._array
        with self.outside():
            return tensor._read(how)

    def may_decide(self, tensor: Tensor) -> bool:
        """The examples may differ in it."""
        return not isinstance(tensor, BatchedTensor)

    def behind(self, tensor: Tensor, name: str) -> Tensor:
        """The plain tensor behind all levels."""
        return lay_open(tensor)[0]

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place for the whole batch at once."""
        into, values = tensor, result
        if isinstance(result, BatchedTensor) and result.level == self.level:
            values = result.value
            if not isinstance(tensor, BatchedTensor) or tensor.level != self.level:
                raise InPlaceError("vmap: values that differ between the examples cannot be written into a tensor that "
                                   "all of them share", fix="Make that tensor from a batched one: wf.zeros_like(x), "
                                   "x.new_zeros(...), x.clone().")  # fmt: skip
        with self.outside():
            if isinstance(tensor, BatchedTensor) and tensor.level == self.level:
                into = tensor.value
                if values is not result and values.ndim < into.ndim:
                    shape = tuple(values.shape)
                    values = tensor_ops.reshape(values, shape=(shape[0],) + (1,) * (into.ndim - len(shape)) + shape[1:])
            move(into, values)

    def one_for_each(self, tensor: Tensor, out: Tensor) -> Tensor:
        """A new tensor `out` made like `tensor` (`new_zeros`): if `tensor` is batched, one for each example."""
        batched = isinstance(tensor, BatchedTensor) and tensor.level == self.level
        behind = tensor.value if batched else tensor  # type: ignore[attr-defined]
        with self.outside():
            if batched:
                # Separate memory for each example, because it may be written.
                shape = tuple(out.shape)
                wide = tensor_ops.expand(tensor_ops.reshape(out.detach(), shape=(1, *shape)), shape=(self.size, *shape))
                out = tensor_ops.clone(wide).requires_grad_(out.requires_grad)
            out = current().executor.one_for_each(behind, out)
        return self.wrap(out) if batched else out

    def custom(self, function: Any, args: tuple[Any, ...], run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """A custom Function: its own `vmap` runs it for the whole batch."""
        batched = [isinstance(a, BatchedTensor) and a.level == self.level for a in args]
        rule = getattr(function, "vmap", None)
        with self.outside():
            if not any(batched):
                return current().executor.custom(function, args, run)
            if rule is None:
                raise OperationError(f"{function.__name__}: a custom Function cannot be taken apart inside vmap",
                                     fix="Give it a static method vmap(info, in_dims, *args) that returns (output, "
                                     "out_dims), or write it in tensor ops.")  # fmt: skip
            values = [a.value if b else a for a, b in zip(args, batched, strict=True)]
            in_dims = tuple(0 if b else None for b in batched)
            out, dims = rule(VmapInfo(self.size, self.randomness), in_dims, *values)
            several = isinstance(out, (tuple, list))
            each = dims if isinstance(dims, (tuple, list)) else (dims,) * (len(out) if several else 1)
            made = [o if d is None else self.wrap(o.movedim(d, 0))
                    for o, d in zip(out if several else (out,), each, strict=True)]  # fmt: skip
        return tuple(made) if several else made[0]

    # -- what a recorder outside must know

    def _below(self) -> Executor:
        return EAGER if self.outer is None else self.outer.executor

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken."""
        self._below().draw(generator, key)

    def generator_state_read(self, state: Tensor) -> None:
        """The state of a generator was given out."""
        self._below().generator_state_read(state)

    def generator_state_set(self, state: Tensor) -> None:
        """A generator is about to be set to a state."""
        self._below().generator_state_set(state)

    def not_replayable(self, reason: str) -> None:
        """What happens here cannot be done again without Python."""
        self._below().not_replayable(reason)

    def memory_shared(self, tensor: Tensor) -> None:
        """Another tensor is about to be made on the memory of this one."""
        self._below().memory_shared(tensor)

    def unseen_input(self, reason: str) -> None:
        """What runs takes something in that no op shows."""
        self._below().unseen_input(reason)

    def wrap(self, value: Tensor) -> BatchedTensor:
        """A whole batch as one example sees it."""
        return BatchedTensor(value, self.level)

    def outside(self) -> outer_mode:
        """The mode outside this vmap, but recording as inside."""
        return outer_mode(self.outer)


def _check_one_example(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> None:
    """Raise what the op raises for one example, with the shapes that the user sees. The batch may hide the mistake: a
    scalar of each example is a vector in the batch, and a vector can be multiplied by a matrix."""
    specs = [t.spec for t in inputs]
    try:
        op.infer(*specs, **attrs)
    except WayfareError as error:
        error.failed_on(op.name, specs)
        raise


def map_batch(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str = "same", *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """`vmap` without detaching its results."""
    if randomness not in ("error", "different", "same"):
        raise RefusedArgumentError(f"vmap: randomness is 'error', 'different' or 'same', not {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"vmap: chunk_size must be at least 1, not {chunk_size}")

    def run(args: tuple[Any, ...], dims: tuple[Any, ...], options: dict[str, Any], size: int) -> Any:
        executor = VmapExecutor(size, current().replace(), randomness)
        inside = [_into(arg, dim, executor) for arg, dim in zip(args, dims, strict=True)]
        with changed_mode(executor=executor):
            out = func(*inside, **options)
        try:
            return _out_of(out, out_dims, executor)
        except OtherStructure:
            raise ArgumentError(f"vmap: out_dims {out_dims!r} has not the structure of the results",
                                fix="Give one number for all, or as many as there are results.") from None  # fmt: skip

    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        if not (isinstance(in_dims, tuple) or is_dim(in_dims)):
            raise no_dims("in_dims", in_dims)
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ArgumentError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        try:
            size = _batch_size(args, dims)
        except OtherStructure:
            raise ArgumentError(f"vmap: in_dims {in_dims!r} has not the structure of the arguments",
                                fix="Give one number for all, or one for each.") from None  # fmt: skip
        if chunk_size is None or chunk_size >= size:
            return run(args, dims, options, size)
        chunks = []
        for start in range(0, size, chunk_size):
            length = min(chunk_size, size - start)
            take = functools.partial(_part, start=start, length=length)
            chunks.append(run(tuple(each(list(args), list(dims), take)), dims, options, length))
        return _joined(chunks, out_dims)

    return call


def _batch_size(structure: Any, dims: Any) -> int:
    sizes: list[int] = []
    _collect_sizes(structure, dims, sizes)
    if not sizes:
        raise ArgumentError("vmap: no argument has a batch dimension", fix="Give an in_dims that is not None.")
    if len(set(sizes)) > 1:
        raise MismatchError(f"vmap: the arguments' batch sizes differ: {sorted(set(sizes))}")
    return sizes[0]


def _part(value: Any, dim: Any, start: int, length: int) -> Any:
    """A part of the examples of an argument."""
    return value if dim is None or not isinstance(value, Tensor) else value.narrow(dim, start, length)


def _joined(chunks: list[Any], out_dims: Any) -> Any:
    """The results of several chunks, concatenated."""
    first = chunks[0]
    if isinstance(first, dict):
        dims = out_dims if isinstance(out_dims, dict) else dict.fromkeys(first, out_dims)
        return {k: _joined([c[k] for c in chunks], dims[k]) for k in first}
    if isinstance(first, (tuple, list)):
        each = out_dims if isinstance(out_dims, (tuple, list)) else [out_dims] * len(first)
        return type(first)(_joined([c[i] for c in chunks], d) for i, d in enumerate(each))
    return tensor_ops.cat(*chunks, dim=(out_dims or 0) % first.ndim)


def _collect_sizes(arg: Any, dim: Any, sizes: list[int]) -> None:
    def look(value: Any, d: Any) -> None:
        if d is None:
            return
        if not isinstance(value, Tensor):
            raise ArgumentError(f"vmap: in_dims is {d} for an argument that is no tensor but a {type(value).__name__}",
                                fix="Give None for it in in_dims: in_dims=(0, None).")  # fmt: skip
        if value.ndim == 0 or not -value.ndim <= d < value.ndim:
            raise MismatchError(f"vmap: in_dims {d} is not a dimension of {value.spec}")
        sizes.append(value.shape[d])

    each(arg, dim, look)


def _into(arg: Any, dim: Any, executor: VmapExecutor) -> Any:
    def leaf(value: Any, d: Any) -> Any:
        if d is None or not isinstance(value, Tensor):
            return value
        return executor.wrap(_move(value, d % value.ndim, 0))

    return each(arg, dim, leaf)


def _out_of(out: Any, out_dims: Any, executor: VmapExecutor) -> Any:
    def leaf(value: Any, d: Any) -> Any:
        if not isinstance(value, Tensor):
            raise WrongKindError(f"vmap: the function must return tensors, not {type(value).__name__}")
        differs = isinstance(value, BatchedTensor) and value.level == executor.level
        if d is None:
            if differs:
                raise ArgumentError("vmap: out_dims is None for a result that differs between the examples",
                                    fix="Say where its batch dimension goes: out_dims=0.")  # fmt: skip
            return value
        if differs:
            whole = value.value  # type: ignore[attr-defined]
        else:
            shape = tuple(value.shape)
            whole = tensor_ops.expand(tensor_ops.reshape(value, shape=(1, *shape)), shape=(executor.size, *shape))
        if not -whole.ndim <= d < whole.ndim:
            raise NoSuchDimensionError(f"vmap: out_dims is {d}, but the result has {whole.ndim} dimensions with its "
                                       "batch")  # fmt: skip
        return _move(whole, 0, d % whole.ndim)

    return each(out, out_dims, leaf)


def _move(t: Tensor, source: int, target: int) -> Tensor:
    if source == target:
        return t
    order = [d for d in range(t.ndim) if d != source]
    order.insert(target, source)
    return tensor_ops.permute(t, dims=tuple(order))  # type: ignore[no-any-return]


# -- for differentiation inside vmap ----------------------------------------------------------------------------------


def active_levels() -> list[VmapExecutor]:
    """The active vmaps, outermost first."""
    levels: list[VmapExecutor] = []
    mode: Mode | None = current()
    while mode is not None and isinstance(mode.executor, VmapExecutor):
        levels.insert(0, mode.executor)
        mode = mode.executor.outer
    return levels


class drawing_again:
    """`with drawing_again():` — random draws repeat an earlier draw by its key, instead of a new one per example.

    Gradient rules (of dropout) run like that.
    """

    __slots__ = ("_randomness",)

    def __enter__(self) -> None:
        self._randomness = [(executor, executor.randomness) for executor in active_levels()]
        for executor, _ in self._randomness:
            executor.randomness = "same"

    def __exit__(self, *error: object) -> None:
        for executor, randomness in self._randomness:
            executor.randomness = randomness


def outside_all() -> outer_mode:
    """The mode outside all vmaps, for plain tensors; the recording of gradients stays as inside."""
    levels = active_levels()
    return outer_mode(levels[0].outer if levels else current().replace())


def batched_everywhere(t: Tensor) -> Tensor:
    """The same tensor, batched at every active level: its gradient is then one per example."""
    for executor in active_levels():
        zeros = on_device_of(t, np.zeros(executor.size, t.dtype.numpy))
        t = apply(REGISTRY["add"], (t, executor.wrap(zeros)))
    return t


def lay_open(t: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Unwrap a tensor: the plain tensor, and the vmap levels of its leading dimensions, outermost first."""
    levels: list[int] = []
    while isinstance(t, BatchedTensor):
        levels.insert(0, t.level)
        t = t.value
    return t, tuple(levels)


def close_again(t: Tensor, levels: tuple[int, ...]) -> Tensor:
    """Undo `lay_open`: the leading dimensions become the batches of these levels, outermost first."""
    for level in levels:
        t = _insert_level(t, level)
    return t


def _insert_level(t: Tensor, level: int) -> Tensor:
    """Make dimension 0 of `t` the batch of `level`, below the wrappers of inner vmaps."""
    if isinstance(t, BatchedTensor) and t.level > level:
        return BatchedTensor(_insert_level(_move(t.value, 1, 0), level), t.level)
    return BatchedTensor(t, level)
