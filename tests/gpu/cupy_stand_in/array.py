"""The array of the stand-in: a wrapper, no subclass, of a NumPy array."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.gpu.cupy_stand_in import linalg
from tests.gpu.cupy_stand_in.device import _CURRENT, COUNTS, POOL, Device
from tests.gpu.cupy_stand_in.table import (
    BFLOAT16,
    FUNCTIONS,
    METHODS,
    REDUCING,
    UFUNCS,
    check_call,
    check_loop,
    in_bfloat16,
    numpys_own,
)

_REFUSED = "Implicit conversion to a NumPy array is not allowed. Please use `.get()`."
_REDUCTIONS = {"max", "min", "sum", "prod", "any", "all"}
# Functions of CuPy that read a size from the device, and so wait for it.
_WAITING = {"nonzero", "flatnonzero", "argwhere", "unique", "array_equal", "allclose"}


class _Flags:
    """CuPy's flags: no `writeable`."""

    __slots__ = ("_flags", "_own")

    def __init__(self, flags, own):
        self._flags, self._own = flags, own

    @property
    def c_contiguous(self):
        """Do the rows lie one after the other?"""
        return self._flags.c_contiguous

    @property
    def f_contiguous(self):
        """Do the columns lie one after the other?"""
        return self._flags.f_contiguous

    @property
    def owndata(self):
        """Does the array own its memory?"""
        return self._own


class _Memory:
    """A block of memory of the pool. Arrays and pointers hold it, and it is free when none is left."""

    __slots__ = ("__weakref__", "_device", "_host", "ptr")

    def __init__(self, host):
        self._host, self._device = host, _CURRENT[0]
        self.ptr = host.__array_interface__["data"][0]
        POOL.take(self, host.nbytes)


class _Pointer:
    """An address in a block of memory."""

    __slots__ = ("device_id", "mem", "ptr")

    def __init__(self, device, memory, address):
        self.device_id, self.mem, self.ptr = device, memory, address

    def __add__(self, offset):
        """An address some bytes further on."""
        return _Pointer(self.device_id, self.mem, self.ptr + offset)


class ndarray(NDArrayOperatorsMixin):
    """An array of the device."""

    __slots__ = ("__weakref__", "_device", "_host", "_memory", "base", "owner")
    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self.base = None
        self._device = _CURRENT[0]
        if memptr is not None:  # memory of another array, seen otherwise
            reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
            size = reach + np.dtype(dtype).itemsize if 0 not in shape else 0
            self._host = np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(memptr.ptr), 0, strides)
            self._device = memptr.device_id
            self._memory = memptr.mem  # the array has no base
            return
        self._host = np.empty(shape, dtype, order)
        self._memory = _Memory(self._host)

    def _view(self, host):
        """An array on the same memory."""
        if 0 not in host.strides and self._host.flags.writeable:
            with suppress(ValueError):
                host.flags.writeable = True  # CuPy knows no read-only views, such as NumPy's diagonals
        made = ndarray.__new__(ndarray)
        made._host = host
        made.base = self if self.base is None else self.base
        made._memory = self._memory
        made._device = self._device
        return made

    # -- what it is

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    strides = property(lambda self: self._host.strides)
    size = property(lambda self: self._host.size)
    ndim = property(lambda self: self._host.ndim)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    flags = property(lambda self: _Flags(self._host.flags, self.base is None))
    data = property(lambda self: _Pointer(self._device, self._memory, self._host.__array_interface__["data"][0]))
    device = property(lambda self: Device(self._device))
    T = property(lambda self: self._view(self._host.T))
    mT = property(lambda self: self._view(self._host.mT))

    @property
    def __cuda_array_interface__(self):
        return {**self._host.__array_interface__, "version": 3, "stream": 1}

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self.dtype == BFLOAT16:
            raise BufferError("bfloat16 is not supported by DLPack")
        return self._host.__dlpack__(max_version=(1, 0))

    def __dlpack_device__(self):
        return 2, self._device

    # -- to the host

    def get(self, stream=None, order="C", out=None, blocking=True):
        """A copy on the host."""
        COUNTS.to_host += 1
        COUNTS.largest = max(COUNTS.largest, self._host.size)
        if out is not None:
            out[...] = self._host
            return out
        return np.array(self._host, order="C" if order == "A" else order)

    def set(self, arr, stream=None):
        """Copy a NumPy array into this one."""
        if not isinstance(arr, np.ndarray) or arr.shape != self.shape or arr.dtype != self.dtype:
            raise TypeError("only a NumPy array of the same shape and dtype can be set")
        COUNTS.to_device += 1
        self._host[...] = arr

    def item(self, *args):
        """One number."""
        return self.get().item(*args)

    def tolist(self):
        """All numbers."""
        return self.get().tolist()

    def tobytes(self, order="C"):
        """The bytes."""
        return self.get().tobytes(order)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(_REFUSED)

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __index__(self):
        return self.get().__index__()

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])

    __hash__ = None

    def __repr__(self):
        return f"stand_in({self._host!r})"

    # -- parts

    def __getitem__(self, index):
        plain = in_range(self._host.shape, unwrapped(index))
        if any(isinstance(i, ndarray) and i.dtype == bool for i in (index if isinstance(index, tuple) else (index,))):
            COUNTS.synchronised += 1
        return _wrapped(self._host[plain], (self,))

    def __setitem__(self, index, value):
        self._host[in_range(self._host.shape, unwrapped(index))] = unwrapped(value)

    # -- NumPy's functions

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        name = ufunc.__name__
        if getattr(np, name, None) is not ufunc:
            return NotImplemented  # CuPy looks for `cupy.<name>`, which functions of SciPy are not
        if "out" in options:
            (options["out"],) = options["out"]
        if method == "__call__":
            return call_function(name, inputs, options) if name in FUNCTIONS else call_ufunc(name, inputs, options)
        if method == "at":
            return NotImplemented
        if method == "outer":
            return _wrapped(getattr(ufunc, method)(*[unwrapped(x) for x in inputs]), inputs)
        if name not in REDUCING.get(method, ()):
            raise NotImplementedError(f"`cupy_{name}.{method}` is not supported yet")
        if not set(options) <= {"axis", "dtype", "out", "keepdims"}:
            raise TypeError(f"{method}() got an unexpected keyword argument {set(options)}")
        COUNTS.launched += 1
        given = [unwrapped(x) for x in inputs]
        if BFLOAT16 in [getattr(x, "dtype", None) for x in given]:
            raise TypeError(f"cupy.{name}.{method} does not support bfloat16")
        return _result(getattr(ufunc, method)(*given, **unwrapped(options)), inputs, options)

    def __array_function__(self, function, types, args, options):
        path = function.__module__.partition(".")[2]
        name = f"{path}.{function.__name__}" if path else function.__name__
        if name in UFUNCS:
            return call_ufunc(name, args, options)
        if name not in FUNCTIONS:
            return NotImplemented
        return call_function(name, args, options)


def _method(name):
    def call(self, *args, **options):
        given = [unwrapped(a) for a in args]
        if name in ("take", "clip", "searchsorted"):
            check_call(name, (self, *args), options)
        if name in ("argsort", "sort", "partition", "argpartition"):
            check_call(name.removeprefix("arg") if name == "argpartition" else name, (self, *args), options)
        if name in _REDUCTIONS and not set(options) <= {"axis", "out", "keepdims", "dtype"}:
            raise TypeError(f"{name}() got an unexpected keyword argument {set(options)}")
        COUNTS.launched += 1
        if name == "nonzero":
            COUNTS.synchronised += 1
        in_bfloat16(name, [self._host])
        return _result(getattr(self._host, name)(*given, **unwrapped(options)), (self, *args), options)

    call.__name__ = name
    return call


for _name in METHODS - set(vars(ndarray)):
    if callable(getattr(np.ndarray, _name, None)):
        setattr(ndarray, _name, _method(_name))


def of_host(host):
    """A new array of the device with the values of a NumPy array."""
    made = ndarray.__new__(ndarray)
    made._host = host if isinstance(host, np.ndarray) else np.asarray(host)
    made.base = None
    made._device = _CURRENT[0]
    made._memory = _Memory(made._host)
    return made


def unwrapped(value):
    """The NumPy arrays inside arrays, tuples, lists and dictionaries; a NumPy array among them is refused."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if value.__class__ in (tuple, list):
        return value.__class__(unwrapped(v) for v in value)
    if value.__class__ is dict:
        return {key: unwrapped(v) for key, v in value.items()}
    return value


def in_range(shape, index):
    """An index as CuPy reads it: numbers out of range wrap around, and nobody is told."""
    entries = index if isinstance(index, tuple) else (index,)
    behind = entries[next((k for k, e in enumerate(entries) if e is Ellipsis), len(entries)) + 1 :]
    dim, out = 0, []
    for entry in entries:
        if entry is Ellipsis:
            dim = len(shape) - sum(e is not None for e in behind)
        elif isinstance(entry, np.ndarray) and entry.dtype != bool:
            entry = entry % max(shape[dim], 1)
            dim += 1
        elif isinstance(entry, np.ndarray):
            dim += entry.ndim
        elif entry is not None:
            dim += 1
        out.append(entry)
    return tuple(out) if isinstance(index, tuple) else out[0]


def _arrays(values):
    for value in values:
        if isinstance(value, ndarray):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _arrays(value)


def _wrapped(value, given):
    """Results as arrays of the device: views of what was given, or new ones."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_wrapped(v, given) for v in value])
    if isinstance(value, (tuple, list)):
        return value.__class__(_wrapped(v, given) for v in value)
    if isinstance(value, np.generic):
        return of_host(np.asarray(value))
    if not isinstance(value, np.ndarray):
        return value
    for source in _arrays(given):
        if source._host is value:
            return source
        if np.may_share_memory(value, source._host):
            return source._view(value)
    return of_host(value)


def _result(value, given, options):
    out = options.get("out")
    return out if isinstance(out, ndarray) else _wrapped(value, given)


def call_function(name, args, options):
    """A function of CuPy."""
    check_call(name, args, options)
    if options.get("subok") is not None:
        raise TypeError("subok is not supported yet")
    if name in _WAITING:
        COUNTS.synchronised += 1
    COUNTS.launched += 1
    plain = in_bfloat16(name, [unwrapped(a) for a in args])
    if "linalg." in name:
        linalg.check(name, [a for a in plain if isinstance(a, np.ndarray)])
    keywords = unwrapped(options)
    if name == "take":
        keywords["mode"] = "wrap"  # of indices out of range, as in CuPy
    if keywords.get("casting", 0) is None:
        del keywords["casting"]
    with np.errstate(all="ignore"):
        return _result(numpys_own(name)(*plain, **keywords), args, options)


def call_ufunc(name, args, options):
    """An elementwise function of CuPy."""
    if name not in UFUNCS:
        raise TypeError(f"CuPy has no {name}")
    ufunc = numpys_own(name)
    count = len(UFUNCS[name][0].partition("->")[0])
    inputs, outs = args[:count], args[count:]
    check_loop(name, inputs)
    if outs:
        options = {**options, "out": outs[0]}
    if "out" in options and options["out"] is not None and not isinstance(options["out"], ndarray):
        raise TypeError(f"Output arguments type must be cupy.ndarray, not {type(options['out'])}")
    if not set(options) <= {"out", "dtype", "casting"}:
        raise TypeError(f"Wrong arguments {set(options)} for cupy_{name}")
    COUNTS.launched += 1
    with np.errstate(all="ignore"):
        return _result(ufunc(*in_bfloat16(name, [unwrapped(x) for x in inputs]), **unwrapped(options)), args, options)
