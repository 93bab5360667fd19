"""A process that was forked after CUDA had been started is refused every use of it, and computes on the CPU."""

import copy
import multiprocessing
import os
import pickle

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import OperationError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
REFUSED = "CUDA was started before this process was forked, and cannot be used in it"


def in_child(function):
    """What a function gives, or its error, in a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, f"gave {function()}".encode()[:4000])
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as found:
        return found.read().decode()


USES = {
    "a factory": lambda x, step: wf.zeros(2, device="cuda"),
    "a copy there": lambda x, step: wf.ones(2).cuda(),
    "a module": lambda x, step: nn.Linear(2, 2).to("cuda"),
    # what was made before the fork
    "an op that has run": lambda x, step: x * 2,
    "another op": lambda x, step: x.hypot(x),
    "a product": lambda x, step: x @ x,
    "a write": lambda x, step: x.detach().add_(1.0),
    "an item that is set": lambda x, step: x.detach().__setitem__(0, 1.0),
    "a gradient": lambda x, step: (x.grad, x.sum().backward()),
    "a compiled function": lambda x, step: step(x.detach()),
    # reading
    "a value": lambda x, step: x[0].item(),
    "a list": lambda x, step: x.tolist(),
    "a copy back": lambda x, step: x.cpu(),
    "a copy": lambda x, step: copy.deepcopy(x),
    "a pickle": lambda x, step: pickle.dumps(x.detach()),
    "a text": lambda x, step: repr(x),
    "pinned memory": lambda x, step: wf.ones(2).pin_memory(),
    # wf.cuda
    "a wait": lambda x, step: wf.cuda.synchronize(),
    "a stream": lambda x, step: wf.cuda.Stream(),
    "an event": lambda x, step: wf.cuda.Event().record(),
    "the current device": lambda x, step: wf.cuda.current_device(),
    "memory": lambda x, step: wf.cuda.memory_allocated(),
    "a name": lambda x, step: wf.cuda.get_device_name(),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_is_refused(cuda, use):
    x = wf.ones(3, device="cuda", requires_grad=True)
    step = wf.compile(lambda t: (t * 2 + 1).sum())
    (x * 2 + 1).sum().backward()
    for _ in range(4):
        step(x.detach())
    said = in_child(lambda: USES[use](x, step))
    assert said.startswith("OperationError") and REFUSED in said and "'spawn'" in said
    assert (x * 2).tolist() == [2.0, 2.0, 2.0], "the process itself goes on"


def test_what_a_child_may_do(cuda):
    x = wf.ones(3, device="cuda")
    y = wf.ones(2, requires_grad=True)

    def work():
        (y * 2).sum().backward()
        wf.manual_seed(1)
        with wf.profile() as profile:
            y.exp()
        shown = "GPU" in str(profile)
        return y.grad.tolist(), str(x.device), x.is_cuda, x.shape, str(wf.device("cuda:1")), shown

    assert in_child(work) == "gave ([2.0, 2.0], 'cuda:0', True, wayfare.Size([3]), 'cuda:1', False)"
    assert REFUSED in in_child(lambda: in_child(lambda: x + 1)), "a fork of a fork"


def test_a_fork_before_cuda_is_started_may_use_it():
    # `device.forget` in the fixture would start it, so a child that knows nothing of it is looked at from outside.
    assert in_child(lambda: wf.cuda.is_initialized()) == "gave False"


class Made:
    """A dataset that makes tensors on the device."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return wf.tensor(float(i), device="cuda")


class Held:
    """A dataset that holds one."""

    def __init__(self):
        self.rows = wf.arange(2.0, device="cuda")

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return self.rows[i]


@pytest.mark.parametrize("dataset", [Made, Held])
def test_a_worker_of_a_loader(cuda, dataset):
    wf.zeros(1, device="cuda")
    loader = wf.data.DataLoader(dataset(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(OperationError, match=f"(?s)DataLoader worker 0.*{REFUSED}.*'spawn'"):
        list(loader)
    plain = wf.data.DataLoader(wf.data.TensorDataset(wf.arange(4.0)), batch_size=2, num_workers=1, pin_memory=True,
                               multiprocessing_context="fork")  # fmt: skip
    assert [x.to("cuda", non_blocking=True).tolist() for (x,) in plain] == [[0.0, 1.0], [2.0, 3.0]]


def test_a_process_of_multiprocessing(cuda):
    x = wf.ones(2, device="cuda")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work():
        try:
            answers.put((x * 2).tolist())
        except OperationError as error:
            answers.put(str(error))

    process = context.Process(target=work)
    process.start()
    said = answers.get()
    process.join()
    assert REFUSED in said and x.tolist() == [1.0, 1.0]
