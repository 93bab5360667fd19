"""A graph network written node by node, for graphs like molecules whose nodes have one to four neighbours."""

from __future__ import annotations

from typing import Any

from benchmarks.works import Prepared
from benchmarks.works.examples import CLASSES
from benchmarks.works.examples import graphs as random_graphs
from benchmarks.works.mapped import assign, index, indices, look_up, prepared, weights
from benchmarks.works.models import Shapes, linear

KINDS = 10


def network(m: Any, mode: str, count: int = 64, hidden: int = 128, rounds: int = 4, largest: int = 30) -> Prepared:
    """Rounds in which each node adds up its neighbours' messages and renews its state; the class is of the graph."""
    shapes: Shapes = {
        "embed.weight": (KINDS, hidden),
        **linear("message", hidden, hidden),
        "update.weight_ih": (3 * hidden, hidden),
        "update.weight_hh": (3 * hidden, hidden),
        "update.bias_ih": (3 * hidden,),
        "update.bias_hh": (3 * hidden,),
        **linear("head", hidden, CLASSES),
    }

    class Network(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(KINDS, hidden)
            self.message = m.nn.Linear(hidden, hidden)
            self.update = m.nn.GRUCell(hidden, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, kinds: Any, neighbours: list[list[int]], label: Any) -> Any:
            states = look_up(m, self.embed, kinds)
            for _ in range(rounds):
                messages = [self.message(h).relu() for h in states]
                states = [
                    self.update(m.stack([messages[other] for other in near]).sum(0), h)
                    for near, h in zip(neighbours, states, strict=True)
                ]
            return m.nn.functional.cross_entropy(self.head(m.stack(states).mean(0)), label)

    model = assign(m, Network(), weights(shapes))
    batches = random_graphs(count, KINDS, largest=largest)
    examples = [[(indices(m, g.kinds), g.neighbours, index(m, g.label)) for g in batch] for batch in batches]
    return prepared(m, mode, model, model, examples)
