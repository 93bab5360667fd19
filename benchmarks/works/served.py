"""Models that answer requests: eagerly, compiled, or as a file for ONNX Runtime; the same weights on every side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.works import Prepared, Unavailable, constant, steps, trees
from benchmarks.works.examples import CLASSES, Node, balanced, read
from benchmarks.works.mapped import indices, look_up, run

REQUESTS = 4  # that come in turn: nothing may be gained from having seen this very array before


def mlp(m: Any, mode: str, batch: int = 1, sizes: tuple[int, ...] = (784, 512, 512, 10)) -> Prepared:
    """Linear layers with relu between them."""
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [m.nn.Linear(fan_in, fan_out), m.nn.ReLU()]
    return _served(m, mode, m.nn.Sequential(*layers[:-1]), (batch, sizes[0]))


def cnn(m: Any, mode: str, batch: int = 1, side: int = 8) -> Prepared:
    """Two convolutions with pooling, on square pictures with one channel."""
    nn = m.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 10),
    )  # fmt: skip
    return _served(m, mode, model, (batch, 1, side, side))


def transformer(m: Any, mode: str, batch: int = 1, width: int = 256, length: int = 32, layers: int = 2) -> Prepared:
    """Encoder blocks; dropout is there, and must cost nothing."""
    return _served(m, mode, steps.encoder(m, width, layers, dropout=0.1), (batch, length, width))


def lstm(m: Any, mode: str, batch: int = 1, length: int = 30, size: int = 64, hidden: int = 128) -> Prepared:
    """The class of a sequence by the last state of an LSTM."""

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = m.nn.LSTM(size, hidden, batch_first=True)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, x: Any) -> Any:
            _, (h, _) = self.lstm(x)
            return self.head(h[-1])

    return _served(m, mode, Classifier(), (batch, length, size))


def tree(m: Any, mode: str, data: str, batch: int = 1, hidden: int = 128, size: int = 128) -> Prepared:
    """The class of a sentence from its tree by a Tree-LSTM: a request is a tree, or a batch of them.

    Compiled are the cell and the head, called by Python for each node; batches go through `map`. The file takes trees
    as index arrays, which are made beforehand, as are other sides' tensors.
    """
    corpus = read(data)
    shapes = trees.shapes_of(len(corpus.letters), size, hidden)

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size)
            self.cell = trees.cell_of(m, "library", size, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

    model = Classifier()
    trees.start(m, model, shapes, hidden)
    model.eval()
    if mode == "onnx":
        return _tree_file(m, model, balanced(corpus.trees, lambda tree: len(tree.actions), batch))
    alone = mode != "eager" and batch == 1
    leaf_of, cell, head = model.cell.leaf, model.cell, model.head
    if alone:
        leaf_of = steps.compiled(m, mode, lambda word: model.cell.leaf(model.embed(word)))
        cell, head = steps.compiled(m, mode, model.cell), steps.compiled(m, mode, model.head)

    def state(node: Node, leaves: Any) -> Any:
        if node.left is None or node.right is None:
            return leaf_of(next(leaves))
        return cell(state(node.left, leaves), state(node.right, leaves))

    def scores(root: Node, words: Any) -> Any:
        return head(state(root, iter(words if alone else look_up(m, model.embed, words)))[0])

    def predict(examples: list[tuple[Node, Any]]) -> list[Any]:
        with m.inference_mode():
            return run(m, "loop" if mode == "eager" or alone else "map", scores, examples)

    batches = balanced(corpus.trees, lambda tree: len(tree.actions), batch)
    requests = [[(tree, indices(m, [leaf.word for leaf in tree.leaves])) for tree in batch] for batch in batches]
    turns = cycle(requests)

    def results() -> list[np.ndarray]:
        return [np.stack([found.numpy().reshape(-1) for found in predict(request)]) for request in requests[:REQUESTS]]

    return Prepared(lambda: predict(next(turns)), results, kept=model)


def versions(m: Any) -> dict[str, str]:
    """What writes and runs model files in this process; a name that is missing is not installed."""
    found = {}
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            found[name] = import_module(name).__version__
        except ImportError:
            continue
    return found


# -- one request -------------------------------------------------------------------------------------------------------


def _served(m: Any, mode: str, model: Any, shape: tuple[int, ...]) -> Prepared:
    """Requests of one array each, answered by the model in this mode."""
    _start(m, model)
    model.eval()
    numbers = np.random.default_rng(0)
    arrays = [numbers.standard_normal(shape, dtype=np.float32) for _ in range(REQUESTS)]
    if mode == "onnx":
        session = _session(m, lambda path: _write(m, model, arrays[0], path))
        return _of_session(session, [{session.get_inputs()[0].name: array} for array in arrays])

    def predict(x: Any) -> Any:
        with m.inference_mode():
            return model(x)

    answer = steps.compiled(m, mode, predict)
    requests = [constant(m, array) for array in arrays]
    turns = cycle(requests)
    return Prepared(
        lambda: answer(next(turns)), lambda: [answer(x).numpy().copy() for x in requests for _ in range(3)][2::3],
        kept=model,
    )  # fmt: skip


def _start(m: Any, model: Any) -> None:
    """The weights and statistics that every side has, from one stream in the order of their names."""
    numbers = np.random.default_rng(1)
    with m.no_grad():
        for name, values in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
            if values.ndim == 0:
                continue  # a counter of batches
            spread = values.shape[-1] ** -0.5 if values.ndim == 2 else 0.1
            drawn = numbers.standard_normal(tuple(values.shape), dtype=np.float32) * np.float32(spread)
            scales = values.ndim == 1 and name.endswith(("weight", "var"))
            values.copy_(constant(m, drawn + np.float32(scales)))


# -- model files -------------------------------------------------------------------------------------------------------


def _write(m: Any, model: Any, example: np.ndarray, path: str) -> None:
    """The library's own export, with an open batch axis."""
    # A batch of one would be taken for a size that never changes.
    x = constant(m, np.concatenate([example, example]) if len(example) == 1 else example)
    if m.__name__ == "torch":
        dim = m.export.Dim("batch")
        m.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=({0: dim},), external_data=False, verbose=False)
    else:
        m.onnx.export(model, (x,), path, ["x"], dynamic_axes={"x": {0: "batch"}}, timed=False)


def _tree_file(m: Any, model: Any, batches: list[list[Node]]) -> Prepared:
    """A file of the Tree-LSTM, which goes over all trees of a batch level by level."""
    if m.__name__ == "torch":
        raise Unavailable("torch.onnx.export writes down the nodes of one tree, not the recursion.")

    def scores(values: Any, children: Any, roots: Any) -> Any:
        h, _ = m.onnx.over_levels((values, children, roots), lambda words: model.cell.leaf(model.embed(words)),
                                  model.cell)  # fmt: skip
        return model.head(h)

    names = ["values", "children", "roots"]
    axes = {"values": {0: "leaves"}, "children": {0: "levels", 1: "width"}, "roots": {0: "trees"}}
    requests = [tuple(m.onnx.levels(batch)) for batch in batches]
    # The trees of one example that are deep and many, so that no size is one by chance.
    example = tuple(m.onnx.levels([tree for batch in batches for tree in batch][:REQUESTS]))
    session = _session(
        m, lambda path: m.onnx.export(scores, example, path, names, dynamic_axes=axes, timed=False)
    )
    return _of_session(session, [dict(zip(names, map(np.asarray, request), strict=True)) for request in requests])


def _session(m: Any, write: Callable[[str], Any]) -> Any:
    """ONNX Runtime over the file that `write` writes, with as many threads as the library has."""
    missing = {"onnx", "onnxruntime", *(["onnxscript"] if m.__name__ == "torch" else [])} - versions(m).keys()
    if missing:
        raise Unavailable(f"{', '.join(sorted(missing))} cannot be imported.")
    if not hasattr(m, "onnx"):
        raise Unavailable(f"{m.__name__} has no onnx.")
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = m.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        write(path)
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _of_session(session: Any, requests: list[dict[str, np.ndarray]]) -> Prepared:
    turns = cycle(requests)
    return Prepared(
        lambda: session.run(None, next(turns)),
        lambda: [session.run(None, request)[0] for request in requests[:REQUESTS]],
    )  # fmt: skip
