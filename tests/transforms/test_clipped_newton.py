"""Sophia and its estimate of the diagonal Hessian."""

import pytest
import torch

from purestep.core.transform import apply_updates
from purestep.optimizers import sophia
from purestep.transforms import hutchinson_estimator_diag_hessian, scale_by_sophia

CURVATURE = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
PARAMS = {"p": torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)}


def loss(params):
    return (CURVATURE * params["p"] ** 2).sum() / 2


def test_the_estimate_of_a_diagonal_hessian_is_exact():
    estimator = hutchinson_estimator_diag_hessian()
    found, state = estimator.update(PARAMS, estimator.init(PARAMS), PARAMS, obj_fn=loss)
    torch.testing.assert_close(found["p"], CURVATURE, rtol=1e-14, atol=0)
    assert int(state.count) == 1


def test_the_estimate_of_any_hessian_is_right_on_average():
    hessian = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    params, estimator = {"p": torch.zeros(2, dtype=torch.float64)}, hutchinson_estimator_diag_hessian()
    state, total = estimator.init(params), torch.zeros(2, dtype=torch.float64)
    for _ in range(400):
        found, state = estimator.update(params, state, params, obj_fn=lambda p: p["p"] @ hessian @ p["p"] / 2)
        total = total + found["p"]
    torch.testing.assert_close(total / 400, hessian.diagonal(), rtol=0, atol=0.2)  # standard error 0.05


def test_the_first_update_has_no_curvature_and_is_clipped():
    transform = scale_by_sophia()
    updates, state = transform.update(PARAMS, transform.init(PARAMS), PARAMS, obj_fn=loss)
    assert torch.equal(updates["p"], torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))
    assert float(state.win_rate) == 0.0
    torch.testing.assert_close(state.nu["p"], 0.01 * CURVATURE, rtol=1e-12, atol=0)


def test_the_second_update_divides_by_the_curvature_of_the_first():
    transform = scale_by_sophia(b1=0.0, b2=0.0, gamma=1.0, clip_threshold=None)
    state = transform.init(PARAMS)
    _, state = transform.update(PARAMS, state, PARAMS, obj_fn=loss)
    updates, _ = transform.update(torch.func.grad(loss)(PARAMS), state, PARAMS, obj_fn=loss)
    torch.testing.assert_close(updates["p"], PARAMS["p"], rtol=1e-12, atol=0)  # Newton's step


def test_the_curvature_is_renewed_at_intervals():
    transform = scale_by_sophia(update_interval=3)
    state, seen = transform.init(PARAMS), []
    for _ in range(4):
        _, state = transform.update(PARAMS, state, PARAMS, obj_fn=loss)
        seen.append(state.nu["p"])
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3])
    assert int(state.hessian.count) == 2


def test_sophia_descends_an_ill_conditioned_problem():
    optimizer, params = sophia(0.05, gamma=1.0, weight_decay=0.0), PARAMS
    state = optimizer.init(params)
    for _ in range(300):
        updates, state = optimizer.update(torch.func.grad(loss)(params), state, params, obj_fn=loss)
        params = apply_updates(params, updates)
    assert float(loss(params)) < 1e-2 * float(loss(PARAMS))


def test_the_loss_is_asked_for_by_name():
    assert scale_by_sophia().needs == {"obj_fn"}
    assert sophia(0.1).needs == {"obj_fn"}


@pytest.mark.parametrize("clip_threshold", [0.3, None])
def test_the_share_of_unclipped_elements_is_a_metric(clip_threshold):
    transform = scale_by_sophia(clip_threshold=clip_threshold)
    assert set(transform.init(PARAMS).metrics) == {"sophia/win_rate"}
