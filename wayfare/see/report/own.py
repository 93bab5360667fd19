"""One training step of the user's model, run for the report in several ways; everything is restored afterwards."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.nn.modes import in_mode
from wayfare.see.profile.snapshot import Snapshot
from wayfare.see.report.trace import Watched, unharmed, watched_layers

__all__ = ["OwnStep", "first_batch"]

Loss = Callable[[Any, Any], Any]


class OwnStep:
    """A step: the model, a batch, and how a loss comes of them. Each method runs it once or more and undoes it all."""

    def __init__(self, model: wf.nn.Module, batch: Any, loss: Loss | None, step: Any, optimizer: Any) -> None:
        self.model, self.batch = model, batch
        self._loss, self._step, self._optimizer = loss, step, optimizer
        self.seconds = 0.0  # of a step run before, as it is
        self.value = float("nan")  # the loss
        self.output: Any = None
        self.target: Any = None
        self.gradients: dict[str, float | None] = {}  # the norm of each parameter's gradient

    def _plain_step(self, model: Any, batch: Any) -> Any:
        """The step for batches (input, …, target)."""
        assert self._loss is not None
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise ArgumentTypeError(f"report: a batch must be a tuple (input, …, target), not a {type(batch).__name__}",
                                    fix="For other batches give step=, a function of model and batch.")  # fmt: skip
        *inputs, target = batch
        output = model(*inputs)
        return self._loss(output, target), output, target

    def forward(self) -> wf.Tensor:
        """The loss; output and target are kept if the step tells them."""
        given = (self._step or self._plain_step)(self.model, self.batch)
        whole = isinstance(given, tuple) and len(given) == 3
        loss, self.output, self.target = given if whole else (given, None, None)
        if not isinstance(loss, wf.Tensor) or loss.numel() != 1:
            shown = repr(loss.spec) if isinstance(loss, wf.Tensor) else type(loss).__name__
            raise ArgumentTypeError(f"report: the loss must be a tensor of one number, this is {shown}",
                                    fix="Take the mean() of the losses; a step returns loss or "
                                    "(loss, output, target).")  # fmt: skip
        return loss

    def whole(self) -> wf.Tensor:
        """Forward and backward, from no gradients; with an optimiser also its update."""
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self.forward()
        if loss.requires_grad:
            loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        return loss

    @contextmanager
    def undone(self) -> Iterator[None]:
        """After the block, model, optimiser, batch and random numbers are restored."""
        function = self._step if self._step is not None else self._loss
        before = Snapshot(function, [self.model, self._optimizer, self.batch])
        with unharmed():
            try:
                # A training step, also where the caller records nothing.
                with in_mode(self.model, True), wf.enable_grad():
                    yield
            finally:
                before.restore()

    def watched(self) -> Watched:
        """Run it with hooks on every layer, and note what they were given and gave."""
        with self.undone(), watched_layers(self.model) as found:
            self.value = float(self.whole().item())
            self.gradients = {
                name: None if parameter.grad is None else float(parameter.grad.norm().item())
                for name, parameter in self.model.named_parameters() if parameter.requires_grad
            }  # fmt: skip
        return found

    def timed(self) -> Any:
        """Run it as it is, for its time; returns what automatic batching did in it, if anything."""
        with self.undone():
            before = wf.batching.last()
            start = time.perf_counter()
            self.whole()
            self.seconds = time.perf_counter() - start
            after = wf.batching.last()
        return after if after is not before else None

    def recorded(self, title: str) -> Any:
        """Run it under `wf.debug.record`; the run."""
        with self.undone(), wf.debug.record(title=title) as run:
            self.whole()
        return run

    def profiled(self) -> Any:
        """Run it under `wf.profile`; the profile."""
        with self.undone(), wf.profile() as found:
            self.whole()
        return found

    def compared(self) -> Any:
        """Run it in every way there is; the comparison."""
        # Plain names and nothing of this object, as a user would write it: that is what is compared.
        model, optimizer, loss_of = self.model, self._optimizer, self._step or self._plain_step

        def training_step(batch: Any) -> wf.Tensor:
            model.zero_grad()
            given = loss_of(model, batch)
            loss: wf.Tensor = given[0] if isinstance(given, tuple) else given
            if loss.requires_grad:
                loss.backward()
            if optimizer is not None:
                optimizer.step()
            return loss

        with self.undone(), warnings.catch_warnings():
            # The table shows that a step cannot be compiled; no warning, because the user did not ask for it.
            warnings.simplefilter("ignore", UserWarning)
            return wf.profile.compare(training_step, [(self.batch,)], rounds=3)


def first_batch(data: Any) -> Any:
    """The first batch of a loader or list, without using any of its random numbers up."""
    if isinstance(data, (str, bytes, Mapping)) or not hasattr(data, "__iter__"):
        raise ArgumentTypeError(f"report: data must be batches to go through, not {type(data).__name__}",
                                fix="Give a wf.data.DataLoader, or a list of batches.")  # fmt: skip
    if hasattr(data, "__next__"):
        raise ArgumentTypeError("report: data is an iterator, which a look would use up",
                                fix="Give a list or a loader, or the batch itself: batch=….")  # fmt: skip
    state = data.state_dict() if hasattr(data, "state_dict") else None
    generator = getattr(data, "generator", None)
    drawn = generator.get_state() if generator is not None else None
    with unharmed(), wf.random.fork_rng():
        found = list(itertools.islice(data, 1))
    if state is not None:
        data.load_state_dict(state)
    if generator is not None:
        generator.set_state(drawn)
    if not found:
        raise ArgumentError("report: the data has no batch", fix="Give a list or a loader that is not empty.")
    return found[0]
