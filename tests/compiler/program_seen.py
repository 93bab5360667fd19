"""What can be seen after a call of a random program for `wf.compile`, and how two such sights differ.

Seen is all there is: results, arguments, captured tensors, arrays and objects with their contents, gradients (and
whether there are any), optimisers, which things are the same thing, which memory is shared, and random numbers.
"""

from __future__ import annotations

import re

import numpy as np

import wayfare as wf
from tests.compiler.program_parts import Box, Keeper, new

# Beyond this, rounding decides what the numbers are.
_LARGE = 1e7


class Seen:
    """What a call, or a change outside, left behind."""

    error = graph_error = None
    returned = asked = None  # Look: right after the call, and after the results have been differentiated
    found = after = refused = draws = ()
    warnings = frozenset()


class Look:
    """A structure as it is now: its form, and by their paths its tensors, arrays and real numbers."""

    def __init__(self):
        self.paths, self.tensors, self.numbers, self.places, self.arrays = [], [], [], [], []
        self.known = {}

    def walk(self, item, path):
        """The form of a part, with what is in it noted down."""
        if isinstance(item, wf.Tensor):
            return self.tensor(item, path)
        if isinstance(item, (list, dict, Box, Keeper)):
            if id(item) in self.known:
                return f"the same as {self.known[id(item)]}"
            self.known[id(item)] = path
        if isinstance(item, (Box, Keeper)):
            return type(item).__name__, self.walk(vars(item), f"{path}.__dict__")
        if isinstance(item, dict):
            return {key: self.walk(v, f"{path}.{key}") for key, v in item.items()}
        if isinstance(item, (list, tuple)):
            return type(item).__name__, *(self.walk(v, f"{path}[{i}]") for i, v in enumerate(item))
        if isinstance(item, np.ndarray):
            self.arrays.append((path, item))
            return f"array {item.dtype}{item.shape}"
        if isinstance(item, float):
            self.places.append(path)
            self.numbers.append(item)
            return "number"
        plain = item is None or isinstance(item, (bool, int, str, wf.dtype))
        return item if plain else type(item).__name__

    def tensor(self, t, path):
        """What a tensor is, besides its numbers."""
        self.paths.append(path)
        self.tensors.append(t)
        if id(t) in self.known:
            return f"the same as {self.known[id(t)]}"
        self.known[id(t)] = path
        form = f"{t.dtype}{tuple(t.shape)}", t.requires_grad, t.is_leaf
        if not (t.is_leaf or t.retains_grad):
            return form
        return *form, self.walk(t.grad, f"{path}.grad")

    def under(self, path):
        """The tensors of a part."""
        return [t for at, t in zip(self.paths, self.tensors, strict=False) if at.startswith(path) and ".grad" not in at]

    def freeze(self):
        """Copy the numbers, and see which memory is shared."""
        arrays = [t.detach().numpy(force=True) for t in self.tensors] + [a for _, a in self.arrays]
        self.paths += [path for path, _ in self.arrays]
        self.values = [a.copy() for a in arrays]
        self.shared = shared(self.paths, arrays)
        return self


def look(item):
    """A structure as it is now."""
    seen = Look()
    seen.form = seen.walk(item, "")
    return seen.freeze()


def snapshot(tensors):
    """The numbers of tensors as they are now."""
    return [None if t is None else t.detach().numpy(force=True).copy() for t in tensors]


def shared(paths, arrays):
    """Which pairs share memory, by their paths."""
    spans = []
    for path, array in zip(paths, arrays, strict=True):
        if array.size:
            low, high = np.lib.array_utils.byte_bounds(array)
            spans.append((low, high, path, array))
    spans.sort(key=lambda span: span[:2])
    pairs = set()
    for i, (_, high, path, array) in enumerate(spans):
        for low, _, other, second in spans[i + 1 :]:
            if low >= high:
                break
            if np.shares_memory(array, second):
                pairs.add(tuple(sorted((path, other))))
    return pairs


def weighted(tensors):
    """One number that hangs on every element in its own way."""
    parts = [(t.double() * new(50 + i, tuple(t.shape))).sum() for i, t in enumerate(tensors)]
    return sum(parts[1:], parts[0])


def ask(results, leaves, how):
    """Differentiate the results from outside; the error if that cannot be done, and gradients that were asked for."""
    live = [t for t in results if t.requires_grad and t.is_floating_point()]
    if not live:
        return None, ()
    grad = wf.autograd.grad
    try:
        if how == "backward" or not leaves:
            weighted(live).backward()
            return None, ()
        if how == "some":  # the others are not used: no gradient is not a gradient of zero
            weighted(live[:1]).backward()
            return None, ()
        if how == "last":
            weighted(live[-1:]).backward()
            return None, ()
        if how == "create":
            weighted(live).backward(create_graph=True)
            return None, ()
        if how == "each":
            asked = [grad(weighted([t]), leaves, retain_graph=True, allow_unused=True) for t in live]
            return None, [g for gradients in asked for g in snapshot(gradients)]
        if how == "overwritten":
            live[0].mul_(2)
            weighted(live).backward()
            return None, ()
        firsts = grad(weighted(live), leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        again = [g for g in firsts if g.requires_grad]
        if again:
            weighted(again).backward()
        return None, [*snapshot(firsts), np.array([g.requires_grad for g in firsts])]
    except Exception as error:
        return error, ()


def written(results):
    """Write an element of each result; which could not be."""
    refused = []
    with wf.no_grad():
        for number, t in enumerate(results):
            if t.numel() and t.is_floating_point():
                try:
                    t.data[(0,) * t.dim()] = 10.0 + number
                except RuntimeError:  # several elements share that memory
                    refused.append(number)
    return refused


def compare(want, got, tolerance):
    """The first difference between what two calls left."""
    if (found := other_error(got.error, want.error)) is not None:
        return found
    if new_warnings := got.warnings - want.warnings:
        return f"warns {new_warnings}"
    if want.returned is None:
        return None
    if (found := compare_looks(want.returned, got.returned, tolerance)) is not None:
        return found
    if got.draws != want.draws:
        return "the generator is in another state"
    if "custom Function" in str(got.graph_error):
        return None  # second derivatives of a custom Function are refused, in a sentence
    if (found := other_error(got.graph_error, want.graph_error)) is not None:
        return f"differentiating it {found}"
    if want.graph_error is not None:
        return None
    if (found := apart(got.found, want.found, tolerance)) is not None:
        return found if found == "wild" else f"the gradient that is asked for {found}"
    if want.asked is not None and (found := compare_looks(want.asked, got.asked, tolerance)) is not None:
        return found if found == "wild" else f"after differentiating it: {found}"
    if got.refused != want.refused:
        return f"results {got.refused} cannot be written instead of {want.refused}"
    if (found := apart(got.after, want.after, tolerance)) is not None:
        return found if found == "wild" else f"after writing to the results, {found}"
    return None


def other_error(got, want):
    """How an error differs: its type or how its message begins."""
    if type(got) is type(want) and head(got) == head(want):
        return None
    return f"raises {got!r} instead of {want!r}"


def head(error):
    """How a message begins; a replayed call is one node of the graph, and names that and its line."""
    text = re.sub(r" on line \S+| \(line [^)]*\)", "", "".join(str(error).splitlines()[:1]))
    return re.sub(r"\b\w+Backward\d*", "Backward", text)[:50]


def compare_looks(want, got, tolerance):
    """The first difference between two structures."""
    if (found := other_form(got.form, want.form)) is not None:
        return found
    if (found := apart(got.values, want.values, tolerance, got.paths)) is not None:
        return found
    numbers = [[np.array(n) for n in seen.numbers] for seen in (got, want)]
    if (found := apart(*numbers, tolerance, got.places)) is not None:
        return found
    if got.shared != want.shared:
        more, less = sorted(got.shared - want.shared), sorted(want.shared - got.shared)
        return f"memory is shared by {more} and should not be, and not by {less}"
    return None


def other_form(got, want, path=""):
    """The first part whose form differs."""
    if type(got) is type(want) and isinstance(got, (dict, tuple)) and len(got) == len(want):
        if isinstance(got, tuple):
            pairs = [(f"[{i - 1}]", a, b) for i, (a, b) in enumerate(zip(got, want, strict=True))]
        elif list(got) != list(want):
            return f"{path} has keys {list(got)} instead of {list(want)}"
        else:
            pairs = [(f".{key}", got[key], want[key]) for key in got]
        found = (other_form(a, b, path + at) for at, a, b in pairs)
        return next((f for f in found if f is not None), None)
    return None if type(got) is type(want) and got == want else f"{path} is {got!r} instead of {want!r}"


def apart(got, want, tolerance, paths=None):
    """How arrays differ, or that they are too large to tell."""
    if len(got) != len(want):
        return f"there are {len(got)} tensors instead of {len(want)}"
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        place = paths[number] if paths else number
        if mine is None or theirs is None:
            if mine is not None or theirs is not None:
                return f"{place} is {mine} instead of {theirs}"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{place} is {mine.dtype}{mine.shape} instead of {theirs.dtype}{theirs.shape}"
        if mine.tobytes() == theirs.tobytes():
            continue
        size = float(np.abs(np.nan_to_num(theirs.astype(float), posinf=0, neginf=0)).max(initial=0))
        if size > _LARGE:
            return "wild"
        close = max(tolerance, 1e-3 if theirs.dtype == np.float32 else 0.0)
        if not np.allclose(mine, theirs, rtol=close, atol=close * (1e-2 + size), equal_nan=True):
            return f"{place} is\n{mine}\ninstead of\n{theirs}"
    return None
