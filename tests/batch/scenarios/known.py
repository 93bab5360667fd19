"""Where `wf.map` differs from the loop by design: name -> "ways: what is seen". docs/batching.md says each of these.

A tensor that is still to be computed is of a class of its own; a mode that an example leaves switched is put back.
"all" are all ways but `batch=False`. Each must differ: who mends one takes its line out.
(`python -m tests.batch.scenarios.listing -known` writes these lines.)
"""

KNOWN = {
    "forms/type of x": "all: results.1.1.1: <class StandIn> instead of <class Tensor>",
    "gradients/set_grad_enabled left": "all but block: results.2.1: True instead of False",
    "own/version": "no_grad: results.1.2.1: 0 instead of 2",
    "own/stride of permute": "all: results.1.2.1.1: 3 instead of 1",
    "own/isinstance and type": "all: results.1.2.1: False instead of True",
    "own/class": "all: results.1.1.1: False instead of True",
}
