"""Random loops with indexed loads, folds and stores by index, and arrays for them."""

from tests.codegen.loops import STORED, Maker, laid, values
from wayfare.codegen.loop.expr import FLOATS, NARROW, NUMPY, apply, carry, cast, const, index, load, reduction, reload
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, StoreAt
from wayfare.codegen.loop.window import fold, inside, load_at, size
from wayfare.codegen.loop.window_rules import COMBINED


def position(rng, leaves, steps):
    """An i64 that may be anywhere: affine in the element's index at times, else from any value."""
    kind = rng.integers(4)
    if kind == 0:
        base = index()
    elif kind == 1:
        base = load(1, "i64")
    elif kind == 2:
        base = cast(leaves[int(rng.integers(len(leaves)))], "i64") if leaves else const(1, "i64")
    else:
        base = index() + load(1, "i64")
    if steps and rng.random() < 0.7:
        base = base + steps[int(rng.integers(len(steps)))] * int(rng.integers(1, 3))
    return base - int(rng.integers(0, 3)) if rng.random() < 0.5 else base


def wrapped(at, length):
    """The position modulo the length, which is not 0."""
    rest = at - apply("quotient", at, length) * length
    return apply("where", apply("lt", rest, 0), rest + length, rest)


def random_load_at(rng, number, operand, leaves, steps):
    """A load inside the array: masked, or at a wrapped position."""
    spots = [position(rng, leaves, steps) for _ in range(operand.axes)]
    if rng.random() < 0.6:
        mask = inside(number, *spots)
        return load_at(number, operand.dtype, *spots, mask=mask)
    # The mask says that the array is not empty.
    mask = None
    for axis in range(operand.axes):
        some = apply("gt", size(number, axis), 0)
        mask = some if mask is None else apply("logical_and", mask, some)
    safe = [wrapped(s, apply("maximum", size(number, a), 1)) for a, s in enumerate(spots)]
    return load_at(number, operand.dtype, *safe, mask=mask)


def random_fold(rng, tables, leaves, steps, depth=0):
    """A fold of one or two values with loads by index in its body, and another fold at times."""
    count = load(1, "i64") if rng.random() < 0.7 else const(int(rng.integers(0, 4)), "i64")
    kinds = [str(d) for d in rng.choice([d for d in STORED if d not in NARROW], rng.integers(1, 3))]
    maker = Maker(rng, leaves)
    starts = [maker.to(maker.one(), d) for d in kinds]

    def body(step, *carried):
        inner = [random_load_at(rng, k, o, leaves, [*steps, step]) for k, o in tables]
        if depth == 0 and rng.random() < 0.4:
            inner += random_fold(rng, tables, [*leaves, *carried], [*steps, step], 1)
        grown = Maker(rng, [*leaves, *carried, *inner, step])
        grown.grow(int(rng.integers(1, 6)))
        return [grown.to(grown.known[-1 - k], d) for k, d in enumerate(kinds)]

    return fold(count, starts, body)


def random_windows(rng):
    """A loop with one or two tables (inputs 2 and 3), whose input 1 is a small number for each row."""
    first = Operand(str(rng.choice(STORED)), bool(rng.random() < 0.2))
    tables = [(2 + k, Operand(str(rng.choice(STORED)), bool(rng.random() < 0.6), int(rng.integers(1, 3))))
              for k in range(rng.integers(1, 3))]  # fmt: skip
    leaves = [load(0, first.dtype), load(1, "i64"), index()]
    leaves = [cast(e, "f32") if e.dtype in NARROW else e for e in leaves]
    integers = [e for e in leaves if e.dtype not in (*FLOATS, "bool")]
    found = [random_load_at(rng, k, o, integers, []) for k, o in tables]
    if rng.random() < 0.7:
        found += random_fold(rng, tables, leaves, [])
    maker = Maker(rng, [*leaves, *found])
    maker.grow(int(rng.integers(1, 6)))
    outputs = [Operand(str(d)) for d in rng.choice(STORED, rng.integers(0, 3))]
    stores = tuple((k, maker.stored(o.dtype)) for k, o in enumerate(outputs))
    stores_at = []
    for _ in range(int(rng.integers(0 if outputs else 1, 3))):
        how = str(rng.choice([*COMBINED]))
        kinds = STORED if how == "set" else [d for d in STORED if d not in (*NARROW, "bool")]
        operand = Operand(str(rng.choice(kinds)), bool(rng.random() < 0.5), int(rng.integers(1, 3)))
        spots = [position(rng, integers, []) for _ in range(operand.axes)]
        limits = [load(1, "i64") * 0 + SIZE for _ in spots]
        ends = list(zip(spots, limits, strict=True))
        within = [apply("logical_and", apply("ge", s, 0), apply("lt", s, n)) for s, n in ends]
        mask = within[0] if len(within) == 1 else apply("logical_and", *within)
        if rng.random() < 0.3:
            spots, mask = [wrapped(s, n) for s, n in ends], None
        value = maker.stored(operand.dtype)
        if operand.dtype in FLOATS and how in ("maximum", "minimum"):
            value = value + 0.0  # which of two zeros is the larger one is not said
        stores_at.append(StoreAt(len(outputs), tuple(spots), value, how, mask))
        outputs.append(operand)
    reductions = ()
    if rng.random() < 0.2:
        reductions = (Reduction("max", maker.any_of(["i32", "i64"])),)
    inputs = (first, Operand("i64", True), *(o for _, o in tables))
    return Loop("random", inputs, tuple(outputs), (Stage(stores, reductions, tuple(stores_at)),))


# The size of the own axes of outputs.
SIZE = 7


def random_arrays(rng, loop):
    """(inputs, outputs, shape, axes) for a loop of `random_windows`."""
    shape = tuple(int(rng.choice([1, 2, 3, 5, 16, 33, 70])) for _ in range(rng.integers(1, 4)))
    axis = int(rng.integers(len(shape)))

    def nest(operand, whole):
        own = tuple(1 if operand.per_row and a == axis else n for a, n in enumerate(shape))
        return own if whole else tuple(1 if rng.random() < 0.4 else n for n in own)

    empty = rng.random() < 0.2
    inputs = []
    for k, operand in enumerate(loop.inputs):
        own = tuple(0 if empty else int(rng.choice([1, 2, 7, 20])) for _ in range(operand.axes))
        given = (*nest(operand, k == 0), *own)
        filled = rng.integers(-1, 5, given) if k == 1 else values(rng, given, operand.dtype)
        inputs.append(laid(rng, filled))
    outputs = []
    for operand in loop.outputs:
        given = (*nest(operand, not operand.axes), *(SIZE,) * operand.axes)
        filled = values(rng, given, operand.dtype) if operand.dtype == "bool" else values(rng, given, operand.dtype) + 0
        outputs.append(laid(rng, filled.astype(NUMPY[operand.dtype])))
    return inputs, outputs, shape, (axis,)


def random_carries(rng):
    """A loop over rows with one or two values that go from element to element, and a stage after it at times."""
    inputs = (Operand(str(rng.choice(STORED))), Operand(str(rng.choice([d for d in STORED if d not in NARROW])), True))
    leaves = [load(0, inputs[0].dtype), index()]
    kinds = [str(d) for d in rng.choice([d for d in STORED if d not in NARROW], rng.integers(1, 3))]
    maker = Maker(rng, [*leaves, load(1, inputs[1].dtype), *(carry(k, d) for k, d in enumerate(kinds))])
    maker.grow(int(rng.integers(2, 8)))
    per_row = Maker(rng, [load(1, inputs[1].dtype)])
    carries = tuple((per_row.to(per_row.one(), d), maker.to(maker.known[-1 - k], d)) for k, d in enumerate(kinds))
    outputs = [Operand(str(d)) for d in rng.choice(STORED, rng.integers(1, 3))]
    stores = tuple((k, maker.stored(o.dtype)) for k, o in enumerate(outputs))
    reductions = (Reduction("max", maker.any_of(["i32", "i64"])),) if rng.random() < 0.4 else ()
    stages = [Stage(stores, reductions, carries=carries)]
    results = ()
    if reductions:
        last = reduction(0, reductions[0].dtype)
        results = ((len(outputs), last),)
        after = Maker(rng, [*leaves, last, *(reload(k, o.dtype) for k, o in enumerate(outputs))])
        after.grow(2)
        stages.append(Stage(((0, after.stored(outputs[0].dtype)),)))
        outputs.append(Operand(last.dtype, True))
    return Loop("random", inputs, tuple(outputs), tuple(stages), results)
