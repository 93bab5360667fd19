"""Random programs with loops and decisions, as source text: what exports of them must agree with."""

import random

import wayfare as wf

_VALUES = ("a + x[t]", "b * 0.5", "(a - b).tanh()", "x[t] * 1.5", "a", "b", "c", "(b + c) * 0.5", "c - x[t] * 0.1",
           "c.relu() + 0.1")  # fmt: skip
_QUESTIONS = ("x[t].sum() > 0", "a.sum() > b.sum()", "c.norm() > 1", "(a * x[t]).sum() > 0.2")


def source(number):
    """The source of a function of x [length, 3]."""
    rng = random.Random(number)
    lines = ["def f(x):", "    a, b, c = x[0] * 0.5, wf.zeros(3), x[0] - 1", "    outs = []"]
    if rng.random() < 0.3:
        lines += [f"    if {rng.choice(_QUESTIONS).replace('[t]', '[0]')}:", f"        a = {_value(rng, '[0]')}"]
    lines.append("    for t in range(x.shape[0]):")
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.4:
            lines.append(f"        if {rng.choice(_QUESTIONS)}:")
            lines += [f"            {_assigned(rng)}" for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.5:
                lines += ["        else:", f"            {_assigned(rng)}"]
        else:
            lines.append(f"        {_assigned(rng)}")
    if rng.random() < 0.5:
        lines.append(f"        outs.append({rng.choice('abc')} * 1.0)")
        lines.append(f"    return {rng.choice('abc')} + 1, {rng.choice('abc')}, wf.stack(outs, {rng.randint(0, 1)})")
    else:
        lines.append(f"    return {rng.choice('abc')} * {rng.choice('abc')}, {rng.choice('abc')}")
    return "\n".join(lines)


def _value(rng, place="[t]"):
    return rng.choice(_VALUES).replace("[t]", place)


def _assigned(rng):
    if rng.random() < 0.2:
        return "a, b = b, " + _value(rng)
    return f"{rng.choice('abc')} = {_value(rng)}"


def function(number):
    """The function itself, with its source as its text."""
    text = source(number)
    namespace = {"wf": wf}
    exec(compile(text, f"program_{number}.py", "exec"), namespace)
    return namespace["f"]
