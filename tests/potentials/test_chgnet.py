"""A training step of CHGNet, captured as one graph that is right. Tried with chgnet 0.4.2. Its tensors are float32 by construction."""

import pytest

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.potentials.chgnet_training import energy_and_force_loss, make_batches, make_model
from tests.potentials.trainings import make_training, run

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture(autouse=True)
def _needs_chgnet():
    pytest.importorskip("chgnet")


@pytest.mark.parametrize("donate", [False, True])
def test_a_recorded_run_has_the_bits_of_the_eager_one(donate):
    training = make_training(make_model(), energy_and_force_loss)
    batches = make_batches(3)
    step = ps.compile(training.step, capture="trace", donate=donate, backend="eager", on_recompile="error")
    assert_trees_equal(run(step, training, batches), run(training.step, training, batches))


@pytest.mark.slow
def test_a_compiled_run_has_the_eager_numbers():
    training = make_training(make_model(), energy_and_force_loss)
    batches = make_batches(3)
    step = ps.compile(training.step, capture="trace", on_recompile="error")
    state, metrics = run(step, training, batches)
    expected_state, expected_metrics = run(training.step, training, batches)
    # float32, kernels round in another order: 6e-6 apart after three steps at most
    assert_trees_close(state.params, expected_state.params, rtol=1e-5, atol=1e-5)
    assert_trees_close(metrics, expected_metrics, rtol=1e-5, atol=1e-5)
