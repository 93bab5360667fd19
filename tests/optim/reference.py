"""Optimisers as plain NumPy, one parameter at a time: what the fused steps are compared with.

Each is a class with `step(p, g)` that returns the new parameter; written from the published algorithms.
"""

import numpy as np


class Reference:
    def __init__(self, lr, *, weight_decay=0.0, maximize=False, decoupled=False, **options):
        self.lr, self.weight_decay, self.maximize, self.decoupled = lr, weight_decay, maximize, decoupled
        self.t = 0
        self.memory = {}
        for name, value in options.items():
            setattr(self, name, value)

    def old(self, name, like, value=0.0):
        return self.memory.get(name, np.full_like(like, value))

    def step(self, p, g):
        self.t += 1
        g = -g if self.maximize else g
        if self.decoupled:
            p = p - self.lr * self.weight_decay * p
        elif self.weight_decay:
            g = g + self.weight_decay * p
        return p - self.move(g)


class SGD(Reference):
    momentum, dampening, nesterov = 0.0, 0.0, False

    def move(self, g):
        if not self.momentum:
            return self.lr * g
        v = g if "v" not in self.memory else self.momentum * self.memory["v"] + (1 - self.dampening) * g
        self.memory["v"] = v
        return self.lr * (g + self.momentum * v if self.nesterov else v)


class WithAverages(Reference):
    betas, eps = (0.9, 0.999), 1e-8

    def averages(self, g):
        b1, b2 = self.betas
        self.memory["m"] = m = b1 * self.old("m", g) + (1 - b1) * g
        self.memory["v"] = v = b2 * self.old("v", g) + (1 - b2) * g**2
        return m, v, m / (1 - b1**self.t), v / (1 - b2**self.t)


class Adam(WithAverages):
    amsgrad = False

    def move(self, g):
        _, v, m_hat, v_hat = self.averages(g)
        if self.amsgrad:
            self.memory["top"] = np.maximum(self.old("top", g), v)
            v_hat = self.memory["top"] / (1 - self.betas[1] ** self.t)
        return self.lr * m_hat / (np.sqrt(v_hat) + self.eps)


class NAdam(WithAverages):
    momentum_decay = 4e-3

    def mu(self, t):
        return self.betas[0] * (1 - 0.5 * 0.96 ** (t * self.momentum_decay))

    def move(self, g):
        m, _, _, v_hat = self.averages(g)
        self.product = getattr(self, "product", 1.0) * self.mu(self.t)
        following = self.mu(self.t + 1)
        ahead = following * m / (1 - self.product * following) + (1 - self.mu(self.t)) * g / (1 - self.product)
        return self.lr * ahead / (np.sqrt(v_hat) + self.eps)


class RAdam(WithAverages):
    def move(self, g):
        _, v, m_hat, _ = self.averages(g)
        b2 = self.betas[1]
        most = 2 / (1 - b2) - 1
        length = most - 2 * self.t * b2**self.t / (1 - b2**self.t)
        if length <= 5:
            return self.lr * m_hat
        rectified = np.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
        return self.lr * rectified * m_hat * np.sqrt(1 - b2**self.t) / (np.sqrt(v) + self.eps)


class Adamax(WithAverages):
    def move(self, g):
        b1, b2 = self.betas
        self.memory["m"] = m = b1 * self.old("m", g) + (1 - b1) * g
        self.memory["u"] = u = np.maximum(b2 * self.old("u", g), np.abs(g) + self.eps)
        return self.lr / (1 - b1**self.t) * m / u


class Adagrad(Reference):
    lr_decay, initial_accumulator_value, eps = 0.0, 0.0, 1e-10

    def move(self, g):
        self.memory["sum"] = total = self.old("sum", g, self.initial_accumulator_value) + g**2
        return self.lr / (1 + (self.t - 1) * self.lr_decay) * g / (np.sqrt(total) + self.eps)


class Adadelta(Reference):
    rho, eps = 0.9, 1e-6

    def move(self, g):
        self.memory["v"] = v = self.rho * self.old("v", g) + (1 - self.rho) * g**2
        delta = np.sqrt(self.old("u", g) + self.eps) / np.sqrt(v + self.eps) * g
        self.memory["u"] = self.rho * self.old("u", g) + (1 - self.rho) * delta**2
        return self.lr * delta


class RMSprop(Reference):
    alpha, eps, momentum, centered = 0.99, 1e-8, 0.0, False

    def move(self, g):
        self.memory["v"] = v = self.alpha * self.old("v", g) + (1 - self.alpha) * g**2
        if self.centered:
            self.memory["mean"] = mean = self.alpha * self.old("mean", g) + (1 - self.alpha) * g
            v = v - mean**2
        if not self.momentum:
            return self.lr * g / (np.sqrt(v) + self.eps)
        self.memory["b"] = b = self.momentum * self.old("b", g) + g / (np.sqrt(v) + self.eps)
        return self.lr * b


CLASSES = {
    "SGD": SGD, "Adam": Adam, "AdamW": Adam, "NAdam": NAdam, "RAdam": RAdam, "Adamax": Adamax, "Adagrad": Adagrad,
    "Adadelta": Adadelta, "RMSprop": RMSprop,
}  # fmt: skip


def reference(name, lr, options):
    """The reference for an optimiser with its options."""
    options = dict(options)
    decoupled = options.pop("decoupled_weight_decay", name == "AdamW")
    if name == "AdamW":
        options.setdefault("weight_decay", 1e-2)
    return CLASSES[name](lr, decoupled=decoupled, **options)
