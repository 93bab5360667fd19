"""LBFGS: a quasi-Newton method that remembers the last steps and what they did to the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.mode import executor
from wayfare.optim.elementwise import check_closure, check_range, number
from wayfare.optim.line_search import Point, strong_wolfe
from wayfare.optim.optimizer import Optimizer, Params

__all__ = ["LBFGS"]

# A pair of step and change of gradient is kept only if the curvature along it is positive, by this much.
_CURVATURE = 1e-10


class LBFGS(Optimizer):
    """Limited-memory BFGS. One `step(closure)` makes up to `max_iter` iterations and calls `closure` for each.

    `closure` clears the gradients, computes the loss, calls backward and returns the loss. `line_search_fn` is None
    (steps of `lr`) or "strong_wolfe". There is one parameter group only; parameters without a gradient count as if it
    were 0.
    """

    def _check_recorded(self) -> None:
        executor().not_replayable("LBFGS looks at the loss between evaluations")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        })  # fmt: skip

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        check_range("LBFGS", options, "lr")
        if options.get("line_search_fn") not in (None, "strong_wolfe"):
            raise ArgumentError(f"LBFGS: there is no line search {options['line_search_fn']!r}",
                                fix='Give "strong_wolfe" or None.')  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only one group can be."""
        if self.param_groups:
            raise ArgumentError("LBFGS: there can be one parameter group only",
                                fix="Give all parameters in one list.")  # fmt: skip
        super().add_param_group(param_group)

    def state_problems(self, p: wf.Tensor, group: dict[str, Any], state: dict[str, Any]) -> list[str]:
        """Directions that are not as long as all parameters together."""
        size = sum(q.numel() for q in group["params"])
        kept = [state.get("d"), state.get("prev_flat_grad"), *state.get("old_dirs", []), *state.get("old_stps", [])]
        lengths = {v.numel() for v in kept if v is not None} - {size}
        return [f"it has directions of {found} numbers for {size}" for found in sorted(lengths)]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate; returns the loss before the first iteration."""
        if closure is None:
            raise ArgumentTypeError("LBFGS.step: needs a closure, because it computes the loss several times",
                                    fix="Give a function that calls backward and returns the loss.")  # fmt: skip
        check_closure("LBFGS", closure)
        with wf.no_grad():
            return _Run(self, closure).iterate()


class _Run:
    """The iterations of one step; its memory is the optimiser's state."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]) -> None:
        self.group = optimizer.param_groups[0]
        self.params = self.group["params"]
        # The state is that of all parameters together; it is kept under the first.
        self.state = optimizer.state[self.params[0]]
        self.closure = closure
        self.evaluations = 0

    def evaluate(self) -> tuple[Any, Any]:
        """The loss and all gradients in one row, here."""
        with wf.enable_grad():
            loss = self.closure()
        self.evaluations += 1
        self.state["func_evals"] = self.state.get("func_evals", 0) + 1
        grads = [(p, p.grad) for p in self.params]
        return loss, wf.cat([wf.zeros_like(p).flatten() if g is None else g.detach().flatten() for p, g in grads])

    def move(self, direction: Any, t: float) -> None:
        begin = 0
        for p in self.params:
            end = begin + p.numel()
            p.add_(direction[begin:end].view(p.shape), alpha=t)
            begin = end

    def iterate(self) -> Any:
        """What `LBFGS.step` does."""
        state, group = self.state, self.group
        first_loss, grad = self.evaluate()
        loss, tolerance = float(first_loss), group["tolerance_change"]
        state.setdefault("n_iter", 0)
        if _largest(grad) <= group["tolerance_grad"]:
            return first_loss
        for turn in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self.direction(grad)
            state["d"], state["prev_flat_grad"], state["prev_loss"] = direction, grad.clone(), loss
            before, t = loss, number(group["lr"])
            if state["n_iter"] == 1:
                t *= min(1.0, 1.0 / float(grad.abs().sum()))
            state["t"] = t
            slope = float(grad.dot(direction))
            if slope > -tolerance:
                break
            if group["line_search_fn"] is not None:
                loss, grad, t = self.search(Point(0.0, loss, grad, slope), direction, t)
                state["t"] = t
            else:
                self.move(direction, t)
                if turn < group["max_iter"]:  # after the last one the gradient is not needed
                    made, grad = self.evaluate()
                    loss = float(made)
            if self.evaluations >= group["max_eval"] or _largest(grad) <= group["tolerance_grad"]:
                break
            if _largest(direction) * abs(t) <= tolerance or abs(loss - before) < tolerance:
                break
        return first_loss

    def direction(self, grad: Any) -> Any:
        """Minus the gradient, times the inverse Hessian as the remembered steps show it."""
        state = self.state
        if state["n_iter"] == 1:
            state["old_dirs"], state["old_stps"], state["ro"], state["H_diag"] = [], [], [], 1.0
            return -grad
        changes, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        change, step = grad - state["prev_flat_grad"], state["d"] * float(state["t"])
        curvature, size = float(change.dot(step)), float(change.dot(change))
        if curvature > _CURVATURE and size > 0:  # in float16 a square may be 0
            if len(changes) == self.group["history_size"]:
                for kept in (changes, steps, ro):
                    kept.pop(0)
            changes.append(change)
            steps.append(step)
            ro.append(1.0 / curvature)
            state["H_diag"] = curvature / size
        out = -grad
        weights = [0.0] * len(changes)
        for i in reversed(range(len(changes))):
            weights[i] = float(steps[i].dot(out)) * float(ro[i])
            out.add_(changes[i], alpha=-weights[i])
        out.mul_(float(state["H_diag"]))
        for i, weight in enumerate(weights):
            out.add_(steps[i], alpha=weight - float(changes[i].dot(out)) * float(ro[i]))
        return out

    def search(self, start: Point, direction: Any, t: float) -> tuple[float, Any, float]:
        """Move by a line search; the loss and gradient there, and how far it is."""
        origin = [p.detach().clone() for p in self.params]

        def evaluate(t: float) -> Point:
            self.move(direction, t)
            loss, grad = self.evaluate()
            for p, old in zip(self.params, origin, strict=True):
                p.copy_(old)
            return Point(t, float(loss), grad, float(grad.dot(direction)))

        most = self.group["max_eval"] - self.evaluations
        found, _ = strong_wolfe(evaluate, start, t, _largest(direction), self.group["tolerance_change"], most)
        self.move(direction, found.t)
        return found.loss, found.grad, found.t


def _largest(x: Any) -> float:
    return float(x.abs().max())
