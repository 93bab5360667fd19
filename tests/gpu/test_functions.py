"""Functions that are not one record: what they make along the way is on the device of their input."""

import io
import json

import numpy as np
import pytest

import wayfare as wf
from wayfare.distributed.calls import numbers
from wayfare.errors import AnomalyError, ExportError

F = wf.nn.functional
rnn = wf.nn.utils.rnn


FUNCTIONS = {
    "nonzero": lambda d: wf.nonzero(wf.tensor([0, 2, 1], device=d)),
    "argwhere": lambda d: wf.argwhere(wf.tensor([[0, 2]], device=d)),
    "unique": lambda d: wf.unique(wf.tensor([3, 1, 3], device=d), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda d: wf.unique_consecutive(wf.tensor([3, 3, 1], device=d)),
    "masked_select": lambda d: wf.masked_select(wf.arange(4.0, device=d), wf.arange(4, device=d) > 1),
    "masked_scatter": lambda d: (
        wf.zeros(3, device=d).masked_scatter(wf.tensor([True, False, True], device=d), wf.ones(2, device=d))
    ),
    "masked_fill": lambda d: wf.zeros(3, device=d).masked_fill(wf.tensor([True, False, True], device=d), 2.0),
    "histc": lambda d: wf.histc(wf.arange(4.0, device=d), 3),
    "bincount": lambda d: wf.bincount(wf.tensor([0, 2, 2], device=d)),
    "histogram": lambda d: wf.histogram(wf.arange(4.0, device=d), 2)[0],
    "quantile": lambda d: wf.quantile(wf.arange(5.0, device=d), 0.3),
    "median": lambda d: wf.median(wf.tensor([3.0, 1.0, 2.0], device=d)),
    "mode": lambda d: wf.mode(wf.tensor([1, 2, 2], device=d)),
    "topk": lambda d: wf.topk(wf.tensor([3.0, 1.0, 2.0], device=d), 2),
    "cov": lambda d: wf.cov(wf.arange(6.0, device=d).reshape(2, 3)),
    "pdist": lambda d: F.pdist(wf.arange(6.0, device=d).reshape(3, 2)),
    "cdist": lambda d: wf.cdist(wf.eye(2, device=d), wf.eye(2, device=d)),
    "combinations": lambda d: wf.combinations(wf.arange(3, device=d)),
    "meshgrid": lambda d: wf.meshgrid(wf.arange(2, device=d), wf.arange(3, device=d)),
    "repeat_interleave": lambda d: wf.repeat_interleave(wf.arange(3, device=d), wf.tensor([1, 0, 2], device=d)),
    "scatter": lambda d: wf.zeros(3, device=d).scatter(0, wf.tensor([1], device=d), 2.0),
    "scatter_reduce": lambda d: (
        wf.zeros(3, device=d).scatter_reduce(
            0, wf.tensor([1, 1], device=d), wf.ones(2, device=d), "mean", include_self=False)
    ),
    "index_fill": lambda d: wf.zeros(3, device=d).index_fill(0, wf.tensor([1], device=d), 2.0),
    "matrix_rank": lambda d: wf.linalg.matrix_rank(wf.eye(3, device=d)),
    "cond": lambda d: wf.linalg.cond(wf.eye(3, device=d), 1),
    "norm": lambda d: wf.linalg.norm(wf.eye(3, device=d)),
    "matrix_power": lambda d: wf.linalg.matrix_power(wf.eye(3, device=d) * 2, 3),
    "interpolate": lambda d: F.interpolate(wf.arange(6.0, device=d).reshape(1, 1, 2, 3), size=(3, 4), mode="bicubic"),
    "grid_sample": lambda d: (
        F.grid_sample(
            wf.ones(1, 1, 3, 3, device=d),
            F.affine_grid(wf.eye(2, 3, device=d)[None], (1, 1, 3, 3), align_corners=True), align_corners=True)
    ),
    "one_hot": lambda d: F.one_hot(wf.tensor([0, 2], device=d)),
    "avg_pool": lambda d: F.avg_pool2d(wf.ones(1, 1, 3, 3, device=d), 2, padding=1),
    "ctc_loss": lambda d: (
        F.ctc_loss(wf.zeros(5, 2, 4, device=d).log_softmax(2), wf.tensor([[1, 2], [3, 1]], device=d), (5, 5), (2, 2))
    ),
    "packed": lambda d: (
        rnn.pad_packed_sequence(rnn.pack_padded_sequence(wf.ones(4, 2, 2, device=d), [2, 4], enforce_sorted=False))[0]
    ),
    "jacobian": lambda d: wf.func.jacrev(lambda v: v * v)(wf.ones(2, device=d)),
    "jvp": lambda d: wf.func.jvp(wf.sin, (wf.ones(2, device=d),), (wf.ones(2, device=d),)),
    "hessian": lambda d: wf.func.hessian(lambda v: (v**3).sum())(wf.ones(2, device=d)),
    "clamp": lambda d: wf.arange(4.0, device=d).clamp(1, 2),
    "where": lambda d: wf.where(wf.arange(3, device=d) > 0, 1.0, wf.zeros(3, device=d)),
    "cumulative": lambda d: wf.cummax(wf.tensor([1.0, 3.0, 2.0], device=d), 0),
    "einsum": lambda d: wf.einsum("ij,kj->ik", wf.eye(2, device=d), wf.eye(2, device=d)),
    "half": lambda d: (wf.ones(3, device=d).half() * 2).softmax(-1),
    "resize_": lambda d: wf.arange(3.0, device=d).resize_(2),
    "cond_": lambda d: wf.cond(wf.ones((), device=d) > 0, lambda a: a + 1, lambda a: a, (wf.ones(2, device=d),)),
}  # fmt: skip


def tensors_of(value):
    return [value] if isinstance(value, wf.Tensor) else [t for part in value for t in tensors_of(part)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_stays_on_the_device(cuda, name):
    there, here = (tensors_of(FUNCTIONS[name](d)) for d in ("cuda", "cpu"))
    for got, want in zip(there, here, strict=True):
        assert got.is_cuda, got
        np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), rtol=1e-5)


def test_draws_in_place(cuda):
    x = wf.empty(3, 3, device="cuda")
    for draw in (x.normal_, x.uniform_, x.bernoulli_, x.exponential_):
        assert draw().is_cuda
    for fill in (wf.nn.init.kaiming_normal_, wf.nn.init.orthogonal_, wf.nn.init.trunc_normal_, wf.nn.init.eye_):
        assert fill(x) is x and x.is_cuda


def test_gradcheck_and_comparisons(cuda):
    x = wf.rand(3, dtype=wf.float64, device="cuda").requires_grad_()
    assert wf.testing.gradcheck(lambda v: (v * v).exp(), (x,))
    wf.testing.assert_close(x, x.clone())
    assert wf.allclose(x, x) and wf.equal(x, x)


def test_anomaly_mode_names_the_op(cuda):
    with pytest.raises(AnomalyError, match="log: made a NaN at index"), wf.autograd.detect_anomaly():
        wf.log(wf.tensor([-1.0], device="cuda", requires_grad=True)).sum().backward()


def test_a_profile_and_a_graph(cuda):
    layer = wf.nn.Linear(2, 2).cuda()
    with wf.profile() as profile:
        y = layer(wf.ones(1, 2, device="cuda")).sum()
        y.backward()
    assert "linear" in str(profile) and "linear" in str(wf.graph(y))


def test_what_is_refused_says_what_to_do(cuda, tmp_path):
    layer, x = wf.nn.Linear(2, 2).cuda(), wf.ones(1, 2, device="cuda")
    for export in (wf.onnx.export, wf.export):
        with pytest.raises(ExportError, match=r"is on cuda:0, and export runs on the CPU .*\.cpu\(\) first"):
            export(layer, (x,), tmp_path / "m.onnx")
    with pytest.raises(TypeError, match=r"all_reduce: the tensor is on cuda:0, .*Give a copy with \.cpu\(\)"):
        numbers(x, "all_reduce")


def trained(device="cuda"):
    layer = wf.nn.Sequential(wf.nn.Linear(8, 16), wf.nn.ReLU(), wf.nn.Linear(16, 2)).to(device)
    optimiser = wf.optim.SGD(layer.parameters(), 0.1)

    def step(x):
        optimiser.zero_grad()
        loss = (layer(x) ** 2).mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def test_a_profile_times_the_device(cuda, tmp_path):
    step, x = trained(), wf.ones(4, 8, device="cuda")
    step(x)
    with wf.profile() as profile:
        step(x)
        wf.ones(3) * 2
    rows = {row.name: row for row in profile.rows("op")}
    assert rows["linear"].device_seconds > 0 and rows["linear"].device_seconds <= profile.device_seconds
    assert profile.device_seconds == pytest.approx(sum(row.device_seconds for row in rows.values()), rel=0.05)
    assert profile.device_peak_bytes > profile.peak_bytes > 0
    assert {a.place.name for a in profile.device_alive_at_peak} >= {"linear", "relu"}
    said = str(profile)
    assert "The GPU worked" in said and "GPU memory: at most" in said and " GPU " in profile.table("op")
    assert "In use on the GPU" in profile.html()
    profile.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    (row,) = [e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "GPU"]
    names = {e["name"] for e in events if e["tid"] == row and e["ph"] == "X"}
    assert {"linear", "linear (gradient)", "relu"} <= names and "GPU memory" in {e["name"] for e in events}


def test_a_profile_times_compiled_functions(cuda):
    step, x = wf.compile(trained()), wf.ones(4, 8, device="cuda")
    for _ in range(4):
        step(x)
    with wf.profile() as profile:
        step(x)
    (row,) = [row for row in profile.rows("op") if row.kind == "compiled"]
    assert 0 < row.device_seconds <= profile.device_seconds


def test_a_profile_waits_for_nothing(cuda, counts):
    step, x = trained(), wf.ones(4, 8, device="cuda")
    step(x)
    counts.reset()
    with wf.profile():
        step(x)
        assert (counts.to_host, counts.synchronised) == (0, 0)


def test_a_profile_of_the_cpu_has_no_column_for_gpus(cuda):
    step = trained("cpu")
    with wf.profile() as profile:
        step(wf.ones(4, 8))
    assert profile.device_seconds == 0 and "GPU" not in str(profile)


def test_ways_of_running_a_step_are_compared(cuda):
    step, x = trained(), wf.ones(4, 8, device="cuda")
    before = [t.tolist() for t in step.__closure__[0].cell_contents.parameters()]
    found = wf.profile.compare(step, [(x,)], rounds=1)
    assert [t.tolist() for t in step.__closure__[0].cell_contents.parameters()] == before
    eager, compiled = found["eager"], found["compiled"]
    assert eager.device_seconds > 0 and eager.device_peak_bytes > 0 and eager.graphs == 0
    assert compiled.device_seconds > 0 and compiled.products == 5 and compiled.device_peak_bytes > 0
    assert "GPU memory" in str(found) and "on the GPU" in found.summary() and "the GPU works" in found.html()


def test_a_recorded_run_says_where_values_are(cuda, tmp_path):
    layer, x = wf.nn.Linear(4, 2).cuda(), wf.ones(3, 4, device="cuda")
    with wf.debug.record() as run:
        loss = (layer(x) ** 2).sum().cpu()
        loss.backward()
    data = run.document()
    words, ops = data["strings"], data["nodes"]["op"]
    on = {words[ops[at]]: words[name] for at, name in data["devices"]}
    assert on["linear"] == on["leaf"] == "cuda:0" and len(data["devices"]) == len(ops) - 1
    assert "linear" in str(run) and data["memory"][-1] > 0
    run.save(tmp_path / "run.html")
    assert "cuda:0" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_a_program_stops_where_a_value_is_bad(cuda, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("c\n"))
    with wf.debug.break_on(nan=True) as stop:
        wf.tensor([1.0, -1.0], device="cuda").log()
    assert stop.hits == 1 and "f32[2] in [-1, 1]" in capsys.readouterr().out
