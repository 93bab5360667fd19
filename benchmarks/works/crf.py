"""A tagger whose loss is computed score by score: tiny views, scalars, and reads of values in between."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import Prepared, constant
from benchmarks.works.mapped import assign, collected

TAGS, START, STOP = 5, 3, 4
WORDS, SIZE, HIDDEN = 20, 5, 4


def tagger(m: Any, sentences: int = 3, length: int = 12) -> Prepared:
    """A BiLSTM under a conditional random field, sentence by sentence: the loss and its gradients."""

    def log_sum_exp(scores: Any) -> Any:
        best = scores[0, scores.argmax(1).item()]
        return best + m.log(m.sum(m.exp(scores - best.view(1, -1).expand(1, scores.size()[1]))))

    class Tagger(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(WORDS, SIZE)
            self.lstm = m.nn.LSTM(SIZE, HIDDEN // 2, bidirectional=True)
            self.head = m.nn.Linear(HIDDEN, TAGS)
            self.moves = m.nn.Parameter(m.zeros(TAGS, TAGS))

        def scores(self, words: Any) -> Any:
            out, _ = self.lstm(self.embed(words).view(len(words), 1, -1))
            return self.head(out.view(len(words), HIDDEN))

        def of_all_paths(self, scores: Any) -> Any:
            total = m.full((1, TAGS), -10000.0)
            total[0][START] = 0.0
            for score in scores:
                after = []
                for tag in range(TAGS):
                    emitted = score[tag].view(1, -1).expand(1, TAGS)
                    after.append(log_sum_exp(total + self.moves[tag].view(1, -1) + emitted).view(1))
                total = m.cat(after).view(1, -1)
            return log_sum_exp(total + self.moves[STOP])

        def of_one_path(self, scores: Any, tags: Any) -> Any:
            total, tags = m.zeros(1), m.cat([m.tensor([START], dtype=m.long), tags])
            for i, score in enumerate(scores):
                total = total + self.moves[tags[i + 1], tags[i]] + score[tags[i + 1]]
            return total + self.moves[STOP, tags[-1]]

    model, numbers = Tagger(), np.random.default_rng(0)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assign(m, model, {name: numbers.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()})
    data = [
        tuple(constant(m, numbers.integers(0, limit, length)) for limit in (WORDS, TAGS - 2)) for _ in range(sentences)
    ]

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        for words, tags in data:
            scores = model.scores(words)
            (model.of_all_paths(scores) - model.of_one_path(scores, tags)).sum().backward()

    def results() -> list[np.ndarray]:
        step()
        return list(collected(model).values())

    return Prepared(step, results, kept=model)
