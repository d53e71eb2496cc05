"""GaLore: what is projected, and when the projection changes."""

import pytest
import torch

from purestep.transforms import identity, scale_by_adam, scale_by_galore


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_the_update_is_projected_to_its_first_singular_vectors(shape):
    grad = matrix(*shape)
    u, s, vh = torch.linalg.svd(grad, full_matrices=False)
    transform = scale_by_galore(rank=2, base_optimizer=identity(), scale=0.5)
    found, _ = transform.update({"w": grad}, transform.init({"w": grad}))
    torch.testing.assert_close(found["w"], 0.5 * u[:, :2] @ torch.diag(s[:2]) @ vh[:2], rtol=0, atol=1e-13)


def test_moments_are_as_small_as_the_rank():
    params = {"w": matrix(8, 6), "bias": matrix(6)}
    state = scale_by_galore(rank=2).init(params)
    assert state.base.mu["w"].shape == (2, 6)
    assert state.base.mu["bias"].shape == (6,)


def test_the_directions_stay_for_a_gap_and_then_follow_the_gradient():
    transform = scale_by_galore(rank=1, update_proj_gap=2, base_optimizer=identity())
    state, seen = transform.init({"w": matrix(4, 3)}), []
    for step in range(3):
        _, state = transform.update({"w": matrix(4, 3, seed=step)}, state)
        seen.append(state.projectors[0])
    assert torch.equal(seen[0], seen[1])
    assert not torch.allclose(seen[1], seen[2])


def test_a_full_rank_leaves_linear_transforms_as_they_are():
    grad = matrix(5, 3)
    transform = scale_by_galore(rank=10, base_optimizer=identity())
    found, _ = transform.update({"w": grad}, transform.init({"w": grad}))
    torch.testing.assert_close(found["w"], grad, rtol=0, atol=1e-13)


def test_leaves_of_one_dimension_go_to_the_base_optimizer_unchanged():
    params = {"bias": matrix(5)}
    found, _ = scale_by_galore().update(params, scale_by_galore().init(params))
    expected, _ = scale_by_adam().update(params, scale_by_adam().init(params))
    assert torch.equal(found["bias"], expected["bias"])


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        scale_by_galore(rank=0)
