"""Adaptive computation: each example decides by its own values how long it is worked on.

Which package of Python's own library is a function from? The network reads the words of the function one by one. After
each it may be a little surer, and when what it has gathered reaches one, it stops and answers. Longer reading costs, so
it learns to stop early. The loop is a plain `for` with an `if` on a value, for one function; `wf.map` lets all
functions of a batch read their next word together, until the last has stopped.

    python examples/adaptive.py
    python examples/adaptive.py --loop         # the same, one function after the other
    python examples/adaptive.py --device cuda  # on a GPU
"""

import argparse
import itertools
import random
import time
from collections import Counter

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import split_by_file
from wayfare.cli.demo.words import Sentence, Vocabulary, read_sentences
from wayfare.nn.functional import cross_entropy

LONGEST = 60


class Skimmer(nn.Module):
    """Reads words until it is sure enough."""

    def __init__(self, words: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(words, width)
        self.cell = nn.GRUCell(width, width)
        self.sure = nn.Linear(width, 1)
        self.output = nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.1)
        assert self.sure.bias is not None
        nn.init.constant_(self.sure.bias, -2.5)  # at first: reading about a dozen words

    def forward(self, words: wf.Tensor) -> tuple[wf.Tensor, int, wf.Tensor]:
        """(scores, how many words were read, the part of one that the last of them had left)"""
        state = gathered = wf.zeros(self.width)
        left = wf.ones(1)
        for read, word in enumerate(words, 1):
            state = self.cell(self.embedding(word), state)
            step = self.sure(state).sigmoid()
            if read == len(words) or left < step:  # a value is looked at: the example waits for it
                break
            gathered = gathered + step * state
            left = left - step
        return self.output(gathered + left * state), read, left


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A reader that stops when it is sure enough.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (200)")
    parser.add_argument("--batch", type=int, default=32, help="functions in a step (32)")
    parser.add_argument("--cost", type=float, default=0.03, help="what reading another word costs (0.03)")
    parser.add_argument("--loop", action="store_true", help="one function after the other, without batching")
    parser.add_argument("--device", default="cpu", help="where it learns: cpu, cuda or cuda:1 (cpu)")
    options = parser.parse_args(arguments)
    try:
        wf.set_default_device(options.device)  # tensors are made there from now on
    except wf.errors.WayfareError as error:
        parser.error(str(error))
    batch = not options.loop

    wf.manual_seed(0)
    draw = random.Random(0)
    train, held_out = split_by_file([s for s in read_sentences() if len(s.words) <= LONGEST], seed=0)
    vocabulary = Vocabulary.of([sentence.words for sentence in train], at_least=3)
    classes = sorted({sentence.label for sentence in train})
    pairs = [(vocabulary.encode(s.words), wf.tensor(classes.index(s.label))) for s in train]
    print(f"{len(train)} functions to learn from, {len(held_out)} held out; packages {', '.join(classes)}")

    model = Skimmer(len(vocabulary), len(classes))
    optimizer = wf.optim.Adam(model.parameters(), lr=0.003)

    def loss_of(words: wf.Tensor, label: wf.Tensor) -> tuple[wf.Tensor, int]:
        scores, read, left = model(words)
        return cross_entropy(scores, label) + options.cost * (read + left.sum()), read

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        words, labels = zip(*draw.sample(pairs, options.batch), strict=True)
        losses, lengths = zip(*wf.map(loss_of, words, labels, batch=batch), strict=True)
        loss = wf.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 50 == 0 or step == options.steps:
            print(f"step {step:>4}   loss {loss.item():.4f}   {sum(lengths) / len(lengths):.1f} words read")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s, {1000 * seconds / options.steps:.0f} ms each\n")
    if batch:
        print("The last step, forward:")
        print(wf.batching.last(), "\n")

    def answer(sentence: Sentence) -> tuple[bool, int]:
        scores, read, _ = model(vocabulary.encode(sentence.words))
        return classes[scores.argmax().item()] == sentence.label, read

    some = draw.sample(held_out, min(len(held_out), 16 * options.batch))
    with wf.no_grad():
        answers = wf.map(answer, some, batch=batch)
    (commonest, _), = Counter(sentence.label for sentence in train).most_common(1)
    by_habit = sum(sentence.label == commonest for sentence in some)
    share = sum(read for _, read in answers) / sum(len(sentence.words) for sentence in some)
    print(f"held out: {sum(right for right, _ in answers) / len(some):.1%} right after {share:.0%} of the words; "
          f"the commonest answer alone would be {by_habit / len(some):.1%}\n")  # fmt: skip
    print("words read   functions   right")
    edges = [1, 3, 5, 9, 17, LONGEST + 1]
    for low, high in itertools.pairwise(edges):
        own = [right for right, read in answers if low <= read < high]
        if own:
            print(f"{low:>4} to {high - 1:<3} {len(own):>10} {sum(own) / len(own):>9.0%}")
    quick, _ = min(zip(some, answers, strict=True), key=lambda pair: (pair[1][1], -len(pair[0].words)))
    slow, _ = max(zip(some, answers, strict=True), key=lambda pair: (pair[1][1], len(pair[0].words)))
    with wf.no_grad():
        for sentence in (quick, slow):
            _, read, _ = model(vocabulary.encode(sentence.words))
            print(f"\n{sentence.name}() of {sentence.label}, {len(sentence.words)} words, read up to here:")
            print("  " + " ".join(sentence.words[:read][-12:]) + " |")


if __name__ == "__main__":
    main()
