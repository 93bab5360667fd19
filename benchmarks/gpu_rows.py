"""The rows of the suite `gpu`, the most important first: which work, by which sides, and what is wanted of Wayfare."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.batching import MAP
from benchmarks.contest import Limit
from benchmarks.crew import FLOAT32, Tolerance
from benchmarks.sides import (
    COMPILED,
    EAGER,
    TORCH,
    TORCH_CAPTURABLE,
    TORCH_COMPILE,
    TORCH_FUSED,
    TORCH_GRAPHS,
    Side,
)

GRAPHS = (TORCH_GRAPHS, TORCH_CAPTURABLE)
COMPILERS = (TORCH_COMPILE, *GRAPHS)
RATE = 1e-3  # what a wrong update does must show in the losses that are compared
BFLOAT16 = Tolerance(0.02, 0.02)
DEEP = Tolerance(0.01, 0.01)  # five updates of a deep network: rounding grows from one to the next

Ways = dict[Side, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One work: its parameters on a card and elsewhere (`small`), and those of each side beyond them.

    `arrays` are read or written once by a perfect kernel; `bytes_each` is what one of its layers needs on all sides.
    """

    name: str
    title: str
    work: str
    unit: str
    mine: Side
    ways: Ways
    limits: tuple[Limit, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    beside: tuple[Side, ...] = ()  # other peers: compiled anew for each row, they are measured if there is time left
    tolerance: Tolerance = FLOAT32
    warm: int = 3
    arrays: int = 0
    bytes_each: int = 0
    memory: bool = False  # whether its peak is measured, too
    data: bool = False  # whether it is given trees


    def with_others(self) -> Row:
        """The same work by Wayfare and by the other peers, judged as the peers of the same kind are."""
        of_graphs = next((limit for limit in self.limits if TORCH_GRAPHS in limit.against), None)
        limits = tuple(
            replace(of_graphs, against=(side,)) if of_graphs and side in GRAPHS else Limit((side,), None, None)
            for side in self.beside
        )
        ways = modes(*self.beside, self.mine)
        name, title = f"{self.name}, others", f"{self.title}; other peers"
        return replace(self, name=name, title=title, ways=ways, limits=limits, beside=())


def modes(*sides: Side) -> Ways:
    """Each side in its own mode."""
    return {side: {"mode": side.mode} for side in sides}


def _step(name: str, title: str, work: str, limits: tuple[Limit, ...], parameters: dict[str, Any],
          small: dict[str, Any], sides: tuple[Side, ...], unit: str = "ms", beside: tuple[Side, ...] = (),
          tolerance: Tolerance = FLOAT32) -> Row:  # fmt: skip
    """A training step, compiled by Wayfare, beside these sides."""
    return Row(name, title, work, unit, COMPILED, modes(*sides, COMPILED), limits, {"rate": RATE, **parameters}, small,
               beside, tolerance, warm=16)  # fmt: skip


def _elementwise(op: str, count: int, title: str, arrays: int) -> Row:
    """One op on large arrays; only the largest say how much of the bandwidth is used."""
    return Row(f"elementwise {op} {title}", f"{op}, {title} numbers", "elementwise.forward", "µs", EAGER,
               PLAIN, (Limit((TORCH,), 1.05, None),), {"op": op, "count": count}, {"count": 5000},
               warm=30, arrays=arrays)  # fmt: skip


PLAIN: Ways = {TORCH: {}, EAGER: {}}
MAPPED: Ways = {TORCH: {"mode": "loop"}, **modes(MAP)}
MILLION = 1_000_000
FEW, MANY = 4 * MILLION, 64 * MILLION
SMALL_TRANSFORMER = {"width": 16, "length": 6, "batch": 2}
SMALL_ATTENTION = {"batch": 1, "heads": 2, "length": 16, "size": 8, "dtype": "float32"}
SMALL_RESNET = {"batch": 4, "picture": 64, "widths": (4, 6, 8, 8)}
SMALL_MAP = {"count": 4, "hidden": 8}
LAYERS, INPUTS, OUTPUTS = 40, 4999, 5000  # a weight and a bias each: a billion parameters
# Parameter, gradient and two averages on three sides; PyTorch's default needs temporaries on top of that.
ADAM_BYTES = (3 * 16 + 16) * (INPUTS + 1) * OUTPUTS

COPY = Row("elementwise copy", "copy of 64M numbers", "elementwise.copying", "µs", EAGER, PLAIN,
           (Limit((TORCH,), None, None),), {"count": MANY}, {"count": 5000}, warm=30)  # fmt: skip

ROWS = [
    Row("ops", "200 small ops, forward + backward", "chain.small_ops", "ms", EAGER, PLAIN,
        (Limit((TORCH,), 0.7, 0.4),), {"ops": 200}, {"ops": 20}, warm=10),
    _step("logistic", "logistic regression 1000×10, SGD", "steps.logistic", (Limit((TORCH,), 0.3, 0.1),), {},
          {"rows": 50, "columns": 4}, (TORCH,), "µs", (TORCH_COMPILE, TORCH_GRAPHS)),
    _step("small mlp", "MLP 16-32-32-4, batch 32, Adam", "steps.mlp", (Limit((TORCH,), 0.3, 0.1),),
          {"batch": 32, "sizes": (16, 32, 32, 4)}, {"batch": 8}, (TORCH,), "µs", COMPILERS),
    _step("large mlp", "MLP 784-512-512-10, batch 256, Adam", "steps.mlp",
          (Limit((TORCH,), 0.6, 0.3), Limit((TORCH_GRAPHS,), 0.9, None)), {"batch": 256, "sizes": (784, 512, 512, 10)},
          {"batch": 8, "sizes": (12, 16, 5)}, (TORCH, TORCH_GRAPHS), "µs", (TORCH_COMPILE, TORCH_CAPTURABLE)),
    _step("large mlp, batches", "the same MLP on 10 batches in turn", "steps.mlp",
          (Limit((TORCH,), 0.6, 0.3), Limit((TORCH_GRAPHS,), 0.9, None)),
          {"batch": 256, "sizes": (784, 512, 512, 10), "batches": 10}, {"batch": 8, "sizes": (12, 16, 5), "batches": 3},
          (TORCH, TORCH_GRAPHS), "µs"),
    _step("transformer", "2 transformer blocks 8×128×256, Adam", "steps.transformer",
          (Limit((TORCH,), None, None), Limit((TORCH_GRAPHS,), 1.0, 0.8)), {}, SMALL_TRANSFORMER, (TORCH, TORCH_GRAPHS),
          beside=(TORCH_COMPILE, TORCH_CAPTURABLE)),
    _step("lstm", "LSTM cell, loop of 60 steps, batch 32", "steps.lstm_loop", (Limit((TORCH,), 0.2, 0.1),), {},
          {"batch": 3, "length": 4, "size": 3, "hidden": 5}, (TORCH,)),
    Row("trees", "Tree-LSTM, 64 trees, width 128", "trees.tree_lstm", "ms", MAP, MAPPED,
        (Limit((), 40.0, 15.0), Limit((TORCH,), None, None)), {"count": 64, "hidden": 128},
        {**SMALL_MAP, "size": 6}, warm=4, data=True),
    Row("sequences", "LSTM over 64 sequences of 5–60", "sequences.classifier", "ms", MAP,
        MAPPED, (Limit((TORCH,), 1 / 15, 1 / 40),), {"count": 64},
        {**SMALL_MAP, "size": 5, "longest": 9}, warm=6),
    Row("packed", "nn.LSTM over the 64 sequences, packed", "sequences.classifier", "ms", EAGER,
        {TORCH: {"mode": "packed"}, EAGER: {"mode": "packed"}}, (Limit((TORCH,), None, None),), {"count": 64},
        {**SMALL_MAP, "size": 5, "longest": 9}, warm=3),
    Row("while", "64 examples, each with a `while` on its values", "sequences.halting", "ms", MAP,
        MAPPED, (Limit((TORCH,), 1 / 8, 1 / 20),), {"count": 64}, SMALL_MAP, warm=16),
    COPY,
    *(_elementwise(op, FEW, "4M", 0) for op in ("tanh", "gelu", "add")),
    *(_elementwise(op, MANY, "64M", arrays) for op, arrays in (("tanh", 2), ("gelu", 2), ("add", 3))),
    Row("fused chain", "10 ops on 64M numbers, fused", "fusing.ten_ops", "µs", EAGER, PLAIN,
        (Limit((TORCH,), 0.25, None),), {"fused": True, "backward": False, "count": MANY}, {"count": 5000}, arrays=6),
    *(Row(f"rows {kind}", f"{kind} 8192×4096, forward + backward", "rowwise.forward_and_backward", "µs", EAGER,
          PLAIN, (Limit((TORCH,), 1.0, 0.8),), {"kind": kind, "rows": 8192, "columns": 4096},
          {"rows": 12, "columns": 9}) for kind in ("softmax", "layer_norm", "cross_entropy")),
    _step("transformer, bf16", "the transformer blocks under bf16 autocast", "steps.transformer",
          (Limit((TORCH,), None, None), Limit((TORCH_GRAPHS,), 1.0, 0.8)), {"autocast": "bfloat16"}, SMALL_TRANSFORMER,
          (TORCH, TORCH_GRAPHS), beside=(TORCH_CAPTURABLE,), tolerance=BFLOAT16),
    Row("attention", "attention 8×16×4096×64, causal, bf16, forward + backward", "attention.forward_and_backward", "ms",
        EAGER, PLAIN, (Limit((TORCH,), 5.0, 1.5),),
        {"batch": 8, "heads": 16, "length": 4096, "size": 64}, SMALL_ATTENTION, tolerance=BFLOAT16, memory=True),
    Row("resnet", "ResNet-18 step, batch 64, 64×64", "resnet.step", "ms", EAGER, modes(TORCH, EAGER),
        (Limit((TORCH,), 2.5, 1.5),), {"rate": RATE}, SMALL_RESNET, tolerance=DEEP),
    Row("adam", "Adam, 1,000,000,000 parameters in 80 tensors", "adam.update_on_device", "ms", EAGER,
        {TORCH: {}, TORCH_FUSED: {"variant": "fused"}, EAGER: {}},
        (Limit((TORCH,), 1.0, 0.8), Limit((TORCH_FUSED,), 1.0, 0.8)),
        {"layers": LAYERS, "inputs": INPUTS, "outputs": OUTPUTS}, {"layers": 2, "inputs": 7, "outputs": 8},
        bytes_each=ADAM_BYTES),
    Row("resnet, compiled", "ResNet-18 step, compiled by Wayfare", "resnet.step", "ms", COMPILED,
        modes(TORCH, COMPILED), (Limit((TORCH,), None, None),), {"rate": RATE}, SMALL_RESNET, tolerance=DEEP),
]  # fmt: skip
