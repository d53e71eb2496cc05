"""Specs to begin with."""

import pytest

from purestep.spec.templates import template


@pytest.mark.parametrize("num_steps", [1, 60, 150, 1000, 100_000])
def test_the_average_forgets_the_initial_weights_and_the_checkpoints_fit_whatever_the_length(num_steps):
    spec = template(["a.zarr"], "run", num_steps=num_steps)
    (average,) = spec["strategy"]["hooks"]
    assert average["debias"] and 0.9 <= average["decay"] <= 0.999
    assert spec["output"]["checkpoints"]["every_n_steps"] <= max(1, num_steps // 2)


def test_a_run_of_epochs_has_a_checkpoint_of_each():
    assert template(["a.zarr"], "run", num_epochs=3)["output"]["checkpoints"] == {"every_n_epochs": 1, "keep_last": 3}
