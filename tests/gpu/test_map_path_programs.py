"""Random programs that branch on values, along recorded paths on a device: they do what the loop does there.

The environment variable WAYFARE_GPU_PROGRAMS sets how many programs are tried.
"""

import os

import numpy as np
import pytest

import wayfare as wf
from tests.batch.test_paths_random_programs import SIZE, Writer, plain, tensors_of
from wayfare.batch.paths import functions

COUNT = int(os.environ.get("WAYFARE_GPU_PROGRAMS", "24"))


def told(seed, batch):
    """What the program gives in several maps, and how many examples ran along paths."""
    numbers = np.random.default_rng(seed)
    w, W = (wf.tensor(numbers.standard_normal(s)).to("cuda").requires_grad_() for s in ((SIZE,), (SIZE, SIZE)))
    space = {"wf": wf, "F": wf.nn.functional, "w": w, "W": W}
    exec(Writer(seed).program(), space)
    found, along = [], 0
    for number in range(4):
        columns = [[wf.tensor(numbers.standard_normal(SIZE)).to("cuda") for _ in range(9)] for _ in range(2)]
        if seed % 2:
            for x in columns[0]:
                x.requires_grad_()
        results = wf.map(space["function"], *columns, batch=batch)
        stats = wf.batching.last()
        along += stats.paths.examples if batch and stats is not None and stats.paths is not None else 0
        carrying = [t for t in tensors_of(results if number % 2 == 0 else results[2:7]) if t.requires_grad]
        if carrying:
            sum((t * t).sum() for t in carrying).backward()
        values = [t.detach().cpu().numpy() for t in tensors_of(results)]
        grads = [None if t.grad is None else t.grad.cpu().numpy() for t in (w, W, *columns[0])]
        w.grad = W.grad = None
        found.append((plain(results), values, grads))
    return found, along


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("planned", [False, True], ids=["ops", "plans"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_program(cuda, seed, planned, monkeypatch):
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 0 if planned else 1 << 30)
    got, _ = told(seed, True)
    want, _ = told(seed, False)
    where = f"seed {seed}:\n{Writer(seed).program()}"
    for (shape, values, grads), (other_shape, other_values, other_grads) in zip(got, want, strict=True):
        assert shape == other_shape, where
        assert [g is None for g in grads] == [g is None for g in other_grads], where
        for one, other in zip([*values, *grads], [*other_values, *other_grads], strict=True):
            if one is not None:
                np.testing.assert_allclose(one, other, 1e-8, 1e-10, err_msg=where)
