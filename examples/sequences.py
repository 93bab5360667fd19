"""Sequences: a tagger with a character LSTM for rare words, without padding, masks or packing.

What is each name in a function for: a parameter, an attribute, something called, assigned or read? The functions are
those of Python's own library, as the sequences of their names. A name that is frequent has an embedding; a rare one is
spelt out by an LSTM over its characters. Which way a name goes is a plain `if`.

    python examples/sequences.py
    python examples/sequences.py --loop         # the same, one sequence after the other
    python examples/sequences.py --device cuda  # on a GPU
"""

import argparse
import ast
import random
import time
from collections import Counter

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import Function, functions_of, source_files
from wayfare.nn.functional import cross_entropy

TAGS = ["parameter", "attribute", "called", "assigned", "read"]
SHORTEST, LONGEST = 5, 40
FREQUENT = 20  # occurrences that earn a name an embedding of its own


def tagged_names(function: Function) -> list[tuple[str, str]]:
    """The names of a function in the order of its source, each with what it is for there."""
    found: list[tuple[int, int, str, str]] = []
    called = {id(node.func) for node in ast.walk(function.node) if isinstance(node, ast.Call)}
    for node in ast.walk(function.node):
        match node:
            case ast.arg(arg=name):
                found.append((node.lineno, node.col_offset, name, "parameter"))
            case ast.Name(id=name) | ast.Attribute(attr=name) if id(node) in called:
                found.append((node.end_lineno or 0, node.end_col_offset or 0, name, "called"))
            case ast.Attribute(attr=name):
                found.append((node.end_lineno or 0, node.end_col_offset or 0, name, "attribute"))
            case ast.Name(id=name, ctx=context):
                tag = "assigned" if isinstance(context, ast.Store) else "read"
                found.append((node.end_lineno or 0, node.end_col_offset or 0, name, tag))
    return [(name, tag) for *_, name, tag in sorted(found)]


class Tagger(nn.Module):
    """Reads the names of one function from both ends."""

    def __init__(self, names: dict[str, wf.Tensor], width: int = 64) -> None:
        super().__init__()
        self.names = names
        self.width = width
        self.name_embedding = nn.Embedding(len(names), width)
        self.letter_embedding = nn.Embedding(128, width // 2)
        self.letter_cell = nn.LSTMCell(width // 2, width)
        self.forward_cell = nn.LSTMCell(width, width)
        self.backward_cell = nn.LSTMCell(width, width)
        self.output = nn.Linear(2 * width, len(TAGS))

    def run(self, cell: nn.LSTMCell, inputs: list[wf.Tensor]) -> list[wf.Tensor]:
        """The state of the cell after each input."""
        state = wf.zeros(self.width), wf.zeros(self.width)
        outputs = []
        for x in inputs:
            state = cell(x, state)
            outputs.append(state[0])
        return outputs

    def look_up(self, name: str) -> wf.Tensor:
        """A name as a vector: its own row, or what its letters spell."""
        if name in self.names:
            return self.name_embedding(self.names[name])
        letters = [self.letter_embedding(wf.tensor(ord(letter) % 128)) for letter in name]
        return self.run(self.letter_cell, letters)[-1]

    def forward(self, names: list[str]) -> wf.Tensor:
        """Names to scores [names, tags]."""
        inputs = [self.look_up(name) for name in names]
        ahead = self.run(self.forward_cell, inputs)
        back = self.run(self.backward_cell, inputs[::-1])[::-1]
        return self.output(wf.cat([wf.stack(ahead), wf.stack(back)], 1))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A tagger with a character LSTM over the names in Python's library.")
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a step (32)")
    parser.add_argument("--loop", action="store_true", help="one sequence after the other, without batching")
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
        [pairs for function in functions_of(part) if SHORTEST <= len(pairs := tagged_names(function)) <= LONGEST]
        for part in parts
    )
    counts = Counter(name for pairs in train for name, _ in pairs)
    names = {name: wf.tensor(number) for number, (name, count) in enumerate(counts.most_common()) if count >= FREQUENT}
    spelt = 1 - sum(counts[name] for name in names) / counts.total()
    print(f"{len(train)} functions to learn from, {len(held_out)} held out, {SHORTEST} to {LONGEST} names each; "
          f"{len(names)} names are frequent, {spelt:.0%} of all are spelt out")  # fmt: skip

    model = Tagger(names)
    optimizer = wf.optim.Adam(model.parameters(), lr=0.004)

    def loss_of(pairs: list[tuple[str, str]]) -> wf.Tensor:
        tags = wf.tensor([TAGS.index(tag) for _, tag in pairs])
        return cross_entropy(model([name for name, _ in pairs]), tags, reduction="sum")

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        chosen = draw.sample(train, options.batch)
        losses = wf.map(loss_of, chosen, batch=batch)
        loss = wf.stack(losses).sum() / sum(map(len, chosen))
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

    some = draw.sample(held_out, min(len(held_out), 4 * options.batch))
    with wf.no_grad():
        answers = wf.map(lambda pairs: model([name for name, _ in pairs]).argmax(1), some, batch=batch)
    together = Counter(pair for pairs in train for pair in pairs)
    usual: dict[str, str] = {}
    for (name, tag), _ in together.most_common():
        usual.setdefault(name, tag)
    total = sum(map(len, some))
    right = sum(TAGS[number] == tag for pairs, answer in zip(some, answers, strict=True)
                for (_, tag), number in zip(pairs, answer.tolist(), strict=True))  # fmt: skip
    by_habit = sum(usual.get(name, "read") == tag for pairs in some for name, tag in pairs)
    print(f"held out: {right / total:.1%} of the names right; what a name is for most often would be "
          f"{by_habit / total:.1%}\n")  # fmt: skip
    for (name, tag), number in zip(some[0], answers[0].tolist(), strict=True):
        how = "" if name in names else "  (spelt out)"
        print(f"  {name:<24} {TAGS[number]:<10}{'' if TAGS[number] == tag else f' it is {tag}'}{how}")


if __name__ == "__main__":
    main()
