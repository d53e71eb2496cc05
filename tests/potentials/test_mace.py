"""A training step of MACE as it comes, TorchScript parts included, captured as one graph. Tried with mace-torch 0.3.16 and e3nn 0.4.4."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_close
from tests.potentials.mace_training import energy_and_force_loss, make_batches, make_model
from tests.potentials.trainings import make_training, run

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture(autouse=True)
def _needs_mace():
    pytest.importorskip("mace")


def test_the_model_holds_torchscript():
    assert any(isinstance(part, torch.jit.ScriptModule) for part in make_model().modules())


@pytest.mark.parametrize("donate", [False, True])
def test_a_recorded_run_has_the_eager_numbers(donate):
    training = make_training(make_model(torch.float64), energy_and_force_loss)
    batches = make_batches(3, torch.float64)
    step = ps.compile(training.step, capture="trace", donate=donate, backend="eager", on_recompile="error")
    # TorchScript, run eagerly, fuses after its first calls, and then rounds otherwise
    assert_trees_close(run(step, training, batches), run(training.step, training, batches), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_a_compiled_run_has_the_eager_numbers(dtype, tolerance):
    training = make_training(make_model(dtype), energy_and_force_loss)
    batches = make_batches(3, dtype)
    step = ps.compile(training.step, capture="trace", on_recompile="error")
    state, metrics = run(step, training, batches)
    expected_state, expected_metrics = run(training.step, training, batches)
    # kernels round in another order
    assert_trees_close(state.params, expected_state.params, rtol=tolerance, atol=tolerance)
    assert_trees_close(metrics, expected_metrics, rtol=tolerance, atol=tolerance)
