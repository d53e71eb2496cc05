"""Hooks that change the input: noise and rotations, drawn from keys."""

import dataclasses

import pytest
import torch

import purestep as ps
from purestep.errors import HookError
from tests.examples_of_models import batches, molecules


def seen_by(hook, batch, num_batches=1, seed=0, **options):
    """The batches that the loss function is given."""
    seen = []

    def loss(params, batch):
        seen.append(batch)
        return params.sum()

    step = ps.make_step(loss, ps.sgd(0.1), (hook,), **options)
    state = ps.init_state(torch.ones(1), ps.sgd(0.1), (hook,), seed=seed)
    for _ in range(num_batches):
        state, _ = step(state, batch)
    return seen


def test_noise_has_the_standard_deviation_asked_for_and_leaves_other_fields_alone():
    batch = {"x": torch.zeros(200, 50, dtype=torch.float64), "y": torch.ones(3)}
    (seen,) = seen_by(ps.hooks.input_noise(0.5, "x"), batch)
    # 10,000 numbers: the estimate of the deviation is good to 0.5 / sqrt(20,000)
    assert seen["x"].std().item() == pytest.approx(0.5, abs=0.02)
    assert seen["x"].mean().item() == pytest.approx(0.0, abs=0.02)
    assert torch.equal(seen["y"], batch["y"])


def test_noise_is_new_in_every_batch_and_the_same_in_a_repetition():
    batch = batches(1)[0]
    first, second = seen_by(ps.hooks.input_noise(0.1, "x"), batch, 2)
    again, _ = seen_by(ps.hooks.input_noise(0.1, "x"), batch, 2)
    assert torch.equal(first["x"], again["x"])
    assert torch.all(first["x"] != second["x"])


def test_noise_differs_by_seed_by_name_by_field_and_by_part_of_a_cut_batch():
    batch = {"x": torch.zeros(4, 3), "z": torch.zeros(4, 3)}
    (one,) = seen_by(ps.hooks.input_noise(1.0, ("x", "z")), batch)
    (other_seed,) = seen_by(ps.hooks.input_noise(1.0, ("x", "z")), batch, seed=1)
    (other_name,) = seen_by(ps.hooks.input_noise(1.0, ("x", "z"), name="other"), batch)
    for different in (one["z"], other_seed["x"], other_name["x"]):
        assert torch.all(one["x"] != different)
    *_, left, right = seen_by(ps.hooks.input_noise(1.0, "x"), batch, microbatches=2)
    assert torch.all(left["x"] != right["x"])


def test_noise_on_a_batch_of_atoms_moves_positions():
    batch = molecules()
    (seen,) = seen_by(ps.hooks.input_noise(0.05), batch)
    assert type(seen) is type(batch)
    assert torch.all(seen.positions != batch.positions)
    assert torch.equal(seen.forces, batch.forces)


@pytest.mark.parametrize(("fields", "message"), [("z", "no leaf 'z'; there are 'n', 'x'"), ("n", "'n' is torch.int64")])
def test_noise_says_what_it_cannot_do(fields, message):
    with pytest.raises(HookError, match=message):
        seen_by(ps.hooks.input_noise(0.1, fields), {"x": torch.zeros(2), "n": torch.zeros(2, dtype=torch.int64)})


def distances(batch):
    return torch.cdist(batch.positions, batch.positions)


def test_a_rotation_keeps_distances_within_each_structure_and_turns_forces_along():
    batch = molecules((3, 3))
    (seen,) = seen_by(ps.hooks.random_rotation(), batch)
    for part in (slice(0, 3), slice(3, 6)):
        # rounding of three products
        assert torch.allclose(distances(seen)[part, part], distances(batch)[part, part], rtol=0, atol=1e-12)
        turn = torch.linalg.solve(batch.positions[part], seen.positions[part]).mT
        assert torch.linalg.det(turn).item() == pytest.approx(1.0, abs=1e-10)
        # the matrix found by solving is as good as the positions are conditioned
        assert torch.allclose(batch.forces[part] @ turn.mT, seen.forces[part], rtol=0, atol=1e-10)
    assert not torch.allclose(distances(seen), distances(batch))
    assert torch.equal(seen.energy, batch.energy)


def test_a_rotation_turns_the_cell_so_that_fractional_coordinates_stay_and_the_stress_from_both_sides():
    cell = torch.tensor([[[3.0, 0.1, 0.0], [0.2, 4.0, 0.3], [0.0, 0.5, 5.0]]], dtype=torch.float64)
    stress = torch.tensor([[[1.0, 0.2, 0.3], [0.2, 2.0, 0.4], [0.3, 0.4, 3.0]]], dtype=torch.float64)
    batch = dataclasses.replace(molecules((4,)), cell=cell, stress=stress)
    (seen,) = seen_by(ps.hooks.random_rotation(), batch)
    fractional = lambda batch: torch.linalg.solve(batch.cell[0].mT, batch.positions.mT).mT  # noqa: E731
    assert torch.allclose(fractional(seen), fractional(batch), rtol=0, atol=1e-12)
    turn = torch.linalg.solve(cell[0], seen.cell[0]).mT
    assert torch.allclose(seen.stress[0], turn @ stress[0] @ turn.mT, rtol=0, atol=1e-12)


def test_rotations_are_uniform():
    batch = {"positions": torch.eye(3).repeat(2000, 1), "batch": torch.arange(2000).repeat_interleave(3), "ptr": torch.arange(2001) * 3}
    (seen,) = seen_by(ps.hooks.random_rotation(), batch)
    turned = seen["positions"].view(2000, 3, 3)
    # each element has mean 0 and mean square 1/3, known here to 0.58 / sqrt(2000) and 0.3 / sqrt(2000)
    assert turned.mean(0).abs().max() < 0.06
    assert (turned.square().mean(0) - 1 / 3).abs().max() < 0.04
    assert torch.equal(seen["batch"], batch["batch"])


def test_a_rotation_refuses_a_batch_that_holds_no_atoms():
    with pytest.raises(HookError, match="has no positions, batch, ptr"):
        seen_by(ps.hooks.random_rotation(), {"x": torch.zeros(3)})
