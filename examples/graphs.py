"""Graphs: messages between the nodes of one graph, in plain Python, trained on many graphs at once.

Which variable belongs into the gap? A function of Python's own library becomes a graph: the nodes of its syntax tree,
and one node for each of its variables, tied to every place where the variable is used. One use is untied, and the
network says which variable it was. Graphs differ in size, nodes in the number of neighbours, questions in the number
of answers.

    python examples/graphs.py
    python examples/graphs.py --loop         # the same, one graph after the other
    python examples/graphs.py --device cuda  # on a GPU
"""

import argparse
import ast
import random
import time
from collections import Counter
from dataclasses import dataclass

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import Function, functions_of, source_files
from wayfare.cli.demo.syntax import kind_of
from wayfare.cli.demo.words import Vocabulary
from wayfare.nn.functional import cross_entropy

SMALLEST, LARGEST = 15, 50
VARIABLE, GAP = "a variable", "the gap"
LEFT_OUT = ast.expr_context | ast.operator | ast.boolop | ast.unaryop | ast.cmpop


@dataclass
class Graph:
    """Kinds of nodes, who is tied to whom, which node is the gap, and which ones may belong there."""

    kinds: list[str]
    neighbours: list[list[int]]
    gap: int
    candidates: list[int]
    answer: int
    uses: list[int]  # of each candidate, without the gap


def graph_of(function: Function, draw: random.Random) -> Graph | None:
    """The graph of a function, or None if it is too small or large, or has no two variables to choose from."""
    kinds: list[str] = []
    ties: list[tuple[int, int]] = []
    places: dict[str, list[tuple[int, bool]]] = {}  # of each variable: the node, and whether it is read there
    waiting: list[tuple[ast.AST, int | None]] = [(function.node, None)]
    while waiting and len(kinds) <= LARGEST:
        node, parent = waiting.pop()
        number = len(kinds)
        kinds.append(kind_of(node, ()))
        if parent is not None:
            ties.append((parent, number))
        if isinstance(node, ast.Name | ast.arg):
            name = node.id if isinstance(node, ast.Name) else node.arg
            places.setdefault(name, []).append((number, isinstance(getattr(node, "ctx", None), ast.Load)))
            kinds[number] = type(node).__name__
        waiting += [(child, number) for child in ast.iter_child_nodes(node) if not isinstance(child, LEFT_OUT)]
    repeated = [name for name, uses in places.items() if len(uses) > 1 and any(read for _, read in uses)]
    if not SMALLEST <= len(kinds) <= LARGEST or len(places) < 2 or not repeated:
        return None
    hidden = draw.choice(repeated)
    gap = draw.choice([number for number, read in places[hidden] if read])
    kinds[gap] = GAP
    candidates: list[int] = []
    counts: list[int] = []
    for uses in places.values():
        candidates.append(len(kinds))
        kinds.append(VARIABLE)
        tied = [number for number, _ in uses if number != gap]
        ties += [(candidates[-1], number) for number in tied]
        counts.append(len(tied))
    neighbours: list[list[int]] = [[] for _ in kinds]
    for one, other in ties:
        neighbours[one].append(other)
        neighbours[other].append(one)
    return Graph(kinds, neighbours, gap, candidates, list(places).index(hidden), counts)


class Messenger(nn.Module):
    """Each node hears from its neighbours a few times; then the gap is compared with every variable."""

    def __init__(self, kinds: Vocabulary, width: int = 48, rounds: int = 4) -> None:
        super().__init__()
        self.kinds = kinds
        self.rounds = rounds
        self.embedding = nn.Embedding(len(kinds), width)
        self.message = nn.Linear(width, width)
        self.cell = nn.GRUCell(width, width)
        self.question = nn.Linear(width, width)

    def forward(self, graph: Graph) -> wf.Tensor:
        """The score of each candidate."""
        states = list(self.embedding(self.kinds.encode(graph.kinds)))
        for _ in range(self.rounds):
            said = [self.message(state) for state in states]
            heard = [wf.stack([said[n] for n in around]).sum(0) for around in graph.neighbours]
            states = [self.cell(*pair) for pair in zip(heard, states, strict=True)]
        question = self.question(states[graph.gap])
        return wf.stack([question @ states[candidate] for candidate in graph.candidates])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A graph network that finds the variable that was taken out.")
    parser.add_argument("--steps", type=int, default=40, help="training steps (40)")
    parser.add_argument("--batch", type=int, default=32, help="graphs in a step (32)")
    parser.add_argument("--loop", action="store_true", help="one graph after the other, without batching")
    parser.add_argument("--device", default="cpu", help="where it learns: cpu, cuda or cuda:1 (cpu)")
    options = parser.parse_args(arguments)
    try:
        wf.set_default_device(options.device)  # tensors are made there from now on
    except wf.errors.WayfareError as error:
        parser.error(str(error))
    batch = not options.loop

    wf.manual_seed(0)
    draw = random.Random(0)
    files = [file for file in source_files() if len(file.parts) == 1]
    draw.shuffle(files)
    parts = files[len(files) // 5 :], files[: len(files) // 5]
    train, held_out = (
        [graph for function in functions_of(part) if (graph := graph_of(function, draw))] for part in parts
    )
    kinds = Vocabulary.of([graph.kinds for graph in train], at_least=3)
    degrees = Counter(len(around) for graph in train for around in graph.neighbours)
    print(f"{len(train)} graphs to learn from, {len(held_out)} held out; nodes have up to {max(degrees)} neighbours")

    model = Messenger(kinds)
    optimizer = wf.optim.Adam(model.parameters(), lr=0.005)

    def loss_of(graph: Graph) -> wf.Tensor:
        return cross_entropy(model(graph), wf.tensor(graph.answer))

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        loss = wf.stack(wf.map(loss_of, draw.sample(train, options.batch), batch=batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 10 == 0 or step == options.steps:
            print(f"step {step:>4}   loss {loss.item():.4f}")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s, {1000 * seconds / options.steps:.0f} ms each\n")
    if batch:
        print("The last step, forward:")
        print(wf.batching.last(), "\n")

    some = draw.sample(held_out, min(len(held_out), 8 * options.batch))
    with wf.no_grad():
        answers = wf.map(lambda graph: model(graph).argmax().item(), some, batch=batch)
    right = sum(answer == graph.answer for answer, graph in zip(answers, some, strict=True))
    by_use = sum(graph.uses.index(max(graph.uses)) == graph.answer for graph in some)
    by_chance = sum(1 / len(graph.candidates) for graph in some)
    print(f"held out: {right / len(some):.1%} right; the variable that is used most would be {by_use / len(some):.1%}, "
          f"guessing {by_chance / len(some):.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
