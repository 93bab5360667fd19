"""Several ranks, as real processes under mpirun: every call, data-parallel steps, equality with one process, fit."""

import numpy as np
import pytest

import wayfare as wf
from tests.distributed.ranks import needs_mpi, passes, run

pytestmark = needs_mpi


def test_every_call_on_two_ranks():
    assert passes(2, "calls.py").out.count("all calls right") == 2


@pytest.mark.long
def test_every_call_on_three_ranks_in_debug_mode():
    assert passes(3, "calls.py", WAYFARE_DISTRIBUTED_DEBUG="1").out.count("all calls right") == 3


def test_a_step_knows_no_sync_unused_parameters_rows_uneven_data_and_zero():
    assert passes(2, "steps.py").out.count("all steps right") == 2


@pytest.mark.long
def test_the_same_on_four_ranks():
    assert passes(4, "steps.py", WAYFARE_DISTRIBUTED_DEBUG="1").out.count("all steps right") == 4


def test_two_ranks_equal_one_process_in_float64():
    done = passes(2, "equal.py", "mlp,cnn,sync,words,transformer,tree", "float64")
    assert done.out.count("equal") == 6


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_equal_one_process(ranks):
    assert passes(ranks, "equal.py", "mlp,cnn,sync,words,transformer,tree", "float32").out.count("equal") == 6
    assert passes(ranks, "equal.py", "mlp,cnn,sync,words,transformer,tree", "float64").out.count("equal") == 6
    assert passes(ranks, "equal.py", "mlp", "float64", "zero").out.count("equal") == 1


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero", marks=pytest.mark.long)])
def test_fit_trains_one_model_and_resumes_on_another_number_of_ranks(strategy, tmp_path):
    done = passes(2, "fits.py", strategy, tmp_path, "first")
    assert done.out.count("val. accuracy") == 1, "rank 0 alone prints"
    assert len(list((tmp_path / "run").iterdir())) == 2
    assert "Resumed after epoch 2." in passes(3, "fits.py", strategy, tmp_path, "resume").out
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    if strategy == "zero":
        assert "Resumed after epoch 3." in passes(1, "fits.py", strategy, tmp_path, "again").out


@pytest.mark.long
def test_ddp_and_zero_are_the_same_training(tmp_path):
    found = []
    for strategy in ("ddp", "zero"):
        (tmp_path / strategy).mkdir()
        passes(2, "fits.py", strategy, tmp_path / strategy, "first")
        found.append(wf.load(tmp_path / strategy / "weights-first.safetensors"))
    for name, value in found[0].items():
        assert np.array_equal(value.numpy(), found[1][name].numpy())


@pytest.mark.parametrize("kind", ["folder", pytest.param("own", marks=pytest.mark.long)])
def test_a_run_goes_on_with_another_strategy(kind, tmp_path):
    chain = [(1, "none", 1), (2, "ddp", 2), (2, "zero", 3), (1, "none", 4)]
    for number, (ranks, strategy, epochs) in enumerate(chain):
        done = passes(ranks, "crosses.py", strategy, tmp_path, epochs, kind)
        assert not number or f"Resumed after epoch {chain[number - 1][2]}." in done.out
    (tmp_path / "alone").mkdir()
    passes(1, "crosses.py", "none", tmp_path / "alone", 4, kind)
    expected = wf.load(tmp_path / "alone" / "weights-4.safetensors")
    for name, value in wf.load(tmp_path / "weights-4.safetensors").items():
        assert np.abs(value.numpy() - expected[name].numpy()).max() < 1e-12


def test_scripts_of_pytorch_run_with_other_imports(tmp_path):
    done = passes(2, "script_mnist_style.py", "--epochs", 2, "--save", tmp_path / "net.safetensors")
    assert done.out.count("Train Epoch") == 2 and (tmp_path / "net.safetensors").exists()


@pytest.mark.long
def test_a_script_with_snapshots_runs_with_other_imports(tmp_path):
    passes(2, "script_trainer_style.py", tmp_path / "snapshot.safetensors")
    assert (tmp_path / "snapshot.safetensors").exists()


def test_a_checkpoint_in_parts_is_read_by_another_number_of_ranks(tmp_path):
    done = run(2, "parts.py", tmp_path / "run", "write")
    assert done.status != 0 and "rank 1" in done.err and "signal 9" in done.err, done.err
    assert passes(1, "parts.py", tmp_path / "run", "read").out.count("read") == 1
    index = (tmp_path / "run" / "index.json").read_text()
    (tmp_path / "run" / "index.json").write_text(index.replace("part-", "../part-"))
    with pytest.raises(ValueError, match="names files that are not its parts"):
        wf.distributed.checkpoint.load(checkpoint_id=tmp_path / "run")


@pytest.mark.long
def test_a_checkpoint_in_parts_is_read_by_more_ranks(tmp_path):
    run(2, "parts.py", tmp_path / "run", "write")
    assert passes(3, "parts.py", tmp_path / "run", "read").out.count("read") == 3
