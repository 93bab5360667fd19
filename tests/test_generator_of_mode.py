"""A mode's own generator in the place of the default one, and generators for the examples of a batch."""

import threading

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.autograd.vmap import VmapExecutor
from wayfare.core.dispatch import apply
from wayfare.core.executor import Interceptor
from wayfare.core.generator import example_generator, generator_in_force, key_for
from wayfare.core.mode import STATE, changed_mode


class Eager(Interceptor):
    """An executor that runs ops as usual."""

    def apply(self, op, inputs, attrs):
        with changed_mode(executor=None):
            return apply(op, inputs, attrs)

    def read(self, tensor, how):
        return tensor._array

    def write(self, tensor, result, move):
        with changed_mode(executor=None):
            move(tensor, result)


def inside(generator):
    return changed_mode(generator=generator)


def seeded(seed):
    return wf.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def default_as_before():
    with wf.fork_rng():
        yield


DRAWS = {
    "rand": lambda: wf.rand(3),
    "randn": lambda: wf.randn(3),
    "randint": lambda: wf.randint(0, 1000, (3,)),
    "randperm": lambda: wf.randperm(9),
    "bernoulli": lambda: wf.bernoulli(wf.full((20,), 0.5)),
    "dropout": lambda: F.dropout(wf.ones(20)),
    "normal_": lambda: wf.empty(3).normal_(),
    "init": lambda: wf.nn.Linear(2, 2).weight.detach(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_names_no_generator_draws_from_the_modes(draw):
    wf.manual_seed(7)
    wanted = draw().tolist()
    before = wf.get_rng_state().tolist()
    own = seeded(7)
    with inside(own):
        drawn = draw()
    assert drawn.tolist() == wanted
    assert own.next_key()[1] > 0
    assert wf.get_rng_state().tolist() == before


def test_a_generator_that_is_named_is_used():
    wf.manual_seed(1)
    other = seeded(2)
    with inside(seeded(3)):
        assert key_for(other) == (2, 0)
        assert key_for(wf.default_generator) == (1, 0)
        assert key_for(None) == (3, 0)
        assert wf.rand(2, generator=seeded(5)).tolist() == wf.rand(2, generator=seeded(5)).tolist()
    assert key_for(None) == (1, 1)


def test_seeds_and_states_are_the_modes():
    wf.manual_seed(1)
    own = seeded(3)
    with inside(own):
        assert wf.initial_seed() == 3
        assert wf.manual_seed(11) is own and own.initial_seed() == 11
        state = wf.get_rng_state()
        first = wf.rand(4).tolist()
        wf.set_rng_state(state)
        assert wf.rand(4).tolist() == first
        with wf.fork_rng():
            wf.rand(2)
        assert own.next_key() == (11, 1)
        fresh = wf.seed()
        assert own.initial_seed() == fresh == wf.initial_seed()
        assert generator_in_force() is own
    assert wf.initial_seed() == 1 and key_for(None) == (1, 0)
    assert generator_in_force() is wf.default_generator


def test_fork_rng_puts_back_the_one_it_began_with():
    own = seeded(3)
    wf.manual_seed(1)
    with wf.fork_rng(), inside(own):
        wf.rand(2)
        block = wf.fork_rng()
        block.__enter__()
        wf.rand(2)
    wf.rand(1)
    block.__exit__(None, None, None)
    assert own.next_key() == (3, 1)
    assert key_for(None) == (1, 1)


def test_other_modes_leave_it_as_it_is():
    wf.manual_seed(1)
    own = seeded(3)
    with inside(own):
        with changed_mode(executor=VmapExecutor(2, STATE.mode, "same")):
            assert key_for(None) == (3, 0)
            with inside(seeded(4)):
                assert key_for(None) == (4, 0)
        with wf.no_grad():
            assert key_for(None) == (3, 1)
    assert key_for(None) == (1, 0)


def test_vmap_inside_draws_from_it():
    own = seeded(3)
    with inside(own):
        wf.vmap(lambda x: x + wf.rand(()), randomness="same")(wf.zeros(2))
    assert own.next_key() == (3, 1)


def test_other_threads_keep_the_default():
    wf.manual_seed(1)
    found = []
    with inside(seeded(3)):
        thread = threading.Thread(target=lambda: found.append(key_for(None)))
        thread.start()
        thread.join()
    assert found == [(1, 0)]


def test_checkpoint_draws_the_same_again_outside():
    x = wf.ones(50, requires_grad=True)
    with inside(seeded(3)):
        y = wf.utils.checkpoint.checkpoint(lambda t: F.dropout(t * t), x)
    before = wf.get_rng_state().tolist()
    y.sum().backward()
    assert x.grad.tolist() == (2 * y).tolist()
    assert wf.get_rng_state().tolist() == before


# -- a generator for each example


def test_an_examples_generator_is_always_the_same():
    assert repr(example_generator((5, 2), 3)) == repr(example_generator((5, 2), 3))
    # What was published once must not change: it would change everybody's results.
    assert example_generator((0, 0), 0).next_key() == (2558736989570252433, 0)
    assert wf.rand(3, generator=example_generator((5, 2), 3)).shape == (3,)


def test_examples_keys_and_levels_differ():
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**64 - 1, 0), (2**64 - 1, 2**40), (67280421310721, 5)]
    seeds = {example_generator(key, number).initial_seed() for key in keys for number in range(2000)}
    assert len(seeds) == len(keys) * 2000
    assert all(0 <= seed < 2**64 for seed in seeds)
    nested = {
        example_generator(example_generator((0, 0), outer).next_key(), inner).initial_seed()
        for outer in range(50) for inner in range(50)
    }  # fmt: skip
    assert len(nested) == 2500 and not nested & seeds


def test_neighbours_have_nothing_in_common():
    """Half of the bits change from one example, call or seed to the next, each bit about as often as not."""
    count = 4000

    def bits(seeds):
        return np.unpackbits(np.array(seeds, "<u8").view(np.uint8).reshape(-1, 8), axis=1)

    for seeds in (
        [example_generator((3, 0), n).initial_seed() for n in range(count)],
        [example_generator((3, n), 0).initial_seed() for n in range(count)],
        [example_generator((n, 0), 0).initial_seed() for n in range(count)],
        [example_generator((3, n), n).initial_seed() for n in range(count)],
    ):
        table = bits(seeds)
        changes = (table[1:] != table[:-1]).mean(0)
        assert np.abs(changes - 0.5).max() < 0.05
        assert np.abs(table.mean(0) - 0.5).max() < 0.05
        together = np.corrcoef(table.T.astype(float)) - np.eye(64)
        assert np.abs(together).max() < 0.1


def test_numbers_of_different_examples_are_uncorrelated():
    table = np.stack([wf.randn(500, generator=example_generator((9, 4), n)).numpy() for n in range(20)])
    assert np.abs(np.corrcoef(table) - np.eye(20)).max() < 0.25
    assert abs(table.mean()) < 0.05 and abs(table.std() - 1) < 0.05


def test_making_one_is_no_reason_to_give_up_a_recording():
    class Recorder(Eager):
        def not_replayable(self, reason):
            raise RuntimeError(reason)

    with changed_mode(executor=Recorder()):
        with pytest.raises(RuntimeError, match="a Generator is made"):
            wf.Generator()
        assert example_generator((1, 2), 3).initial_seed() == example_generator((1, 2), 3).initial_seed()
