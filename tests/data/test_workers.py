"""Worker processes: the same batches in the same order, errors and deaths told, nothing left behind."""

import multiprocessing
import os
import pickle
import random
import signal
import time

import numpy as np
import pytest

import wayfare as wf
from wayfare.core.processes.parcel import SLOT_BYTES
from wayfare.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info, list_collate

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the datasets of these tests are local"
)


class Noisy(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i, wf.rand(700), random.random(), np.random.rand()


class Each(Dataset):
    """Calls a function for each example."""

    def __init__(self, function, n=12):
        self.function, self.n = function, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.function(i)


class Stream(IterableDataset):
    """Each worker's share of 0 … n - 1."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, self.n, info.num_workers) if info else range(self.n))


def numbers(loader):
    def plain(value):
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value.tolist()

    return [plain(batch) for batch in loader]


def no_children():
    """Have all workers ended and been collected?"""
    return not multiprocessing.active_children()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    assert no_children()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_seed_gives_the_same_whatever_the_number_of_workers(workers, persistent):
    def epochs(**options):
        loader = DataLoader(Noisy(), 4, shuffle=True, seed=3, **options)
        return [numbers(loader) for _ in range(3)]

    assert epochs(num_workers=workers, persistent_workers=persistent) == epochs()


def test_order_is_kept_when_workers_differ_in_speed():
    def slow(i):
        time.sleep(0.03 if i % 4 == 0 else 0)
        return i

    loader = DataLoader(Each(slow, 16), 2, num_workers=3, prefetch_factor=3)
    assert numbers(loader) == [[i, i + 1] for i in range(0, 16, 2)]


def test_workers_are_seeded_each_differently():
    loader = DataLoader(Noisy(), 4, num_workers=2)
    wf.manual_seed(1)
    first = numbers(loader)
    wf.manual_seed(1)
    assert numbers(loader) == first != numbers(loader)
    draws = [sample for batch in first for sample in batch[2]]
    assert len(set(draws)) == len(draws)


def test_worker_info_and_init():
    def look(i):
        info = get_worker_info()
        return (i, info.id, info.num_workers, info.seed == wf.initial_seed(), wf.get_num_threads(), len(info.dataset),
                int(os.environ["WORKER"]))  # fmt: skip

    def begin(worker_id):
        os.environ["WORKER"] = str(worker_id)

    rows = numbers(DataLoader(Each(look), 2, num_workers=2, worker_init_fn=begin, collate_fn=lambda b: wf.tensor(b)))
    assert [row[1] for batch in rows for row in batch] == [0, 0, 1, 1] * 3
    assert all(row[2:6] == [2, 1, 1, 12] and row[6] == row[1] for batch in rows for row in batch)


@pytest.mark.parametrize("n, workers, size", [(17, 2, 3), (5, 3, 2), (2, 3, 2), (0, 2, 2), (40, 3, None)])
def test_streams(n, workers, size):
    loader = DataLoader(Stream(n), size, num_workers=workers, persistent_workers=True)
    for _ in range(2):
        got = list(loader)
        flat = [i for batch in got for i in batch.tolist()] if size else got
        assert sorted(flat) == list(range(n))
    assert got[:1] == [0] if n and size is None else True


def test_large_and_strange_batches_travel():
    def example(i):
        return {"big": wf.full((300, 300), i), "t": wf.arange(9000).reshape(90, 100).T, "text": "ü" * 50_000,
                "none": None, "array": np.arange(5000.0)[::2]}  # fmt: skip

    batches = list(DataLoader(Each(example, 4), 1, num_workers=2, collate_fn=lambda batch: batch[0]))
    for i, batch in enumerate(batches):
        assert (batch["big"] == i).all() and batch["text"] == "ü" * 50_000 and batch["none"] is None
        assert (batch["t"] == example(0)["t"]).all() and (batch["array"] == np.arange(0, 5000, 2)).all()
        batch["big"] += 1  # it can be written to, and belongs to nobody else
    assert all((batch["big"] == i + 1).all() for i, batch in enumerate(batches))


def test_what_does_not_fit_into_a_slot_goes_through_the_pipe(monkeypatch):
    monkeypatch.setattr("wayfare.core.processes.parcel.SLOT_BYTES", 50_000)
    assert SLOT_BYTES > 50_000
    data = TensorDataset(wf.arange(40_000).reshape(40, 1000), wf.arange(40))
    assert numbers(DataLoader(data, 10, num_workers=2)) == numbers(DataLoader(data, 10))


def test_tasks_larger_than_a_pipe():
    data = TensorDataset(wf.arange(200_000))
    loader = DataLoader(data, 100_000, num_workers=1, prefetch_factor=2, collate_fn=lambda b: b"x" * 300_000)
    assert [len(batch) for batch in loader] == [300_000] * 2


def test_lists_of_tensors_travel():
    loader = DataLoader([wf.ones(i % 3 + 1) for i in range(6)], 3, num_workers=2, collate_fn=list_collate)
    assert [[len(t) for t in batch] for batch in loader] == [[1, 2, 3], [1, 2, 3]]


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raising(make):
    def function(i):
        if i == 5:
            raise make()
        return i

    return function


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda: ValueError("a bad value"), ValueError, "a bad value"),
        (lambda: KeyError("the key"), KeyError, "the key"),
        (lambda: OSError(2, "gone"), OSError, "gone"),
        (lambda: Odd("this", "that"), RuntimeError, "Odd in DataLoader worker 0: this and that"),
        (lambda: StopIteration("early"), RuntimeError, "StopIteration"),
        (lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "no"), RuntimeError, "UnicodeDecodeError"),
        (lambda: wf.errors.ShapeError("shapes of mine", fix="Reshape."), wf.errors.ShapeError, "shapes of mine"),
        (lambda: type("Local", (Exception,), {})("hidden"), RuntimeError, "Local in DataLoader worker 0: hidden"),
    ],
)
def test_errors_arrive_with_class_and_traceback(make, kind, text):
    loader = DataLoader(Each(raising(make)), 2, num_workers=2)
    got = []
    with pytest.raises(kind) as raised:
        for batch in loader:
            got.append(batch.tolist())
    assert got == [[0, 1], [2, 3]]
    assert text in str(raised.value) and "in function" in str(raised.value) and "raise make()" in str(raised.value)
    assert no_children()


def test_errors_of_collate_init_and_pickling_arrive():
    def fail(*_):
        raise ValueError("in my function")

    def opened(i):
        return open(os.devnull)

    for options in ({"collate_fn": fail}, {"worker_init_fn": fail}):
        with pytest.raises(ValueError, match="in my function"):
            list(DataLoader(Each(int), 2, num_workers=1, **options))
    with pytest.raises(TypeError, match="cannot pickle"):
        list(DataLoader(Each(opened), None, num_workers=1))
    with pytest.raises(RuntimeError, match="only leaves can be pickled"):
        x = wf.ones(3, requires_grad=True)
        list(DataLoader(Each(lambda i: x * i), 2, num_workers=1))


def test_after_an_error_the_loader_works_again():
    loader = DataLoader(Each(raising(lambda: ValueError("x"))), 2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(ValueError):
            list(loader)


@pytest.mark.parametrize(
    "end, text",
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"), (lambda: os._exit(3), "exit code 3"),
     (lambda: exit(4), "exit code 4"), (lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM")],
)  # fmt: skip
def test_a_worker_that_dies_is_noticed(end, text):
    def function(i):
        if i == 5:
            end()
        return i

    loader = DataLoader(Each(function), 1, num_workers=2)
    with pytest.raises(RuntimeError, match=r"DataLoader: worker 1 \(pid \d+\) .*" + text):
        list(loader)
    assert no_children()


def test_a_worker_that_dies_is_noticed_while_another_is_waited_for():
    def function(i):
        if i == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    # Whoever waited for worker 0 would meet its error: None cannot be stacked.
    with pytest.raises(RuntimeError, match="worker 1"):
        list(DataLoader(Each(function), 1, num_workers=2))


def test_timeout():
    with pytest.raises(RuntimeError, match=r"worker 0 sent no batch within 0.2 seconds"):
        list(DataLoader(Each(lambda i: time.sleep(60)), 1, num_workers=1, timeout=0.2))


def test_a_worker_that_does_not_stop_is_stopped(tmp_path):
    def stubborn(i):
        if i == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (tmp_path / "there").touch()
            time.sleep(60)
        return i

    for _ in DataLoader(Each(stubborn), 1, num_workers=1):
        while not (tmp_path / "there").exists():
            time.sleep(0.01)
        break
    assert no_children()


def test_batches_that_nobody_waits_for_are_not_begun(tmp_path):
    def begin(i):
        (tmp_path / str(i)).touch()
        time.sleep(0.1)
        return i

    for _ in DataLoader(Each(begin, 100), 1, num_workers=1, prefetch_factor=20):
        break
    assert len(list(tmp_path.iterdir())) < 5


def test_break_and_exceptions_end_the_workers():
    for _ in DataLoader(Each(int, 1000), 1, num_workers=2):
        break
    assert no_children()
    with pytest.raises(ZeroDivisionError):
        for _ in DataLoader(Each(int, 1000), 1, num_workers=2):
            1 / 0
    assert no_children()
    iterator = iter(DataLoader(Each(int, 1000), 1, num_workers=2))
    next(iterator)
    assert len(multiprocessing.active_children()) == 2
    del iterator
    assert no_children()


def test_persistent_workers_stay_until_the_loader_goes():
    loader = DataLoader(Each(lambda i: os.getpid(), 8), 1, num_workers=2, persistent_workers=True)
    first = {batch.item() for batch in loader}
    for _ in loader:
        break  # what is under way is dropped, and not mistaken for the next epoch's
    second = [batch.item() for batch in loader]
    assert set(second) == first and len(second) == 8 and os.getpid() not in first
    twice = [(a.item(), b.item()) for a, b in zip(loader, loader, strict=True)]
    assert {a for a, _ in twice} == first and not {b for _, b in twice} & first
    del loader
    assert no_children()


def test_an_abandoned_epoch_leaves_no_batches_behind():
    loader = DataLoader(list(range(40)), 2, num_workers=2, persistent_workers=True)
    for stop in (1, 3, 2):
        for number, batch in enumerate(loader):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            if number == stop:
                break


def test_going_on_in_the_middle_of_an_epoch():
    def loader(**options):
        return DataLoader(Noisy(), 4, shuffle=True, seed=3, **options)

    here = loader()
    expected = numbers(here) + numbers(here)
    with_workers = loader(num_workers=2)
    iterator = iter(with_workers)
    seen = numbers([next(iterator), next(iterator)])
    state = with_workers.state_dict()  # two given out, though more are under way
    for options in ({}, {"num_workers": 1}, {"num_workers": 3}):
        resumed = loader(**options)
        resumed.load_state_dict(state)
        assert seen + numbers(resumed) + numbers(resumed) == expected
    del iterator


def test_going_on_in_a_stream():
    loader = DataLoader(Stream(20), 2, num_workers=2, seed=0)
    expected = numbers(loader)
    loader = DataLoader(Stream(20), 2, num_workers=2, seed=0)
    iterator = iter(loader)
    seen = numbers([next(iterator) for _ in range(3)])
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert seen + numbers(loader) == expected
    del iterator


def test_a_forked_copy_of_the_parent_cannot_use_the_workers():
    iterator = iter(DataLoader(Each(int), 1, num_workers=1))
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(0 if "belongs to another process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert [batch.item() for batch in iterator] == list(range(1, 12))


def test_workers_started_while_another_thread_draws():
    loader = DataLoader(Noisy(), 4, num_workers=1, seed=1, timeout=20)
    wf.default_generator._lock.acquire()
    try:
        iterator = iter(loader)
    finally:
        wf.default_generator._lock.release()
    assert len(list(iterator)) == 6


def test_workers_have_no_workers():
    def nested(i):
        return list(DataLoader(Each(int), 1, num_workers=1))

    with pytest.raises(RuntimeError, match="itself a worker"):
        list(DataLoader(Each(nested), 1, num_workers=1))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_of_starting(method):
    data = TensorDataset(wf.randn(20, 300), wf.arange(20))
    loader = DataLoader(data, 5, shuffle=True, seed=1, num_workers=1, multiprocessing_context=method)
    assert numbers(loader) == numbers(DataLoader(data, 5, shuffle=True, seed=1))
    local = DataLoader(Each(lambda i: i), 5, num_workers=1, multiprocessing_context=method)
    with pytest.raises(RuntimeError, match=f"cannot be sent to a worker started by '{method}'"):
        list(local)


def test_the_state_of_a_loader_is_small_and_plain():
    loader = DataLoader(Noisy(), 4, num_workers=2, seed=1)
    assert len(pickle.dumps(loader.state_dict())) < 1000
