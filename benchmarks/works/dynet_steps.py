"""The same models for DyNet, which batches by itself too: expressions of all examples first, then one evaluation.

DyNet's gradients add up from step to step. Nothing clears them here, which costs DyNet nothing; results are of a first
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.works import Prepared

Values = dict[str, np.ndarray]
LEAF_GATES, INNER_GATES = 3, 5
FORGET = 1.0  # what DyNet's LSTM adds to a forget gate of its own accord


def tree_lstm(dy: Any, values: Values, batches: Sequence[Sequence[Any]], every: bool, hidden: int) -> Prepared:
    """A Tree-LSTM: DyNet for Python has no such cell, so it is written with weights for each gate, its fastest way."""
    given = {name: value for name, value in values.items() if not name.startswith("cell.")}
    for gate in range(INNER_GATES):
        rows = slice(gate * hidden, (gate + 1) * hidden)
        given[f"left{gate}.weight"] = values["cell.of_children.weight"][rows, :hidden]
        given[f"right{gate}.weight"] = values["cell.of_children.weight"][rows, hidden:]
        given[f"inner{gate}.bias"] = values["cell.of_children.bias"][rows]
        if gate < LEAF_GATES:
            given[f"leaf{gate}.weight"] = values["cell.of_input.weight"][rows]
            given[f"leaf{gate}.bias"] = values["cell.of_input.bias"][rows]
    model = Model(dy, given, tables=("embed",))
    weights = model.weights
    of_children = [
        (weights[f"inner{gate}.bias"], weights[f"left{gate}.weight"], weights[f"right{gate}.weight"])
        for gate in range(INNER_GATES)
    ]

    def leaf(word: int) -> Any:
        x = model.tables["embed"][word]
        i, o, u = (model.linear(f"leaf{gate}", x) for gate in range(LEAF_GATES))
        c = dy.cmult(dy.logistic(i), dy.tanh(u))
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def inner(left: Any, right: Any) -> Any:
        gates = [dy.affine_transform([bias, one, left[0], other, right[0]]) for bias, one, other in of_children]
        i, o, u, of_left, of_right = gates
        kept = dy.cmult(dy.logistic(of_left), left[1]) + dy.cmult(dy.logistic(of_right), right[1])
        c = dy.cmult(dy.logistic(i), dy.tanh(u)) + kept
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def state(node: Any, losses: list[Any]) -> Any:
        if node.left is None:
            found = leaf(node.word)
        else:
            found = inner(state(node.left, losses), state(node.right, losses))
        if every:
            losses.append(loss(found[0], node))
        return found

    def loss(h: Any, node: Any) -> Any:
        return dy.pickneglogsoftmax(model.linear("head", h), node.label)

    def loss_of(tree: Any) -> Any:
        losses: list[Any] = []
        h, _ = state(tree, losses)
        return dy.esum(losses) if every else loss(h, tree)

    def gradients() -> Values:
        found = model.gradients()
        sides = [[found.pop(f"{side}{gate}.weight") for gate in range(INNER_GATES)] for side in ("left", "right")]
        leaves = [found.pop(f"leaf{gate}.weight") for gate in range(LEAF_GATES)]
        return {name: grad for name, grad in found.items() if name.startswith(("embed", "head"))} | {
            "cell.of_children.weight": np.concatenate([np.concatenate(side) for side in sides], 1),
            "cell.of_input.weight": np.concatenate(leaves),
        }

    return _prepared(dy, loss_of, batches, gradients)


def tagger(
    dy: Any, values: Values, corpus: Any, sentences: Sequence[Sequence[Any]]
) -> Prepared:
    """The tagger, with DyNet's own LSTMs."""
    model = Model(dy, values, tables=("embed", "embed_letters"), lstms=("speller", "forwards", "backwards"))

    def vector_of(word: int) -> Any:
        if not corpus.rare[word]:
            return model.tables["embed"][word]
        letters = [model.tables["embed_letters"][letter] for letter in corpus.letters[word]]
        return model.lstms["speller"].states(letters)[-1]

    def loss_of(sentence: Any) -> Any:
        vectors = [vector_of(word) for word, _ in sentence]
        ahead = model.lstms["forwards"].states(vectors)
        back = model.lstms["backwards"].states(vectors[::-1])[::-1]
        losses = []
        for one, other, (_, label) in zip(ahead, back, sentence, strict=True):
            scores = model.linear("head", dy.tanh(model.linear("inner", dy.concatenate([one, other]))))
            losses.append(dy.pickneglogsoftmax(scores, label))
        return dy.esum(losses)

    return _prepared(dy, loss_of, sentences, model.gradients)


class Model:
    """Parameters by the names of the other sides; a collection must outlive what was made of it, so it is kept here."""

    def __init__(self, dy: Any, values: Values, tables: tuple[str, ...] = (), lstms: tuple[str, ...] = ()) -> None:
        self.dy = dy
        self.collection = dy.ParameterCollection()
        self.lstms = {name: Recurrent(dy, self.collection, name, values) for name in lstms}
        add_table = self.collection.add_lookup_parameters
        self.tables = {n: add_table(values[f"{n}.weight"].shape, init=values[f"{n}.weight"]) for n in tables}
        self.weights = {
            name: self.collection.add_parameters(value.shape, init=value)
            for name, value in values.items()
            if name.partition(".")[0] not in (*tables, *lstms)
        }

    def linear(self, name: str, x: Any) -> Any:
        """A linear layer."""
        return self.dy.affine_transform([self.weights[f"{name}.bias"], self.weights[f"{name}.weight"], x])

    def gradients(self) -> Values:
        """The gradients of all parameters."""
        found = {name: weight.grad_as_array() for name, weight in self.weights.items()}
        found |= {f"{name}.weight": table.grad_as_array() for name, table in self.tables.items()}
        for lstm in self.lstms.values():
            found |= lstm.gradients()
        return found


class Recurrent:
    """DyNet's LSTM with the weights of a PyTorch cell: its gates stand in another order, with one bias for both."""

    def __init__(self, dy: Any, collection: Any, name: str, values: Values) -> None:
        self.name = name
        self._hidden = values[f"{name}.weight_hh"].shape[1]
        self.builder = dy.VanillaLSTMBuilder(1, values[f"{name}.weight_ih"].shape[1], self._hidden, collection)
        bias = self._turned(values[f"{name}.bias_ih"] + values[f"{name}.bias_hh"])
        bias[self._hidden : 2 * self._hidden] -= FORGET
        given = [self._turned(values[f"{name}.weight_ih"]), self._turned(values[f"{name}.weight_hh"]), bias]
        for parameter, value in zip(self.builder.get_parameters()[0], given, strict=True):
            parameter.set_value(value)

    def states(self, vectors: list[Any]) -> list[Any]:
        """What it outputs at each vector."""
        found: list[Any] = self.builder.initial_state().transduce(vectors)
        return found

    def gradients(self) -> Values:
        """The gradients of its parameters, as of a PyTorch cell."""
        of_input, of_state, bias = (self._turned(p.grad_as_array()) for p in self.builder.get_parameters()[0])
        found = {"weight_ih": of_input, "weight_hh": of_state, "bias_ih": bias, "bias_hh": bias}
        return {f"{self.name}.{part}": value for part, value in found.items()}

    def _turned(self, gates: np.ndarray) -> np.ndarray:
        """Input, forget, update, output to input, forget, output, update; and back."""
        i, f, third, fourth = np.split(np.asarray(gates), 4)
        return np.concatenate([i, f, fourth, third])


def _prepared(
    dy: Any, loss_of: Callable[[Any], Any], batches: Sequence[Sequence[Any]], gradients: Callable[[], Values]
) -> Prepared:
    turns = cycle(batches)

    def learn(batch: Sequence[Any]) -> list[Any]:
        dy.renew_cg()
        losses = [loss_of(example) for example in batch]
        total = dy.esum(losses)
        total.forward()
        total.backward()
        return losses

    def results() -> list[np.ndarray]:
        losses = learn(batches[0])
        found = gradients()
        each = np.array([loss.value() for loss in losses], np.float32)
        return [each, *(np.asarray(found[name], np.float32) for name in sorted(found))]

    return Prepared(lambda: learn(next(turns)), results)
