"""What the tests of fast paths share: a function that has one, and a model."""

import wayfare as wf
from wayfare import nn

CALLS = 5


def warmed(function, *args, **options):
    """Compiled, and called until it has a fast path."""
    compiled = wf.compile(function)
    for _ in range(CALLS):
        compiled(*args, **options)
    assert compiled._fast_paths, compiled.explain()
    return compiled


def model_of(*, train=False):
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)).to(wf.float64).train(train)


def predicting(model):
    def predict(x):
        with wf.no_grad():
            return model(x)

    return predict
