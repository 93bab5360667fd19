"""`wf.map` on a device: gradients of weights of which only some rows are used."""

import wayfare.nn.functional as F
from tests.gpu.test_map import both, there


def test_functions_that_use_some_rows_of_a_weight(cuda):
    w, b = there(9, 3, seed=1).requires_grad_(), there(9, seed=2).requires_grad_()

    def some(x):
        return F.linear(x, w[:6], b[:6]).view(2, 3).prod(0).tanh()

    def program(x):
        return some(some(x) * 2)

    for _ in range(2):
        both(program, [there(3, seed=k) for k in range(5)], [w, b])


def test_functions_that_use_some_rows_of_a_bias(cuda):
    w, b = there(6, 3, seed=1).requires_grad_(), there(9, seed=2).requires_grad_()

    def some(x):
        return F.linear(x, w, b[:6]).view(2, 3).prod(0).tanh()

    def program(x):
        return some(some(x) * 2)

    for _ in range(2):
        both(program, [there(3, seed=k) for k in range(5)], [w, b])
