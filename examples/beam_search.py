"""Beam search: several ways to go on are kept, and which ones depends on values that were just computed.

A language model of letters learns the names of the functions in Python's own library, then completes beginnings.
The search is written for one beginning, with a list, a loop and a sort. `wf.map` runs it for all of them: whenever
every search waits for its scores, the next letter of all their beams is computed together.

    python examples/beam_search.py
    python examples/beam_search.py --loop         # the same, one beginning after the other
    python examples/beam_search.py --device cuda  # on a GPU
"""

import argparse
import random
import string
import time

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import functions_of, source_files
from wayfare.nn.functional import cross_entropy

LETTERS = "$" + string.ascii_lowercase + "_"  # the first one begins and ends every name
BEGINNINGS = ["get_", "is_", "read", "set", "_par", "con", "to_", "wri", "_che", "unp", "add_h", "for"]
LONGEST = 20
State = tuple[wf.Tensor, wf.Tensor]  # of the LSTM cell: hidden state, cell state


class Speller(nn.Module):
    """Says for every letter of a name which one may come next."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width = width
        self.numbers = {letter: wf.tensor(number) for number, letter in enumerate(LETTERS)}
        self.embedding = nn.Embedding(len(LETTERS), 32)
        self.cell = nn.LSTMCell(32, width)
        self.output = nn.Linear(width, len(LETTERS))

    def start(self) -> State:
        """The state before the first letter."""
        return wf.zeros(self.width), wf.zeros(self.width)

    def forward(self, letter: str, state: State) -> tuple[wf.Tensor, State]:
        """(scores of the next letter, state)"""
        state = self.cell(self.embedding(self.numbers[letter]), state)
        return self.output(state[0]), state


def complete(model: Speller, beginning: str, width: int) -> list[tuple[float, str]]:
    """The likeliest names with this beginning, best first, as (logarithm of the chance, name)."""
    state = model.start()
    for letter in "$" + beginning[:-1]:
        _, state = model(letter, state)
    beams: list[tuple[float, str, State]] = [(0.0, beginning, state)]
    done: list[tuple[float, str]] = []
    while beams:
        # All beams go one letter further; only then are values read, and all of them at once.
        ahead = [model(name[-1], state) for _, name, state in beams]
        chances = [chance + scores.log_softmax(0) for (chance, _, _), (scores, _) in zip(beams, ahead, strict=True)]
        best, which = wf.cat(chances).topk(width)
        ways = []
        for chance, number in zip(best.tolist(), which.tolist(), strict=True):
            beam, letter = divmod(number, len(LETTERS))
            ways.append((chance, beams[beam][1] + LETTERS[letter], ahead[beam][1]))
        done += [(chance, name[:-1]) for chance, name, _ in ways if name[-1] == "$"]
        beams = [way for way in ways if way[1][-1] != "$" and len(way[1]) < LONGEST]
        # Chances only fall: a beam behind all that is needed cannot come back.
        done.sort(reverse=True)
        beams = [way for way in beams if len(done) < width or way[0] > done[width - 1][0]]
    return done[:width]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Beam search with a language model of the names in Python's library.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (200)")
    parser.add_argument("--batch", type=int, default=64, help="names in a step (64)")
    parser.add_argument("--width", type=int, default=4, help="beams of each search (4)")
    parser.add_argument("--loop", action="store_true", help="one name after the other, without batching")
    parser.add_argument("--device", default="cpu", help="where it learns: cpu, cuda or cuda:1 (cpu)")
    options = parser.parse_args(arguments)
    try:
        wf.set_default_device(options.device)  # tensors are made there from now on
    except wf.errors.WayfareError as error:
        parser.error(str(error))
    batch = not options.loop

    wf.manual_seed(0)
    draw = random.Random(0)
    found = {function.name for function in functions_of([file for file in source_files() if len(file.parts) == 1])}
    names = sorted(name for name in found if set(name) <= set(LETTERS) and len(name) < LONGEST and name[:2] != "__")
    print(f"{len(names)} names of functions, for instance {', '.join(draw.sample(names, 4))}")

    model = Speller()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.004)

    def loss_of(name: str) -> wf.Tensor:
        """Of one name, the sum over its letters."""
        state, scores = model.start(), []
        for letter in "$" + name:
            ahead, state = model(letter, state)
            scores.append(ahead)
        wanted = wf.stack([model.numbers[letter] for letter in name + "$"])
        return cross_entropy(wf.stack(scores), wanted, reduction="sum")

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        chosen = draw.sample(names, options.batch)
        loss = wf.stack(wf.map(loss_of, chosen, batch=batch)).sum() / sum(len(name) + 1 for name in chosen)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 50 == 0 or step == options.steps:
            print(f"step {step:>4}   loss {loss.item():.4f} a letter")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s, {1000 * seconds / options.steps:.0f} ms each\n")

    start = time.perf_counter()
    with wf.no_grad():
        answers = wf.map(lambda beginning: complete(model, beginning, options.width), BEGINNINGS, batch=batch)
    seconds = time.perf_counter() - start
    for beginning, completed in zip(BEGINNINGS, answers, strict=True):
        shown = (f"{name}{'' if name in found else '*'} {2.718281828 ** chance:.1%}" for chance, name in completed[:3])
        print(f"  {beginning:<6} {'  '.join(shown)}")
    print(f"(* is in no file that was read)\n\n{len(BEGINNINGS)} searches in {1000 * seconds:.0f} ms")
    if batch:
        print(wf.batching.last())


if __name__ == "__main__":
    main()
