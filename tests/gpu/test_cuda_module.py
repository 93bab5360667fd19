"""`wf.cuda` and `wf.accelerator`: devices, streams, events and memory under PyTorch's names."""

import pytest

import wayfare as wf
from wayfare.errors import ArgumentError, OperationError, OutOfMemoryError

two = pytest.mark.usefixtures("two_gpus")


def test_devices_and_what_they_are(cuda):
    assert wf.cuda.is_available() and wf.cuda.device_count() >= 1 and wf.cuda.current_device() == 0
    about = wf.cuda.get_device_properties("cuda:0")
    assert about.name == wf.cuda.get_device_name() and (about.major, about.minor) == wf.cuda.get_device_capability(0)
    assert about.total_memory > 0 and about.multi_processor_count > 0 and about.shared_memory_per_block >= 49152
    assert wf.cuda.get_arch_list()[0].startswith("sm_") and wf.cuda.is_bf16_supported()
    assert wf.cuda.can_device_access_peer(0, 0)
    with pytest.raises(OperationError, match="'cpu' is no GPU"):
        wf.cuda.get_device_name("cpu")


@two
def test_the_current_device(cuda):
    with wf.cuda.device(1) as inside:
        assert wf.cuda.current_device() == inside.idx == 1 and wf.ones(1, device="cuda").get_device() == 1
        with wf.cuda.device(None), wf.cuda.device_of(wf.ones(1)):
            assert wf.cuda.current_device() == 1
        with wf.cuda.device_of(wf.ones(1, device="cuda:0")):
            assert wf.cuda.current_device() == 0
    with wf.accelerator.device_index(1), wf.accelerator.device_index(None):
        assert wf.accelerator.current_device_index() == 1
    wf.cuda.set_device("cuda:1")
    assert wf.accelerator.current_device_idx() == 1
    wf.accelerator.set_device_idx(0)
    assert wf.cuda.current_device() == 0


@two
def test_memory_belongs_to_a_device(cuda):
    wf.cuda.reset_peak_memory_stats(1)
    before = [wf.cuda.memory_allocated(number) for number in (0, 1)]
    x = wf.zeros(1000, device="cuda:1")
    assert [wf.cuda.memory_allocated(number) - was for number, was in zip((0, 1), before, strict=True)] == [0, 4000]
    del x
    assert wf.cuda.max_memory_allocated(1) >= before[1] + 4000
    stats = wf.cuda.memory_stats(1)
    assert stats["allocated_bytes.all.peak"] >= 4000 and stats["allocated_bytes.all.current"] == before[1]
    assert wf.accelerator.memory_stats(1) == stats and "of the GPU" in wf.cuda.memory_summary(1)


def test_a_part_of_the_memory(cuda, counts):
    assert wf.cuda.get_per_process_memory_fraction() == 1.0
    wf.cuda.set_per_process_memory_fraction(1e-6)
    try:
        assert 0 < wf.cuda.get_per_process_memory_fraction() <= 1e-6
        with pytest.raises(OutOfMemoryError):
            wf.zeros(1000, device="cuda")
    finally:
        cuda.xp.get_default_memory_pool().set_limit(size=None)
    with pytest.raises(ArgumentError, match="fraction must be from 0 to 1, not 2"):
        wf.cuda.set_per_process_memory_fraction(2)


def test_streams_and_events(cuda):
    assert wf.cuda.current_stream() == wf.cuda.default_stream() and not wf.cuda.is_current_stream_capturing()
    side, start, end = wf.cuda.Stream(priority=-1), wf.cuda.Event(enable_timing=True), wf.cuda.Event(enable_timing=True)
    assert side.device == wf.device("cuda:0") and side.priority == -1 and "cuda:0" in repr(side)
    x = wf.ones(100, device="cuda")
    side.wait_stream(wf.cuda.current_stream())
    with wf.cuda.stream(side), wf.cuda.stream(None):
        assert wf.cuda.current_stream() == side
        start.record()
        y = x * 2
        end.record()
    assert wf.cuda.current_stream() != side
    with side:
        assert wf.cuda.current_stream() == side
    wf.cuda.current_stream().wait_event(end)
    end.synchronize()
    assert end.query() and side.query() and start.elapsed_time(end) >= 0 and y.sum().item() == 200.0
    with pytest.raises(OperationError, match="enable_timing=True"):
        start.elapsed_time(wf.cuda.Event())
    wf.cuda.set_stream(side)
    assert wf.accelerator.current_stream() == side
    wf.accelerator.set_stream(wf.cuda.default_stream())
    assert wf.cuda.ExternalStream(side.cuda_stream) == wf.cuda.get_stream_from_external(side.cuda_stream) == side


def test_the_generator_under_names_for_all_devices(cuda):
    states = wf.cuda.get_rng_state_all()
    a = wf.rand(3, device="cuda")
    wf.cuda.set_rng_state_all(states)
    assert wf.equal(a, wf.rand(3, device="cuda"))


def test_the_accelerator(cuda):
    assert wf.accelerator.current_accelerator() == wf.device("cuda") and wf.accelerator.is_available()
    assert wf.bfloat16 in wf.accelerator.get_device_capability()["supported_dtypes"]
    assert wf.accelerator.get_memory_info() == wf.cuda.mem_get_info() and wf.accelerator.empty_host_cache() is None
    assert wf.accelerator.max_memory_reserved() >= wf.accelerator.memory_allocated()


def test_names_that_are_left_out_say_what_to_use():
    for name, advice in (("CUDAGraph", "wf.compile"), ("memory_snapshot", "wf.debug.leaks"), ("nvtx", "wf.profile")):
        with pytest.raises(AttributeError, match=advice):
            getattr(wf.cuda, name)


def test_without_cuda_nothing_is_started():
    if wf.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    assert wf.cuda.memory_allocated() == 0 and wf.cuda.memory_stats() == {} and wf.cuda.empty_cache() is None
    assert wf.cuda.memory_summary() == "CUDA was not used so far." and not wf.cuda.is_initialized()


def test_streams_are_nested_in_any_order(cuda):
    side, other = wf.cuda.Stream(), wf.cuda.Stream()
    with side:
        with side, wf.cuda.stream(other), side:
            assert wf.cuda.current_stream() == side
        assert wf.cuda.current_stream() == side
        again = wf.cuda.stream(other)
        with again, again, pytest.raises(KeyError), wf.cuda.stream(wf.cuda.default_stream()):
            raise KeyError
        assert wf.cuda.current_stream() == side
    assert wf.cuda.current_stream() == wf.cuda.default_stream()


def test_an_event_that_was_never_recorded(cuda):
    event, recorded = wf.cuda.Event(enable_timing=True), wf.cuda.Event(enable_timing=True)
    recorded.record()
    assert event.query() and event.synchronize() is None and event.wait() is None
    with pytest.raises(OperationError, match="both events must be recorded first"):
        recorded.elapsed_time(event)


@two
def test_an_event_belongs_to_the_gpu_of_its_stream(cuda):
    there = wf.cuda.Stream("cuda:1")
    event, here = wf.cuda.Event(enable_timing=True), wf.cuda.Event(enable_timing=True)
    event.record(there)
    with wf.cuda.stream(there):
        assert wf.cuda.current_device() == 1
        event.record()
    here.record()
    wf.cuda.current_stream().wait_event(event)
    there.wait_stream(wf.cuda.current_stream())
    with pytest.raises(OperationError, match="was recorded on cuda:1, and the stream is on cuda:0"):
        event.record()
    event.synchronize()
    here.synchronize()
    with pytest.raises(OperationError, match="the events are of different GPUs"):
        here.elapsed_time(event)
    wf.cuda.set_stream(there)
    assert wf.cuda.current_device() == 1 and wf.cuda.current_stream() == there
    wf.cuda.set_stream(wf.cuda.default_stream(1))
    wf.cuda.set_device(0)


def test_memory_that_another_stream_reads_is_not_used_again(cuda, counts, monkeypatch):
    side = wf.cuda.Stream()
    passed = []
    monkeypatch.setattr(cuda.xp.cuda.Event, "done", property(lambda event: bool(passed)))
    before = wf.cuda.memory_allocated()
    batch = wf.zeros(1000, device="cuda")
    row = batch[1:3]
    row.record_stream(side)  # its memory is that of the batch
    batch.record_stream(side)
    del batch
    assert row.tolist() == [0.0, 0.0]
    del row
    assert wf.cuda.memory_allocated() == before + 4000, "the stream has not passed the end of the batch yet"
    wf.cuda.empty_cache()
    assert wf.cuda.memory_allocated() == before + 4000
    passed.append(True)
    wf.cuda.synchronize()
    assert wf.cuda.memory_allocated() == before
    assert wf.ones(2).record_stream(side) is None, "on the CPU nothing is asked for"
    with pytest.raises(TypeError, match="record_stream: expected a stream, not str"):
        wf.ones(2).record_stream("side")


def test_batches_are_copied_ahead_in_a_stream_of_their_own(cuda):
    """The prefetcher of many PyTorch scripts."""
    side, batches, sums = wf.cuda.Stream(), iter([wf.full((3,), float(i)) for i in range(4)]), []

    def ahead():
        with wf.cuda.stream(side):
            batch = next(batches, None)
            return None if batch is None else batch.pin_memory().cuda(non_blocking=True)

    coming = ahead()
    while coming is not None:
        wf.cuda.current_stream().wait_stream(side)
        batch = coming
        batch.record_stream(wf.cuda.current_stream())
        coming = ahead()
        sums.append(batch.sum().item())
    assert sums == [0.0, 3.0, 6.0, 9.0]


@two
def test_a_profile_of_work_on_both(cuda):
    x, y = wf.ones(100, device="cuda:0"), wf.ones(100, device="cuda:1")
    with wf.profile() as profile:
        (x * 2).exp()
        with wf.cuda.device(1):
            (y * 2).exp()
    assert "GPU" in str(profile)
