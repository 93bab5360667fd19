"""The rules for indexed loads and stores, folds and carries. Each function says what is wrong; "" if it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wayfare.codegen.loop.expr import NARROW, Expr, walk
from wayfare.codegen.loop.window import bound_levels, carried_by

if TYPE_CHECKING:
    from wayfare.codegen.loop.language import Loop, Stage, StoreAt

# The ways to combine a value with the one that is stored, and how they are printed.
COMBINED = {"set": "=", "add": "+=", "maximum": "max=", "minimum": "min="}


def wrong_store(loop: Loop, store: StoreAt, stored: set[int]) -> str:
    """Check one store by index; `stored` are the outputs that have been stored before."""
    found = loop.outputs[store.output] if 0 <= store.output < len(loop.outputs) else None
    if found is None or not found.axes or found.axes != len(store.indices):
        return f"there is no output y{store.output} with {len(store.indices)} axes of its own"
    if store.output in stored:
        return f"y{store.output} is stored by index twice"
    if store.value.dtype != found.dtype or any(i.dtype != "i64" for i in store.indices):
        return f"y{store.output} is {found.dtype}, the value stored by index is {store.value.dtype}; positions are i64"
    if store.how not in COMBINED or (store.how != "set" and found.dtype in (*NARROW, "bool")):
        return f"y{store.output}: {store.how!r} cannot combine {found.dtype}"
    if store.mask is not None and store.mask.dtype != "bool":
        return f"y{store.output}: a mask is bool, not {store.mask.dtype}"
    return ""


def wrong_variables(loop: Loop, stage: Stage) -> str:
    """Check that the variables of folds and carries are used where they have a value, and how carries start."""
    levels = bound_levels(*stage.values)
    if any(levels[id(root)] for root in stage.values):
        return "the variable of a fold is used outside its body"
    for e in walk(*stage.values):
        if e.op == "carry" and not (0 <= e.value < len(stage.carries) and stage.carries[e.value][0].dtype == e.dtype):
            return f"there is no carry c{e.value} of {e.dtype}"
    for number, (start, value) in enumerate(stage.carries):
        if start.dtype != value.dtype or start.dtype in NARROW:
            return f"c{number} starts as {start.dtype} and goes on as {value.dtype}"
        if any(_of_one_element(loop, e) for e in walk(start)):
            return f"the start of c{number} uses a value of single elements"
    if stage.carries and loop.indexed:
        return "a loop with carries has no operands with axes of their own"
    return ""


def wrong_window(loop: Loop, e: Expr) -> str:
    """Check one expression of `loop/window.py`."""
    if e.op in ("load_at", "size"):
        number, second = e.value
        found = loop.inputs[number] if 0 <= number < len(loop.inputs) else None
        if e.op == "size":
            known = found is not None and 0 <= second < found.axes
            return "" if known else f"x{number} has no axis {second} of its own"
        if found is None or found.dtype != e.dtype or found.axes != second or second == 0:
            return f"there is no input x{number} of {e.dtype} with {second} axes of its own"
        dtypes = [a.dtype for a in e.args]
        right = dtypes[:second] == ["i64"] * second and dtypes[second:] in ([], ["bool"])
        return "" if right else f"x{number} is loaded at positions of {', '.join(dtypes)}"
    if e.op != "fold":
        return ""
    if not loop.indexed:
        return "a fold is for loops with operands that have axes of their own"
    count, starts, bodies = carried_by(e)
    if count.dtype != "i64" or not starts or [s.dtype for s in starts] != [b.dtype for b in bodies]:
        return "the count of a fold is i64, and its values keep their dtypes"
    if any(s.dtype in NARROW for s in starts):
        return "fold computes in a narrow float"
    if any(inner.op == "fold" and inner.value[0] >= e.value[0] for inner in walk(*bodies)):
        return "a fold must have a higher level than those in its body"
    differs = any(_of_one_element(loop, a) for a in walk(count))
    return "the count of a fold differs between the elements of a row" if differs else ""


def _of_one_element(loop: Loop, e: Expr) -> bool:
    """Does an expression read what differs between the elements of a row?"""
    if e.op in ("load", "load_at"):
        return not loop.inputs[e.value if e.op == "load" else e.value[0]].per_row
    return e.op in ("index", "reload", "carried", "fold", "carry")
