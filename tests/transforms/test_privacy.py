"""Clipped, noisy means of per-example gradients."""

import pytest
import torch

from purestep.optimizers import dpsgd
from purestep.transforms import differentially_private_aggregate

GRADS = {"a": torch.tensor([[3.0], [0.3]], dtype=torch.float64), "b": torch.tensor([[4.0], [0.4]], dtype=torch.float64)}
PARAMS = {"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}


def test_without_noise_it_is_the_mean_of_clipped_gradients():
    transform = differentially_private_aggregate(1.0, 0.0)
    updates, _ = transform.update(GRADS, transform.init(PARAMS), PARAMS)
    # the first example has norm 5 and is shrunk to 1, the second has 0.5
    assert {key: float(value) for key, value in updates.items()} == pytest.approx({"a": 0.45, "b": 0.6}, rel=1e-12)


def test_the_noise_has_the_stated_size_and_changes_from_step_to_step():
    grads, params = {"a": torch.zeros(4, 10000, dtype=torch.float64)}, {"a": torch.zeros(10000, dtype=torch.float64)}
    transform = differentially_private_aggregate(2.0, 1.5, key=7)
    first, state = transform.update(grads, transform.init(params), params)
    second, _ = transform.update(grads, state, params)
    assert float(first["a"].std()) == pytest.approx(2.0 * 1.5 / 4, rel=0.03)  # standard error 0.7 %
    assert abs(float(torch.corrcoef(torch.stack([first["a"], second["a"]]))[0, 1])) < 0.05


def test_the_optimizer_steps_downhill():
    optimizer = dpsgd(0.1, 1.0, 0.0, momentum=0.9)
    updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
    assert float(updates["a"]) == pytest.approx(-0.045, rel=1e-12)


@pytest.mark.parametrize(("clip", "noise"), [(0.0, 1.0), (1.0, -1.0)])
def test_impossible_sizes_are_refused(clip, noise):
    with pytest.raises(ValueError, match=r"(l2_norm_clip|noise_multiplier) must lie in .0, inf\)"):
        differentially_private_aggregate(clip, noise)
