"""A training step of SevenNet, captured as one graph that is right. Tried with sevenn 0.13.0 and e3nn 0.6.0."""

import pytest

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.potentials.sevennet_training import energy_and_force_loss, make_batches, make_model
from tests.potentials.trainings import make_training, run

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture(autouse=True)
def _needs_sevennet():
    pytest.importorskip("sevenn")


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
    # float32, kernels round in another order: 3e-7 apart after three steps at most
    assert_trees_close(state.params, expected_state.params, rtol=1e-6, atol=1e-6)
    assert_trees_close(metrics, expected_metrics, rtol=1e-6, atol=1e-6)
