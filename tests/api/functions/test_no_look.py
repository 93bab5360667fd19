"""Functions that look at no value where another executor runs ops, and give what they give when they may look."""

import numpy as np
import pytest

import wayfare as wf
from tests.optim.fake_recorder import recording
from wayfare.errors import IndexRangeError, OperationError

WHOLE = wf.tensor([[7, -7, 4], [2, 0, -3]])
MASK = wf.tensor([[True, False, True], [False, False, True]])
ROWS = wf.tensor([1, 0])


def masked(x, mask, value):
    x = x.clone()
    x[mask] = value
    return x


CASES = {
    "floor_divide by a number": lambda: WHOLE // 2,
    "remainder of a number": lambda: WHOLE % 3,
    "trunc": lambda: wf.div(WHOLE, 2, rounding_mode="trunc"),
    "pow to a number": lambda: WHOLE**3,
    "pow to a tensor": lambda: WHOLE ** wf.tensor([2, 0, 3]),
    "pow to a negative tensor": lambda: wf.tensor([1, -1, 3]) ** wf.tensor([-2, -3, -1]),
    "index_add": lambda: WHOLE.index_add(0, ROWS, WHOLE),
    "index_copy": lambda: WHOLE.index_copy(0, ROWS, WHOLE),
    "quantile": lambda: wf.tensor([3.0, 1.0, 2.0]).quantile(0.25),
    "a mask filled": lambda: masked(WHOLE, MASK, 9),
    "a mask of rows filled": lambda: masked(WHOLE.float(), wf.tensor([False, True]), 0.5),
    "a mask filled by a tensor": lambda: masked(WHOLE, MASK, wf.tensor(5)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same_without_a_look(case):
    wanted = CASES[case]()
    with recording() as made:
        found = CASES[case]()
    assert made.ops
    assert found.dtype is wanted.dtype
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_what_is_wrong_is_still_refused():
    with pytest.raises(OperationError, match="zero"), recording():
        WHOLE // 0
    for row in (-1, 2):
        with pytest.raises(IndexRangeError, match="out of range"), recording():
            WHOLE.index_add(0, wf.tensor([row, 0]), WHOLE)
    with pytest.raises(OperationError, match="between 0 and 1"), recording():
        wf.rand(3).quantile(1.5)
    with pytest.raises(AssertionError, match="looks at a value"), recording():
        WHOLE // WHOLE
