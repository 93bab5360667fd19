"""Methods of lazy tensors take their arguments by keyword too, as those of ordinary tensors do."""

import pytest

import wayfare as wf

CALLS = {
    "chunk": lambda y: y.chunk(2, dim=1)[0],
    "chunk, all by name": lambda y: y.chunk(chunks=2, dim=1)[1],
    "split": lambda y: y.split(split_size=1, dim=0)[1],
    "unbind": lambda y: y.unbind(dim=1)[2],
    "sum": lambda y: y.sum(dim=1, keepdim=True),
    "softmax": lambda y: y.softmax(dim=-1),
    "norm": lambda y: y.norm(p=2, dim=0),
    "amax": lambda y: y.amax(dim=1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("reads", [False, True])
def test_as_in_the_loop(name, reads):
    def one(x):
        y = x.tanh()
        if reads and y.sum() > 0:
            y = y * 2
        return CALLS[name](y)

    examples = [wf.randn(2, 4) for _ in range(8)]
    wanted = [one(x) for x in examples]
    for _ in range(4):
        for a, b in zip(wf.map(one, examples, batch=True), wanted, strict=True):
            wf.testing.assert_close(a, b)
