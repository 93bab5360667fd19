"""All that can be seen of results and state, written down as plain data, and how two such descriptions are compared."""

import dataclasses
import enum
import re
import types

import numpy as np

import wayfare as wf
from wayfare import nn

MOST = 60  # so many tensors are compared pair by pair
PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), enum.Enum, range, slice)


class Walk:
    """One walk over all that is to be seen: tensors get a number when they are first met."""

    def __init__(self):
        self.tensors, self.numbers, self.open = [], {}, set()

    def of(self, value):
        """A value as plain data."""
        if isinstance(value, PLAIN):
            return (type(value).__name__, str(value))
        if isinstance(value, (float, np.floating)):
            return (type(value).__name__, np.asarray(value, "float64"))
        if isinstance(value, wf.Tensor):
            return self.of_tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return ("ndarray", str(value.dtype), value.shape, np.array(value))
        if isinstance(value, (wf.Size, wf.dtype, type)):
            return (type(value).__name__, str(value))
        if isinstance(value, BaseException):
            return ("error", *of_error(value)[:2])
        if id(value) in self.open:
            return ("again", type(value).__name__)
        self.open.add(id(value))
        try:
            return (type(value).__name__, *self.parts(value))
        finally:
            self.open.discard(id(value))

    def parts(self, value):
        """What a value with parts consists of."""
        if isinstance(value, types.GeneratorType):
            return [self.of(part) for part in list(value)]
        if isinstance(value, (tuple, list)):
            return [self.of(part) for part in value]
        if isinstance(value, (set, frozenset)):
            return sorted(map(str, value))
        if isinstance(value, dict):
            return [(self.of(key), self.of(part)) for key, part in value.items()]
        if isinstance(value, nn.Module):
            own = {k: v for k, v in vars(value).items() if not k.startswith("_") and k != "training"}
            named = [*value.named_parameters(), *value.named_buffers()]
            modes = [m.training for m in value.modules()]
            return [str(modes), *((name, self.of(t)) for name, t in named), *((k, self.of(v)) for k, v in own.items())]
        if dataclasses.is_dataclass(value) or type(value).__module__.startswith(("tests.", "scenario")):
            return [(k, self.of(v)) for k, v in vars(value).items()]
        if callable(value):
            return []
        raise TypeError(f"a scenario shows a {type(value).__name__}, which cannot be compared")

    def of_tensor(self, t):
        """A tensor as plain data; one that was met before is only named."""
        if id(t) in self.numbers:
            return ("tensor met before", str(self.numbers[id(t)]))
        self.numbers[id(t)] = len(self.tensors)
        self.tensors.append(t)
        form = type(t).__name__, str(t.dtype), tuple(t.shape), t.stride(), t.is_contiguous()
        signs = (*form, t.requires_grad, t.is_leaf)
        slope = t.grad if t.is_leaf or t.retains_grad else None
        slope = None if slope is None else (str(slope.dtype), slope.requires_grad, array(slope))
        return ("tensor", str(signs), array(t), slope)

    def sharing(self):
        """Which tensors lie in the same memory."""
        arrays = [t.detach().numpy() for t in self.tensors[:MOST]]
        numbers = range(len(arrays))
        return [(i, j) for i in numbers for j in numbers[i + 1 :] if np.shares_memory(arrays[i], arrays[j])]


def array(t):
    return np.array(t.detach().numpy())


def of_error(error, whole=False):
    """The class of an error, its message without places, and the numbers of the examples it names.

    With `whole`, the layer that the message names counts too.
    """
    told = "\n".join([str(error), *getattr(error, "__notes__", ())])
    numbers = re.findall(r"in example (\d+) of ", told)
    text = re.sub(r",? ?in (example \d+ of )+wf\.map", "", str(error))
    text = re.sub(r" ?\([^()]*(\.py|>):\d+[^()]*\)| on line [^<>]*>:\d+", "", text)
    text = re.sub(r": it is at version \d+, expected version \d+", "", text)
    text = "already used" if "already used and what" in text else text
    if not whole:
        text = re.sub(r", in [A-Z]\w*\(.*?\)(?=[.:]|$)", "", text)
    return type(error).__name__, text.strip(), numbers


def difference(got, want, where="", tolerance=1e-6):
    """The first difference of two descriptions in words; None where there is none."""
    if isinstance(want, np.ndarray) and isinstance(got, np.ndarray):
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{where}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
        if np.array_equal(got, want):
            return None
        single = {"float32": 2e-5, "float16": 2e-3}.get(str(want.dtype), tolerance)
        if np.allclose(got, want, rtol=single, atol=single, equal_nan=True):
            return None
        return f"{where}: {short(got)} instead of {short(want)}"
    if isinstance(want, (tuple, list)) and isinstance(got, (tuple, list)):
        if len(got) != len(want):
            return f"{where}: {len(got)} parts instead of {len(want)}: {short(got)} instead of {short(want)}"
        for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            found = difference(mine, theirs, f"{where}.{i}", tolerance)
            if found:
                return found
        return None
    return None if type(got) is type(want) and got == want else f"{where}: {short(got)} instead of {short(want)}"


def short(value):
    text = " ".join(str(value).split())
    return text if len(text) < 300 else text[:297] + "..."
