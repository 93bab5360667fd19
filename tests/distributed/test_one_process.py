"""What needs no second process: a group of one, clear errors, the command line, the sampler, engines of one's own."""

import gc
import os
import re
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import wayfare as wf
import wayfare.distributed as dist
from tests.distributed.ranks import needs_mpi
from wayfare.core import launched
from wayfare.core.config import settings
from wayfare.distributed import launch
from wayfare.distributed.engine import Engine, ReduceOp, Request
from wayfare.distributed.process_group import world


@pytest.fixture
def alone():
    dist.init_process_group("auto")
    yield
    dist.destroy_process_group()


def test_a_process_alone_is_a_group_of_one(alone):
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "local")
    t = wf.arange(3.0)
    dist.all_reduce(t)
    dist.broadcast(t, 0)
    rows = [wf.zeros(3)]
    dist.all_gather(rows, t)
    found = [None]
    dist.all_gather_object(found, {"a": t})
    dist.barrier()
    assert t.tolist() == rows[0].tolist() == found[0]["a"].tolist() == [0, 1, 2]
    with pytest.raises(dist.DistributedError, match="already"):
        dist.init_process_group()


@pytest.mark.parametrize("op", list(ReduceOp))
def test_a_tensor_of_no_dimensions_is_reduced_too(alone, op):
    for t in (wf.tensor(3.5), wf.tensor(3)):
        if t.dtype.is_floating_point and op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            continue
        before = t.item()
        dist.all_reduce(t, op)
        rows = [wf.zeros_like(t)]
        dist.all_gather(rows, t)
        assert t.item() == rows[0].item() == before and t.ndim == 0


def test_messages_of_a_batch_are_checked(alone):
    assert dist.get_rank(dist.group.WORLD) == 0
    with pytest.raises(TypeError, match="op must be wf.distributed.isend"):
        dist.P2POp(dist.send, wf.ones(1), 0)
    with pytest.raises(ValueError, match="needs the other rank"):
        dist.P2POp(dist.isend, wf.ones(1))
    with pytest.raises(TypeError, match="takes a list of P2POp"):
        dist.batch_isend_irecv([dist.isend])
    assert dist.P2POp(dist.irecv, wf.ones(1), group_peer=0).peer == 0
    with pytest.raises(ValueError, match="a tag must be a whole number"):
        dist.isend(wf.ones(1), 0, tag=-1)


def test_data_parallel_alone_is_the_model(alone):
    wf.manual_seed(0)
    net = wf.nn.Sequential(wf.nn.Embedding(50, 4), wf.nn.Linear(4, 2))
    model = wf.nn.parallel.DistributedDataParallel(net)
    words = wf.tensor([1, 2, 2])
    net(words).square().sum().backward()
    assert net[0].weight.row_grad()[0].tolist() == [1, 2]
    assert [name.removeprefix("module.") for name in model.state_dict()] == list(net.state_dict())
    with pytest.raises(ValueError, match="device_ids"):
        wf.nn.parallel.DistributedDataParallel(net, device_ids=[0])


def test_before_a_group_there_is_a_clear_error():
    for call in (dist.get_rank, dist.barrier, lambda: dist.all_reduce(wf.ones(1)),
                 lambda: wf.nn.parallel.DistributedDataParallel(wf.nn.Linear(1, 1))):  # fmt: skip
        with pytest.raises(dist.DistributedError, match="init_process_group"):
            call()


@pytest.mark.parametrize("backend, words", [
    ("nccl", "no GPU tensors"), ("ray", "Ray"), ("smoke", "must be one of"),
])  # fmt: skip
def test_other_backends_are_refused_with_the_reason(backend, words):
    with pytest.raises((dist.DistributedError, ValueError), match=words):
        dist.init_process_group(backend)
    assert not dist.is_initialized()


def test_a_wrong_world_size_is_refused():
    words = "world_size=4 was given, and 1 process was started.*wayfare launch -n 4"
    with pytest.raises(dist.DistributedError, match=words):
        dist.init_process_group("auto", world_size=4, rank=0)


def test_without_mpi4py_the_command_to_install_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "wayfare.distributed.mpi", raising=False)
    with pytest.raises(dist.DistributedError, match=r'pip install "wayfare\[mpi\]"'):
        dist.init_process_group("mpi")


def test_a_mixture_of_mpis_is_noticed(monkeypatch):
    pytest.importorskip("mpi4py")
    code = ("import wayfare.distributed as d\n"
            "try: d.init_process_group('mpi')\n"
            "except d.DistributedError as error: print(error)\n")  # fmt: skip
    env = {**os.environ, "PMI_SIZE": "4", "PMI_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "4 processes were launched and MPI knows of 1" in done.stdout, done.stderr


@needs_mpi
@pytest.mark.parametrize("mpi", [["--mpi=--hostfile h"], ["--mpi", "--hostfile h"], ["--mpi", "--tag-output"]])
def test_launch_shows_the_command_line(mpi, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    line = [sys.executable, "-m", "wayfare", "launch", "-n", "2", "--show", *mpi, str(script), "--mpi", "--lr", "1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " -n 2 " in done.stdout and "-m mpi4py" in done.stdout and mpi[-1].removeprefix("--mpi=") in done.stdout
    assert done.stdout.rstrip().endswith(f"{script} --mpi --lr 1")


def test_the_launcher_sets_variables_before_the_script_and_imports_nothing(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "beside.py").write_text("")
    script.write_text(
        "import os, sys, beside\n"
        "assert not any(name.startswith('wayfare') for name in sys.modules)\n"
        "print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')), __name__, sys.argv)\n"
    )
    env = {**os.environ, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    done = subprocess.run([sys.executable, launched.__file__, str(script), "--lr", "1"], env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.stdout == f"3 4 1 __main__ {[str(script), '--lr', '1']}\n", done.stderr


def test_launch_answers_mistakes(tmp_path, monkeypatch):
    done = subprocess.run([sys.executable, "-m", "wayfare", "launch", "-n", "2", str(tmp_path / "no.py")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1 and "there is no file" in done.stderr
    with pytest.raises(ValueError, match="-n must be at least 1"):
        launch.command(0, ["train.py"])
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(dist.DistributedError, match="mpi4py is not installed"):
        launch.command(2, ["train.py"])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_sampler_deals_every_example(count, ranks):
    for shuffle in (False, True):
        for drop_last in (False, True):
            samplers = [wf.utils.data.DistributedSampler(range(count), ranks, r, shuffle, drop_last=drop_last)
                        for r in range(ranks)]  # fmt: skip
            parts = [list(s) for s in samplers]
            assert {len(p) for p in parts} == {len(samplers[0])}
            dealt = sorted(i for p in parts for i in p)
            if drop_last:
                assert len(set(dealt)) == len(dealt) == count // ranks * ranks
            else:
                assert set(dealt) == set(range(count)) and len(dealt) == -(-count // ranks) * ranks * bool(count)


def test_a_sampler_has_another_order_each_epoch():
    sampler = wf.utils.data.DistributedSampler(range(100), 2, 0, seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    with pytest.raises(ValueError, match="below num_replicas"):
        wf.utils.data.DistributedSampler(range(3), 2, 2)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_resumed_fit_goes_on_with_the_orders_of_its_epochs(seed, alone, tmp_path):
    def orders(folder, *stops):
        seen = []
        for epochs in stops:
            model = wf.nn.Linear(1, 1)
            data = wf.data.TensorDataset(wf.arange(12.0).reshape(12, 1))
            loader = wf.data.DataLoader(data, 12, shuffle=True, seed=seed)

            def step(model, batch):
                seen.append(batch[0].flatten().tolist())
                return model(batch[0]).mean()

            wf.train.fit(model, loader, optimizer=wf.optim.SGD(model.parameters(), lr=0.1), step=step, epochs=epochs,
                         strategy="ddp", progress=False, checkpoint=folder, resume=True)  # fmt: skip
        return seen

    whole = orders(tmp_path / "whole", 4)
    assert len({tuple(order) for order in whole}) == 4
    assert orders(tmp_path / "parts", 2, 4) == whole


def test_a_transfer_that_nobody_waits_for_is_through_when_the_group_ends():
    dist.init_process_group("auto")
    ends, through = time.monotonic() + 0.3, []
    world().work(Request(lambda: time.monotonic() > ends, lambda: through.append(True)), "send", background=True)
    dist.destroy_process_group()
    assert through == [True]


def test_a_transfer_that_never_ends_is_a_warning_and_keeps_its_arrays():
    dist.init_process_group("auto", timeout=0.1)
    array = np.zeros(3)
    alive = weakref.ref(array)
    world().work(Request(lambda array=array: False), "send", background=True)
    del array
    with pytest.warns(UserWarning, match="1 transfers were not through after 0.1 s"):
        dist.destroy_process_group()
    gc.collect()
    assert alive() is not None


def test_a_sampler_of_launched_processes_needs_their_group(monkeypatch):
    monkeypatch.setattr(settings, "launched_ranks", 2)
    for kind in (wf.utils.data.DistributedSampler, dist.CostSampler):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: 2 processes were launched and there is no process"):
            kind(range(8))
        assert len(list(kind(range(8), num_replicas=2, rank=1))) == 4
    monkeypatch.setattr(settings, "launched_ranks", 1)
    assert len(list(wf.utils.data.DistributedSampler(range(8)))) == 8


def test_a_call_for_tensors_names_one_for_other_values_that_exists(alone):
    calls = {"all_reduce": lambda: dist.all_reduce(3), "broadcast": lambda: dist.broadcast(3, 0),
             "gather": lambda: dist.gather(3), "send": lambda: dist.send(3, 0)}  # fmt: skip
    for call in calls.values():
        with pytest.raises(TypeError, match="takes tensors, not a int") as caught:
            call()
        named = re.search(r"for other values there is (\w+)", str(caught.value))[1]
        assert hasattr(dist, named)


def test_a_rank_alone_cannot_send_to_itself(alone):
    with pytest.raises(RuntimeError, match="send: this process is alone"):
        dist.send(wf.ones(2), 0)
    with pytest.raises(RuntimeError, match="recv: this process is alone"):
        dist.recv(wf.ones(2), 0)


class Threads(Engine):
    """An engine with the four methods that every engine must have: ranks are objects that share a mailbox."""

    name = "threads"

    def __init__(self, rank, size, box):
        self.rank, self.size, self.box = rank, size, box
        self.count = 0

    def send(self, array, to, tag=0):
        self.box.setdefault((self.rank, to, tag), []).append(array.copy())
        return Request()

    def receive(self, array, source, tag=0):
        def poll():
            waiting = self.box.get((source, self.rank, tag))
            if not waiting:
                return False
            array[...] = waiting.pop(0)
            return True

        return Request(poll)

    def all_gather(self, source, out):
        self.count += 1
        self.box["gather", self.count, self.rank] = source.copy()

        def poll():
            found = [self.box.get(("gather", self.count, r)) for r in range(self.size)]
            if any(f is None for f in found):
                return False
            out[...] = np.stack(found)
            return True

        return Request(poll)


def test_an_engine_with_four_methods_has_all_calls():
    box = {}
    engines = [Threads(r, 3, box) for r in range(3)]
    sources = [np.arange(6, dtype=np.float32).reshape(3, 2) * (r + 1) for r in range(3)]

    def all_ranks(call):
        outs = [np.zeros((3, 2), np.float32) for _ in range(3)]
        requests = [call(e, sources[e.rank], outs[e.rank]) for e in engines]
        for _ in range(10):
            if all([r.test() for r in requests]):
                return outs
        raise AssertionError("not through")

    total = sum(sources)
    for out in all_ranks(lambda e, s, o: e.all_reduce(s, o, ReduceOp.SUM)):
        assert np.array_equal(out, total)
    for out in all_ranks(lambda e, s, o: e.all_reduce(s, o, ReduceOp.AVG)):
        assert np.array_equal(out, total / 3)
    scattered = all_ranks(lambda e, s, o: e.reduce_scatter(s, o[0], ReduceOp.SUM))
    assert all(np.array_equal(scattered[r][0], total[r]) for r in range(3))
    swapped = all_ranks(lambda e, s, o: e.all_to_all(list(s), list(o)))
    assert all(np.array_equal(swapped[r][q], sources[q][r]) for r in range(3) for q in range(3))
    copies = [s.copy() for s in sources]
    requests = [e.broadcast(copies[e.rank], 1) for e in engines]
    assert all([r.test() for r in requests]) and all(np.array_equal(c, sources[1]) for c in copies)
    outs = [np.zeros((3, 2), np.float32) for _ in range(3)]
    requests = [e.gather(sources[e.rank], outs if e.rank == 0 else None, 0) for e in reversed(engines)]
    assert all([r.test() for r in requests]) and all(np.array_equal(a, b) for a, b in zip(outs, sources, strict=True))
    requests = [e.scatter(sources if e.rank == 0 else None, outs[e.rank], 0) for e in engines]
    assert all([r.test() for r in requests])
    requests = [e.barrier() for e in engines]
    assert all([r.test() for r in requests])


def test_settings_know_the_launcher(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert type(settings)().launched_ranks == 4
    assert launched.launched_variables() == {"RANK": "3", "WORLD_SIZE": "4"}
