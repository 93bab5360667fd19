"""`wf.profile.compare`: every way of running a step in one table, and a model that is left as it was."""

import random

import pytest

import wayfare as wf
from tests.compiler.checks import equal
from wayfare import nn
from wayfare.codegen.runtime import kernel


class World:
    """A model in the middle of its training."""

    def __init__(self):
        wf.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = wf.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = wf.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.batches = [(wf.randn(6, 4), wf.randint(0, 3, (6,))) for _ in range(3)]

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss

    def state(self):
        """All of it, in memory of its own."""
        return [
            {key: value.clone() for key, value in self.model.state_dict().items()},
            [None if p.grad is None else p.grad.clone() for p in self.model.parameters()],
            [{name: wf.as_tensor(value).clone() for name, value in state.items()}
             for state in self.optimizer.state.values()],
            [{**group, "params": len(group["params"])} for group in self.optimizer.param_groups],
            self.schedule.state_dict(),
            wf.get_rng_state().clone(),
            [(x.clone(), y.clone()) for x, y in self.batches],
        ]  # fmt: skip


def quick(step, batches):
    return wf.profile.compare(step, batches, rounds=1)


def test_a_row_for_each_way_with_its_counts():
    world = World()
    found = quick(world.step, world.batches)
    assert [row.way for row in found.rows] == ["eager", "compiled"]
    for row in found.rows:
        assert row.seconds > 0 and row.first_seconds > 0 and row.peak_bytes > 0 and not row.python
    eager, static = found.rows
    # One native call: the update of all parameters.
    assert (eager.recorded, eager.native_calls, eager.retraces) == (0, 1, 0)
    assert static.recorded >= 1 and static.retraces == 0
    assert found["compiled"] is static


def test_a_plan_is_one_native_call():
    world = World()
    static = quick(world.step, world.batches)["compiled"]
    told = wf.compile(world.step)
    for batch in world.batches:
        told(*batch)
    plan = told.explain().data["signatures"][0]["variants"][0]["tree"]["plan"]
    assert static.native_calls == plan["native_calls"]


@pytest.mark.parametrize("trained", [0, 2], ids=["before the first step", "in the middle"])
def test_the_model_is_left_as_it_was(trained):
    world = World()
    for batch in (world.batches * 2)[:trained]:
        world.step(*batch)
    before = world.state()
    identities = [id(t) for t in (*world.model.parameters(), *world.model.buffers())]
    quick(world.step, world.batches)
    equal(world.state(), before)
    assert [id(t) for t in (*world.model.parameters(), *world.model.buffers())] == identities
    # And it goes on as a twin does that was not measured.
    losses = [world.step(*batch) for batch in world.batches]
    twin = World()
    for batch in (twin.batches * 2)[:trained]:
        twin.step(*batch)
    equal(losses, [twin.step(*batch) for batch in twin.batches])


def test_it_is_restored_after_an_error_too():
    world = World()
    calls = []

    def step(x, y):
        calls.append(1)
        if len(calls) > 8:
            raise ZeroDivisionError
        return world.step(x, y)

    before = world.state()
    with pytest.raises(ZeroDivisionError):
        quick(step, world.batches)
    equal(world.state(), before)


def test_what_the_guards_refuse_is_restored_all_the_same():
    world = World()
    model, optimizer = world.model, world.optimizer

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) * (1 + random.random())
        loss.backward()
        optimizer.step()

    before = world.state()
    quick(step, world.batches)
    equal(world.state(), before)


def test_arguments_that_are_written_are_restored():
    x = wf.ones(3)
    seen = []

    def step(x):
        seen.append(x.sum().item())
        x.mul_(2)

    quick(step, [x])
    assert x.tolist() == [1.0, 1.0, 1.0] and set(seen) == {3.0}


def test_compiled_functions_and_modules_are_measured_by_their_python():
    model = nn.Linear(2, 2)
    assert [row.way for row in quick(wf.compile(model), [wf.ones(1, 2)]).rows] == ["eager", "compiled"]
    assert quick(wf.compile(lambda x: x * 2), [wf.ones(1)])["eager"].recorded == 0


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
def test_memory_is_what_a_step_needs_beyond_what_is_there():
    big = wf.zeros(1 << 18)

    def step(x):
        return ((big + x).exp() * 2).sum()

    found = quick(step, [wf.ones(1)])
    assert big.numpy().nbytes <= found["eager"].peak_bytes < 3.5 * big.numpy().nbytes
    assert found["compiled"].peak_bytes < big.numpy().nbytes / 2  # one kernel, no array in between


def test_the_table_fits_the_terminal():
    world = World()
    text = str(quick(world.step, world.batches))
    assert max(map(len, text.splitlines())) <= 80
    for word in ("way", "time/iter", "peak memory", "kernels", "retraces", "compiled", "step, 3 batches"):
        assert word in text


def test_retraces_are_counted():
    assert quick(lambda x: x * 2, [(wf.ones(1),), (wf.ones(2),)])["compiled"].retraces == 0


def test_bad_input():
    with pytest.raises(TypeError, match=r"compare: takes a function.*Tensor"):
        wf.profile.compare(wf.ones(1), [])
    with pytest.raises(ValueError, match="no batches"):
        wf.profile.compare(lambda x: x, [])
    with pytest.raises(ValueError, match="rounds"):
        wf.profile.compare(lambda x: x, [1], rounds=0)
    with pytest.raises(ValueError, match="no row 'fast'"):
        quick(lambda x: x * 2, [wf.ones(1)])["fast"]
