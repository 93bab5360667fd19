"""Offsets, shifts and steps far beyond any size: an answer or a sentence, and never the end of the process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FAR = [sign * (2**bits + more) for bits in (31, 32, 62) for more in (-1, 0, 1) for sign in (1, -1)]
FAR += [2**63, -(2**63), 2**64]
CODE = f"""
import numpy as np
import wayfare as wf

x = wf.arange(12.0).reshape(3, 4)
for far in {FAR}:
    for take in (
        lambda: wf.diagonal(x, far), lambda: wf.diag(x, far), lambda: x.unfold(1, 2, far), lambda: x.unfold(1, far, 1),
        lambda: x.as_strided((2, 2), (far, 1)), lambda: x.as_strided((2, 2), (1, 1), far), lambda: x.roll(far),
        lambda: x.as_strided((far, 0), (far, far)), lambda: x.tril(far), lambda: x.triu(far), lambda: x[::far],
        lambda: x.narrow(0, far, 1), lambda: wf.diag_embed(x, far), lambda: wf.ones(1).expand(far, far),
        lambda: wf.nn.functional.unfold(x[None, None], 2, padding=far), lambda: wf.empty_strided((2, 2), (far, 1)),
        lambda: wf.nn.functional.conv2d(x[None, None], wf.ones(1, 1, 2, 2), stride=far),
    ):
        try:
            take()
        except (wf.errors.WayfareError, MemoryError, OverflowError, ValueError):
            pass
    assert wf.diagonal(x, far).shape == (0,) and wf.diag(x, far).shape == (0,)
    assert wf.diagonal(x, far, 1, 0).tolist() == []
    y = x.clone().requires_grad_()
    y.diagonal(far).sum().backward()
    assert not y.grad.any()
    assert bool((x.tril(far) == (x if far > 0 else 0)).all()) and bool((x.triu(far) == (0 if far > 0 else x)).all())
print("done")
"""


def test_the_process_goes_on():
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout == "done\n", (done.returncode, done.stderr[-2000:])
