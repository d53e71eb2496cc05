"""The step on a CUDA device: the numbers of the CPU, no synchronisation, reused memory. Run with `pytest -m gpu -n 0 tests/gpu`."""

import pytest
import torch

import purestep as ps
from tests.examples_of_models import batches, mean_squared_error, molecules, poisoned, potential_training, run, training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_device(data):
    return [ps.tree.to_device(batch, "cuda") for batch in data]


def worst(one, other):
    pairs = zip(ps.tree.leaves(one), ps.tree.leaves(other), strict=True)
    return max(float((a.double().cpu() - b.double().cpu()).abs().max()) for a, b in pairs)


def guarded():
    return ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.clip_by_global_norm(1.0), ps.adamw(1e-2))


def test_the_state_lives_on_the_device_and_no_leaf_stays_behind():
    state = training(optimizer=guarded(), hooks=[ps.hooks.ema(0.9)]).init(device="cuda")
    assert {leaf.device.type for leaf in ps.tree.leaves(state)} == {"cuda"}


def test_dropout_draws_the_same_bits_as_on_the_cpu():
    key = torch.tensor(7)
    here, there = (ps.rng.uniform(key.to(device), 3, (1000,)) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())


def test_steps_give_the_numbers_of_the_cpu():
    tr = training(optimizer=guarded(), hooks=[ps.hooks.ema(0.9)])
    data = batches(6)
    here, _ = run(tr.step, tr.init(seed=3), data)
    there, _ = run(tr.step, tr.init(seed=3, device="cuda"), on_device(data))
    assert worst(here, there) < 1e-10  # float64; sums in another order


def test_energy_and_force_training_gives_the_numbers_of_the_cpu():
    tr = potential_training("painn")
    here, _ = tr.step(tr.init(), molecules())
    there, _ = tr.step(tr.init(device="cuda"), ps.tree.to_device(molecules(), "cuda"))
    assert worst(here.params, there.params) < 1e-10


def test_a_rejected_batch_changes_nothing_else():
    tr = training(optimizer=guarded(), hooks=[ps.hooks.ema(0.9)])
    good, bad = on_device(batches(2))
    state, _ = tr.step(tr.init(device="cuda"), good)
    after, _ = tr.step(state, poisoned(bad))
    assert worst((state.params, state.buffers, state.hook_state), (after.params, after.buffers, after.hook_state)) == 0.0


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_captured_step_never_waits_for_the_device(backend):
    tr = training(optimizer=guarded(), hooks=[ps.hooks.ema(0.9)])
    step = ps.compile(tr.step, donate=True, backend=backend)
    state, data = tr.init(device="cuda"), on_device(batches(4))
    state, _ = run(step, state, data[:2])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        state, _ = run(step, state, data[2:])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_donated_step_reuses_the_memory_of_the_state():
    tr = training()
    step = ps.compile(tr.step, donate=True)
    (batch,) = on_device(batches(1))
    state, _ = step(tr.init(device="cuda"), batch)
    before = [leaf.data_ptr() for leaf in ps.tree.leaves(state.params)]
    state, _ = step(state, batch)
    assert [leaf.data_ptr() for leaf in ps.tree.leaves(state.params)] == before


def test_a_checkpoint_written_on_the_device_loads_on_the_cpu(tmp_path):
    tr = training()
    state, _ = tr.step(tr.init(device="cuda"), on_device(batches(1))[0])
    loaded = ps.load(ps.save(tmp_path / "one", state), like=tr.init())
    assert worst(loaded, state) == 0.0


def test_half_precision_runs_under_autocast_with_parameters_in_float32():
    tr = training(precision="bf16", loss=mean_squared_error(dtype_policy="prediction_to_target"))
    state = ps.tree.map(lambda leaf: leaf.float() if leaf.is_floating_point() and leaf.ndim else leaf, tr.init(device="cuda"))
    batch = ps.tree.cast(on_device(batches(1))[0], torch.float32)
    after, metrics = tr.step(state, batch)
    assert {leaf.dtype for leaf in ps.tree.leaves(after.params)} == {torch.float32}
    assert bool(torch.isfinite(metrics["loss/total"]))
