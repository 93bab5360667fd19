"""Tensor: a thin handle on an array, with its gradient and the node that made it.

Operators and methods that are also functions (`x + y`, `x.sum()`) are installed by `wayfare.api.functions`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wayfare.core.device import ARRAYS, BACKENDS, CPU, Device, copied, device_of, moved, to_host
from wayfare.core.dlpack import array_of, export, of_device
from wayfare.core.errors import ArgumentError, ArgumentTypeError, GraphError, OperationError, WrongKindError
from wayfare.core.grad_layout import in_layout_of
from wayfare.core.mode import STATE, UNUSUAL, executor
from wayfare.core.node import Handle, Node, StructureHandle, unroll
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS, OF_NUMPY, DType, Size, Spec, as_dtype, default_dtype
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor_methods import TensorMethods
from wayfare.core.view import View
from wayfare.core.write_clock import version


class Tensor(TensorMethods):
    """A multi-dimensional array that may record what is done with it.

    Make one with `wf.tensor(data)`, `wf.zeros(…)`, `wf.randn(…)`, `wf.from_numpy(array)`.
    """

    __slots__ = ("__weakref__", "_array", "_edge", "_extras", "_grad", "_handle", "_requires_grad", "_role", "_view")

    _array: Array
    _edge: Any  # Node, (Node, output number), or None for a leaf
    _requires_grad: bool
    _grad: Any  # None, a Tensor, or Rows until somebody asks for the whole
    _view: View | None
    _extras: dict[str, Any] | None  # leaf hooks and marks
    # What a module takes it for. Only nn.Parameter and nn.Buffer set it; most tensors do not have it. A parameter is a
    # plain Tensor with this mark, not a subclass, so that operators take their fastest path.
    _role: str
    # The executor's own: what a stand-in stands for (core/stand_in.py), a mark of automatic batching. Most tensors
    # do not have it.
    _handle: Any

    def __init__(self, data: Any = (), *more: Any, device: Any = None) -> None:
        if more or isinstance(data, (int, float)):  # PyTorch takes them for sizes
            raise ArgumentTypeError("Tensor: takes a list of numbers, not sizes", fix=f"Use wf.empty{(data, *more)}.")
        array = np.array(data._array if isinstance(data, Tensor) else data, dtype=default_dtype().numpy)
        self._array = array
        self._edge = None
        self._requires_grad = False
        self._grad = None
        self._view = None
        self._extras = None

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The size of each dimension."""
        return Size(self._array.shape)

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return OF_NUMPY[self._array.dtype]

    @property
    def spec(self) -> Spec:
        """Shape and dtype in one."""
        return Spec(self.shape, self.dtype)

    @property
    def device(self) -> Device:
        """Where it lives."""
        return device_of(self._array) if BACKENDS else CPU

    @property
    def is_cuda(self) -> bool:
        """Does it live on a GPU?"""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Does it live on the CPU?"""
        return self.device.type == "cpu"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._array.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._array.nbytes

    # -- the graph --------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Is a gradient wanted for it, or for something it was computed from?"""
        if self._view is not None:
            self._renew()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for a gradient (or no longer ask). Leaves only."""
        if requires_grad is not True and requires_grad is not False:
            raise WrongKindError(f"requires_grad: must be True or False, not {requires_grad!r}")
        if self._edge is not None:
            if requires_grad:
                return self
            raise GraphError("requires_grad_: only a leaf variable can stop requiring grad; this tensor was computed",
                             fix="Use .detach() to cut it from its history.")  # fmt: skip
        if requires_grad and self._array.dtype.kind not in FLOAT_KINDS:
            raise OperationError("requires_grad_: only floating-point tensors can require gradients, this is "
                                 f"{self.dtype}", fix="Convert it with .float() first.")  # fmt: skip
        if requires_grad and self._extras is not None and "inference" in self._extras:
            raise GraphError("requires_grad_: a tensor made under inference_mode cannot join the graph",
                             fix="Make it outside inference_mode, or .clone() it there.")  # fmt: skip
        if UNUSUAL and self._requires_grad is not requires_grad:
            executor().flag_set(self, "requires_grad")
            structure_changed()
        self._requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Was it made by the user, not computed from tensors that require a gradient?"""
        if self._view is not None:
            self._renew()
        return self._edge is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that made it; None for a leaf."""
        if self._view is not None:
            self._renew()
        edge = self._edge
        return edge[0] if edge.__class__ is tuple else edge  # type: ignore[no-any-return]

    @property
    def output_nr(self) -> int:
        """Which output of its `grad_fn` it is."""
        edge = self._edge
        return edge[1] if edge.__class__ is tuple else 0

    @property
    def grad(self) -> Tensor | None:
        """The gradient summed up so far; None before the first backward."""
        if self._grad.__class__ is not Tensor and _is_rows(self._grad):
            self._grad = wrap(in_layout_of(self._grad.dense(), self._array))
        if UNUSUAL:
            executor().grad_read(self)
        return self._grad  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise ArgumentTypeError(f"grad must be a Tensor or None, not {type(value).__name__}")
            if value.spec != self.spec or (BACKENDS and value.device != self.device):
                raise OperationError(f"grad: {value.spec} on {value.device} does not fit {self.spec} on {self.device}")
        if UNUSUAL:
            executor().grad_written(self, value)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def row_grad(self) -> tuple[Tensor, Tensor] | None:
        """The gradient as (rows, values), if only some rows of dimension 0 were used and nobody asked for the whole.

        `rows` are int64 numbers, ascending, each once; `values` [len(rows), …] is the gradient's own memory, so
        writing into it changes the gradient. None if there is no gradient or it is a whole tensor.
        """
        rows = self._grad
        if not _is_rows(rows) or not executor().works_on_rows:
            return None
        found = rows.by_row()
        if found is None:
            self._grad = wrap(in_layout_of(rows.dense(), self._array))
            return None
        return wrap(found[0]), wrap(found[1])

    @property
    def data(self) -> Tensor:
        """The same memory without history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(f"data must be a Tensor, not {type(value).__name__}")
        if self._requires_grad and value._array.dtype.kind not in FLOAT_KINDS:
            raise OperationError(f"data: what requires a gradient holds floating-point numbers, not {value.dtype}")
        if UNUSUAL:
            executor().data_set(self)
            executor().memory_shared(value)
        self._array = value._array

    def detach(self) -> Tensor:
        """The same memory, cut from the history; writes in place are still noticed."""
        if UNUSUAL:
            executor().memory_shared(self)
        return wrap(self._array)

    @property
    def _version(self) -> int:
        """How many times its memory was written in place."""
        if UNUSUAL:
            executor().unseen_input("it reads how often a tensor was written")
        return version(self._array)

    def _renew(self) -> None:
        """If this is a view whose base was written, take over the new history (set by wayfare.core.inplace)."""

    # -- hooks ------------------------------------------------------------------------------------------------

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Handle:
        """Call `hook(grad)` when this tensor's gradient is final; what it returns (if not None) replaces it."""
        if not self.requires_grad:
            raise GraphError("register_hook: this tensor requires no gradient, so the hook would never run",
                             fix="Set requires_grad=True first.")  # fmt: skip
        if self._edge is None:
            return StructureHandle(self._more().setdefault("hooks", {}), hook)
        unroll(self.grad_fn)
        node, number = self.grad_fn, self.output_nr
        assert node is not None
        return Handle(node.more().tensor_hooks.setdefault(number, {}), hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Handle:
        """Call `hook(tensor)` after a gradient was summed into this leaf."""
        if self._edge is not None or not self._requires_grad:
            raise GraphError("register_post_accumulate_grad_hook: only a leaf that requires a gradient can have one")
        return StructureHandle(self._more().setdefault("post_hooks", {}), hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this computed tensor in `.grad`, as leaves do."""
        if not self.requires_grad:
            raise GraphError("retain_grad: this tensor requires no gradient",
                             fix="Compute it from a tensor with requires_grad=True.")  # fmt: skip
        executor().flag_set(self, "retain_grad()")
        unroll(self.grad_fn)
        node = self.grad_fn
        if node is not None:
            node.more().retained[self.output_nr] = weakref.ref(self)

    @property
    def retains_grad(self) -> bool:
        """Was `retain_grad()` asked for?"""
        node = self.grad_fn
        return node is not None and node.extras is not None and self.output_nr in node.extras.retained

    def _more(self) -> dict[str, Any]:
        if self._extras is None:
            self._extras = {}
        return self._extras

    # -- reading values ---------------------------------------------------------------------------------------

    def _read(self, how: str) -> Array:
        """The array, for Python to read; the executor may provide it. One of another device is copied to the host."""
        mode = STATE.mode
        if mode is None:
            array = self._array
            return array if array.__class__ is np.ndarray else to_host(array)
        array = to_host(mode.executor.read(self, how))
        if mode.watcher is not None:
            mode.watcher.looked(self, how, array)
        return array

    def item(self) -> Any:
        """The one element as a Python number."""
        array = self._read("item()")
        if array.size != 1:
            raise OperationError(f"item: needs a tensor of one element, a scalar, this is {self.spec}",
                                 fix="Use .tolist() for all of them.")  # fmt: skip
        return array.item()

    def tolist(self) -> Any:
        """All elements as nested Python lists."""
        return self._read("tolist()").tolist()

    def __bool__(self) -> bool:
        array = self._read("bool()")
        if array.size != 1:
            count = "more than one value" if array.size else "no value"
            raise OperationError(f"bool: the truth of {self.spec}, {count}, is ambiguous",
                                 fix="Use .any() or .all(), .numel() > 0, or compare one element.")  # fmt: skip
        return bool(array.item())

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def _number(self, name: str) -> Any:
        if (array := self._read("item()")).size != 1:  # a ValueError here and a RuntimeError in item(), as in PyTorch
            raise ArgumentError(f"{name}: only a one-element tensor becomes a Python scalar, this is {self.spec}")
        return array.item()

    def __index__(self) -> int:
        if self._array.dtype.kind not in "iub" or self._array.size != 1:
            raise ArgumentTypeError(f"only a one-element integer tensor can be an index, this is {self.spec}")
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self._number("complex"))

    def __format__(self, spec: str) -> str:
        return format(self._read("format()").item(), spec) if self.ndim == 0 else object.__format__(self, spec)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise ArgumentTypeError("len: a 0-dim tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise ArgumentTypeError("iter: a 0-dim tensor is a scalar, which cannot be iterated")
        return iter(self.unbind(0))

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, (Tensor, bool, int, float, complex, np.generic)):
            raise WrongKindError(f"in: a tensor holds numbers, and a {type(value).__name__} is none")
        return bool(np.any(self._read("in") == (value._read("in") if isinstance(value, Tensor) else value)))

    # Tensors are keys by identity; the C-level hash keeps dictionaries of them fast.
    __hash__ = object.__hash__

    # -- other libraries --------------------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> Array:
        """The same memory as a NumPy array."""
        if BACKENDS and not force and not self.is_cpu:
            raise ArgumentTypeError(f"numpy: this tensor is on {self.device}, and NumPy's arrays are on the CPU",
                                    fix=f"Use {'.detach()' * self.requires_grad}.cpu().numpy().")  # fmt: skip
        if self.requires_grad and not force:
            raise OperationError("numpy: this tensor requires grad, and NumPy would lose its gradient",
                                 fix="Use .detach().numpy().")  # fmt: skip
        return self._read("numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ArgumentError(f"__array__: {self.dtype} cannot become {np.dtype(dtype).name} without a copy")
        return np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        array = self.numpy() if self._array.__class__ not in BACKENDS else of_device(self, "__dlpack__")
        return export(array, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array: Any = self._array
        if array.__class__ not in BACKENDS:
            raise AttributeError("__cuda_array_interface__: this tensor is not on a GPU")
        found: dict[str, Any] = of_device(self, "__cuda_array_interface__").__cuda_array_interface__
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __copy__(self) -> Tensor:
        out = self.detach()
        out._edge, out._requires_grad, out._grad = self._edge, self._requires_grad, self._grad
        return _in_the_role_of(self, out)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._edge is not None:
            raise GraphError("deepcopy: only a leaf variable can be copied deeply, this tensor was computed",
                             fix="Use .detach().clone().")  # fmt: skip
        array = copied(self._array, "C")
        out = fill(self.__class__.__new__(self.__class__), array)
        out._requires_grad = self._requires_grad
        grad = None if hasattr(self, "_role") else self.grad  # a copied model begins without gradients
        out._grad = None if grad is None else wrap(copied(grad._array, "C"))
        memo[id(self)] = out
        return _in_the_role_of(self, out)


def _in_the_role_of(original: Tensor, copy: Tensor) -> Tensor:
    """A copy of a parameter is a parameter."""
    if hasattr(original, "_role"):
        copy._role = original._role
    return copy


def fill(tensor: Tensor, array: Array) -> Tensor:
    """Set the slots of a bare Tensor."""
    tensor._array = array
    tensor._requires_grad = False
    tensor._edge = tensor._grad = tensor._view = tensor._extras = None
    return tensor


_new = Tensor.__new__


def _is_rows(grad: Any) -> bool:
    return grad is not None and not isinstance(grad, Tensor)


def wrap(array: Array) -> Tensor:
    """A leaf tensor on an array of a dtype Wayfare has, without a copy."""
    return fill(_new(Tensor), array)


def on_device_of(t: Tensor, array: Array) -> Tensor:
    """A NumPy array that the library made, as a leaf on the device of `t`."""
    return wrap(array) if not BACKENDS or t.device.type == "cpu" else wrap(moved(array, t.device))


def to_tensor(value: Any, dtype: Any = None, *, op: str = "tensor") -> Tensor:
    """A tensor from a tensor, an array or a number, without a copy where that can be."""
    if isinstance(value, Tensor):
        return value
    wanted = None if dtype is None else as_dtype(dtype, op=op).numpy
    if isinstance(value, np.ndarray) or value.__class__ in ARRAYS:
        array = value.astype(wanted) if wanted is not None else value
        if array.dtype not in OF_NUMPY:
            array = array.astype(as_dtype(array.dtype, op=op).numpy)
        return wrap(array)
    array = array_of(value, op)
    if wanted is None:
        if array.dtype == np.float64 and not isinstance(value, np.generic):
            wanted = default_dtype().numpy
        elif array.dtype.kind == "O":
            raise ArgumentTypeError(f"{op}: cannot make a tensor of {type(value).__name__}")
        else:
            wanted = as_dtype(array.dtype, op=op).numpy
    return wrap(array.astype(wanted, copy=False))
