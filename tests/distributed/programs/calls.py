"""Every collective call, checked on every rank, against what NumPy says."""

import numpy as np

import wayfare as wf
import wayfare.distributed as dist

dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
everyone = range(size)


def mine(r, shape=(3, 2), dtype=wf.float32):
    return wf.from_numpy(np.random.default_rng(r).integers(1, 4, shape)).to(dtype)


def same(tensor, expected):
    got = tensor.numpy()
    assert got.shape == np.shape(expected) and np.array_equal(got, expected), (got, expected)


REDUCERS = {
    dist.ReduceOp.SUM: np.add, dist.ReduceOp.PRODUCT: np.multiply, dist.ReduceOp.MIN: np.minimum,
    dist.ReduceOp.MAX: np.maximum,
}  # fmt: skip
for dtype in (wf.float16, wf.float32, wf.float64, wf.int8, wf.int32, wf.int64, wf.uint8):
    for op, reduce in REDUCERS.items():
        t = mine(rank, dtype=dtype)
        dist.all_reduce(t, op)
        assert t.dtype is dtype
        same(t, reduce.reduce([mine(r, dtype=dtype).numpy() for r in everyone]))
for dtype in (wf.float32, wf.float64):
    t = mine(rank, dtype=dtype)
    dist.all_reduce(t, dist.ReduceOp.AVG)
    same(t, sum(mine(r, dtype=dtype).numpy() for r in everyone) / np.dtype(dtype.name).type(size))
BITS = {dist.ReduceOp.BAND: np.bitwise_and, dist.ReduceOp.BOR: np.bitwise_or, dist.ReduceOp.BXOR: np.bitwise_xor}
for op, reduce in BITS.items():
    t = mine(rank, dtype=wf.int64)
    dist.all_reduce(t, op)
    same(t, reduce.reduce([mine(r, dtype=wf.int64).numpy() for r in everyone]))
truth = wf.tensor([rank == 0, True, False])
dist.all_reduce(truth, dist.ReduceOp.MAX)
same(truth, [True, True, False])

# In place in what is no contiguous memory, in no dimensions, and in none at all.
wide = wf.zeros(4, 6)
part = wide[:, ::2].t()
part.copy_(mine(rank, (3, 4)))
dist.all_reduce(part)
same(wide[:, ::2].t(), sum(mine(r, (3, 4)).numpy() for r in everyone))
assert float(wide[:, 1::2].sum().item()) == 0
scalar = wf.tensor(float(rank))
dist.all_reduce(scalar)
assert scalar.item() == sum(everyone) and scalar.ndim == 0
empty = wf.zeros(0, 3)
dist.all_reduce(empty)

# A write that gradients notice.
x = wf.ones(2, requires_grad=True)
kept = x * 1
y = (kept * kept).sum()
dist.all_reduce(kept)
try:
    y.backward()
except RuntimeError as error:
    assert "changed" in str(error) or "written" in str(error) or "in-place" in str(error), error
else:
    raise AssertionError("backward used a tensor that was overwritten")

works = []
for i in range(20):
    t = mine(rank) * (i + 1)
    works.append((t, i, dist.all_reduce(t, async_op=True)))
for t, i, work in works:
    assert work.wait() and work.is_completed()
    same(t, sum(mine(r).numpy() for r in everyone) * (i + 1))
    assert work.result() is t

t = mine(rank)
dist.reduce(t, dst=size - 1)
same(t, sum(mine(r).numpy() for r in everyone) if rank == size - 1 else mine(rank).numpy())
for dtype in (wf.float16, wf.bool, wf.int32):
    t = mine(rank, dtype=dtype)
    dist.broadcast(t, src=size - 1)
    same(t, mine(size - 1, dtype=dtype).numpy())
    rows = [wf.zeros(3, 2, dtype=dtype) for _ in everyone]
    dist.all_gather(rows, mine(rank, dtype=dtype))
    for r in everyone:
        same(rows[r], mine(r, dtype=dtype).numpy())
joined = wf.zeros(3 * size, 2)
dist.all_gather_into_tensor(joined, mine(rank))
same(joined, np.concatenate([mine(r).numpy() for r in everyone]))
out = wf.zeros(2)
dist.reduce_scatter(out, [mine(rank + 10 * r, (2,)) for r in everyone])
same(out, sum(mine(r + 10 * rank, (2,)).numpy() for r in everyone))
out = wf.zeros(2)
dist.reduce_scatter_tensor(out, mine(rank, (2 * size,)), dist.ReduceOp.MAX)
same(out, np.maximum.reduce([mine(r, (size, 2)).numpy()[rank] for r in everyone]))
outs = [wf.zeros(r + 1) for r in everyone]
dist.all_to_all(outs, [mine(rank, (rank + 1,)) * (r + 1) for r in everyone])
for r in everyone:
    same(outs[r], mine(r, (r + 1,)).numpy() * (rank + 1))
out = wf.zeros(sum(r + 1 for r in everyone))
dist.all_to_all_single(out, wf.full(((rank + 1) * size,), float(rank)), [r + 1 for r in everyone], [rank + 1] * size)
same(out, np.concatenate([np.full(r + 1, r) for r in everyone]))
rows = [wf.zeros(3, 2) for _ in everyone] if rank == 1 else None
dist.gather(mine(rank), rows, dst=1)
if rank == 1:
    for r in everyone:
        same(rows[r], mine(r).numpy())
t = wf.zeros(3, 2)
dist.scatter(t, [mine(r) for r in everyone] if rank == 1 else None, src=1)
same(t, mine(rank).numpy())
if rank == 0:
    dist.send(mine(7), 1, tag=3)
    dist.isend(mine(8), 1).wait()
elif rank == 1:
    first, second = wf.zeros(3, 2), wf.zeros(3, 2)
    later = dist.irecv(second, 0)
    assert dist.recv(first, 0, tag=3) == 0
    later.wait()
    same(first, mine(7).numpy())
    same(second, mine(8).numpy())
# Each to the next and from the one before, sends and receives in any order, several with one tag.
before, behind = (rank - 1) % size, (rank + 1) % size
rooms = [wf.zeros(3, 2) for _ in range(3)]
messages = [dist.P2POp(dist.isend, mine(rank) * i, behind, tag=i // 2) for i in range(3)]
messages += [dist.P2POp(dist.irecv, room, before, dist.group.WORLD, i // 2) for i, room in enumerate(rooms)]
for work in reversed(dist.batch_isend_irecv(messages if rank else messages[::-1][:3][::-1] + messages[:3])):
    work.wait()
for i, room in enumerate(rooms):
    same(room, mine(before).numpy() * i)
assert dist.group.WORLD is dist.GroupMember.WORLD and dist.get_world_size(dist.group.WORLD) == size
dist.barrier()
dist.monitored_barrier(timeout=30)

# Groups
last = dist.new_group([size - 1])
assert dist.get_rank(last) == (0 if rank == size - 1 else -1)
t = wf.ones(1)
dist.all_reduce(t, group=last)
assert t.item() == 1
pair = dist.new_group([1, 0])
if rank < 2:
    t = wf.ones(1)
    dist.all_reduce(t, group=pair)
    assert t.item() == 2 and dist.get_process_group_ranks(pair) == [0, 1]
    dist.broadcast(t, src=1, group=pair)

# Objects: what a file can hold, and nothing else.
value = {"rank": rank, "rows": [mine(rank), (1, None, 2.5)], 3: b"x"}
found = [None] * size
dist.all_gather_object(found, value)
for r in everyone:
    assert found[r]["rank"] == r and found[r]["rows"][1] == (1, None, 2.5) and found[r][3] == b"x"
    same(found[r]["rows"][0], mine(r).numpy())
objects = [rank, "text" * rank]
dist.broadcast_object_list(objects, src=1)
assert objects == [1, "text"]
taken = [None]
dist.scatter_object_list(taken, [f"for {r}" for r in everyone] if rank == 0 else None)
assert taken == [f"for {rank}"]
gathered = [None] * size if rank == 0 else None
dist.gather_object(rank, gathered)
assert rank or gathered == list(everyone)
if rank == 0:
    dist.send_object_list(["a", 1], 1)
elif rank == 1:
    got = [None, None]
    dist.recv_object_list(got, 0)
    assert got == ["a", 1]
try:
    dist.all_gather_object([None] * size, print)
except TypeError as error:
    assert "all_gather_object" in str(error) and "a file cannot hold" in str(error), error
else:
    raise AssertionError("code was sent")
try:
    dist.all_reduce([1.0])
except TypeError as error:
    assert "takes tensors" in str(error)
stats = dist.process_group.world().stats
assert stats.calls > 50 and stats.bytes > 500, stats
dist.destroy_process_group()
assert not dist.is_initialized() and dist.group.WORLD is None
print("all calls right")
