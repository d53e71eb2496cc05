"""What every shipped potential must be: conservative, symmetric, smooth, and blind to padding."""

import math

import numpy as np
import pytest
import torch

from purestep.data import Padding, collate, neighbour_list
from purestep.models import PaiNN, SchNet

ROTATION, _ = torch.linalg.qr(torch.tensor([[0.3, 1.0, -0.4], [0.8, -0.2, 0.5], [0.1, 0.7, 0.9]], dtype=torch.float64))
TRICLINIC = [[2.9, 0.1, 0.0], [0.7, 3.1, -0.2], [-0.3, 0.4, 2.6]]
BASIS = [[0.0, 0.0, 0.0], [1.3, 1.6, 0.4], [5.0, -2.0, 1.9]]  # the last atom lies outside its cell


def squared_error(prediction, batch):
    return (prediction["energy"] - batch.energy).square().mean() + (prediction["forces"] - batch.forces).square().mean()


def central_differences(function, x, step):
    """Derivative of a scalar function with respect to every number in `x`."""
    slopes = []
    for number in range(x.numel()):
        move = torch.zeros_like(x).view(-1)
        move[number] = step
        move = move.view_as(x)
        slopes.append((function(x + move) - function(x - move)) / (2 * step))
    return torch.stack(slopes).view_as(x)


def test_forces_are_minus_the_slope_of_the_energy(potential, batch):
    forces = potential(batch)["forces"].detach()
    with torch.no_grad():
        slope = central_differences(lambda x: potential(batch.replace(positions=x))["energy"].sum(), batch.positions, step=1e-4)
    # the error of central differences is step^2 = 1e-8 of the third derivative
    assert torch.allclose(forces, -slope, rtol=0, atol=1e-6 * float(forces.abs().max()))


def test_stress_is_the_slope_of_the_energy_under_strain_per_volume(potential, make_batch):
    potential.stress = True
    batch = make_batch([6, 8, 1], BASIS, TRICLINIC)
    stress = potential(batch)["stress"].detach()
    eye = torch.eye(3, dtype=torch.float64)

    def energy(strain):
        symmetric = eye + 0.5 * (strain + strain.T)
        return potential(batch.replace(positions=batch.positions @ symmetric, cell=batch.cell @ symmetric))["energy"].sum()

    with torch.no_grad():
        slope = central_differences(energy, torch.zeros(3, 3, dtype=torch.float64), step=1e-5) / torch.linalg.det(batch.cell[0]).abs()
    assert torch.allclose(stress[0], slope, rtol=0, atol=1e-6 * float(stress.abs().max()))
    assert torch.equal(stress, stress.transpose(1, 2))


@pytest.mark.parametrize("flip", [1.0, -1.0], ids=["rotation", "reflection"])
def test_rotating_a_molecule_rotates_its_forces(potential, batch, flip):
    rotation = ROTATION * torch.linalg.det(ROTATION) * flip
    here, there = potential(batch), potential(batch.replace(positions=batch.positions @ rotation.T))
    # rounding: 1e-16 times some thousand operations
    assert torch.allclose(here["energy"], there["energy"], rtol=0, atol=1e-10)
    assert torch.allclose(here["forces"] @ rotation.T, there["forces"], rtol=0, atol=1e-10)


def test_moving_a_molecule_changes_nothing(potential, batch):
    here, there = potential(batch), potential(batch.replace(positions=batch.positions + torch.tensor([5.0, -3.0, 2.0])))
    assert torch.allclose(here["energy"], there["energy"], rtol=0, atol=1e-10)
    assert torch.allclose(here["forces"], there["forces"], rtol=0, atol=1e-10)


def test_the_order_of_atoms_does_not_matter(potential, make_batch, frames):
    frame, order = frames[0], np.array([3, 0, 4, 1, 2])
    here = potential(make_batch(frame["numbers"], frame["positions"]))
    there = potential(make_batch(frame["numbers"][order], frame["positions"][order]))
    assert torch.allclose(here["energy"], there["energy"], rtol=0, atol=1e-10)
    assert torch.allclose(here["forces"][order], there["forces"], rtol=0, atol=1e-10)


def test_molecules_of_a_batch_do_not_see_each_other(potential, frames):
    together, alone = potential(collate(frames)), potential(collate(frames[1:]))
    assert torch.allclose(together["energy"][1:], alone["energy"], rtol=0, atol=1e-12)
    assert torch.allclose(together["forces"][5:], alone["forces"], rtol=0, atol=1e-12)


def test_padding_changes_neither_predictions_nor_gradients(potential, frames):
    parameters = list(potential.parameters())
    plain, padded = collate(frames), collate(frames, pad_to=Padding(graphs=4, atoms=13, edges=40))
    here, there = potential(plain), potential(padded)
    # matrix products of other sizes may round differently
    assert torch.allclose(here["energy"], there["energy"][:2], rtol=0, atol=1e-14)
    assert torch.allclose(here["forces"], there["forces"][:8], rtol=0, atol=1e-14)
    assert (there["energy"][2:] == 0).all() and (there["forces"][8:] == 0).all()
    grads = [torch.autograd.grad(out["energy"].sum() + out["forces"].square().sum(), parameters) for out in (here, there)]
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("model", [PaiNN, SchNet])
def test_a_lone_atom_has_its_reference_energy_and_no_force(model, make_batch):
    potential = model(8, 2, 6, 3.0, reference_energies={8: -75.5}).double()
    prediction = potential(make_batch([8], [[1.0, 2.0, 3.0]]))
    assert prediction["energy"].tolist() == [[-75.5]]
    assert prediction["forces"].tolist() == [[0.0, 0.0, 0.0]]


def test_reference_energies_keep_their_digits_in_float32(make_batch):
    potential = SchNet(8, 1, 6, 3.0, reference_energies={8: -2041.8396277138})
    batch = make_batch([8] * 100, np.arange(300.0).reshape(100, 3) * 10)
    energy = potential(batch.replace(positions=batch.positions.float()))["energy"]
    assert energy.item() == pytest.approx(-204183.96277138, abs=1e-8)  # float32 would be off by 1e-2


@pytest.mark.parametrize(
    "positions",
    [
        [[0.0, 0.0, 0.0], [0.0, 0.0, 1.1]],
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]],
        [[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]],
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[0.0, 0.0, 0.0]],
    ],
    ids=["on an axis", "symmetric site", "beyond the cutoff", "on top of each other", "alone"],
)
def test_gradients_of_forces_are_finite(potential, make_batch, positions):
    prediction = potential(make_batch([6, 8, 1][: len(positions)], positions))
    loss = prediction["energy"].sum() + prediction["forces"].square().sum()
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(loss, list(potential.parameters())))
    assert torch.isfinite(prediction["forces"]).all()


def test_energy_and_forces_fade_out_smoothly_at_the_cutoff(potential, make_batch):
    distances = torch.linspace(2.99, 3.01, 201, dtype=torch.float64)
    scan = [potential(make_batch([6, 8], [[0.0, 0.0, 0.0], [0.0, 0.0, distance]])) for distance in distances.tolist()]
    energies = torch.stack([prediction["energy"].detach()[0, 0] for prediction in scan])
    forces = torch.stack([prediction["forces"].detach()[1, 2] for prediction in scan])
    # within 0.01 Angstrom of the cutoff the weight of the edge is below (pi 0.01 / 6)^2 = 3e-5, its slope below 6e-3 per Angstrom
    assert energies.abs().max() < 1e-4 and forces.abs().max() < 1e-2
    assert energies.diff().abs().max() < 2e-6 and forces.diff().abs().max() < 2e-4
    assert (energies[distances >= 3.0] == 0).all() and (forces[distances >= 3.0] == 0).all()


def test_energy_per_atom_does_not_depend_on_how_many_cells_are_written_down(potential, make_batch):
    cell, basis = np.array(TRICLINIC), np.array(BASIS)
    shifts = np.stack(np.meshgrid(*[range(2)] * 3, indexing="ij"), axis=-1).reshape(-1, 1, 3) @ cell
    small, large = make_batch([6, 8, 1], basis, cell), make_batch([6, 8, 1] * 8, (shifts + basis).reshape(-1, 3), 2 * cell)
    here, there = potential(small), potential(large)
    assert torch.allclose(here["energy"] / 3, there["energy"] / 24, rtol=0, atol=1e-10)
    assert torch.allclose(here["forces"].repeat(8, 1), there["forces"], rtol=0, atol=1e-10)


def test_moving_an_atom_by_a_cell_vector_changes_nothing(potential, make_batch):
    moved = np.array(BASIS)
    moved[1] += 3 * np.array(TRICLINIC)[0] - np.array(TRICLINIC)[2]
    here, there = potential(make_batch([6, 8, 1], BASIS, TRICLINIC)), potential(make_batch([6, 8, 1], moved, TRICLINIC))
    assert torch.allclose(here["energy"], there["energy"], rtol=0, atol=1e-10)
    assert torch.allclose(here["forces"], there["forces"], rtol=0, atol=1e-10)


def test_a_batch_without_a_neighbour_list_is_refused(potential, batch):
    with pytest.raises(ValueError, match="needs a neighbour list"):
        potential(batch.replace(edge_index=None))


def test_edges_beyond_the_cutoff_of_the_model_do_not_count(potential, make_batch, frames):
    frame = frames[0]
    near = make_batch(frame["numbers"], frame["positions"])
    edge_index, _ = neighbour_list(frame["positions"], 10.0)
    far = near.replace(edge_index=torch.from_numpy(edge_index), edge_mask=None, edge_shift=None)
    assert far.edge_index.shape[1] > near.edge_index.shape[1]
    assert torch.allclose(potential(near)["energy"], potential(far)["energy"], rtol=0, atol=1e-12)


def test_constructor_arguments_are_attributes_of_the_same_names():
    potential = PaiNN(16, 2, 8, 4.5, max_number=20, reference_energies={1: -13.6}, energy_scale=2.0, stress=True)
    names = ("hidden_size", "num_layers", "num_radial", "cutoff", "max_number", "reference_energies", "energy_scale", "stress")
    assert [getattr(potential, name) for name in names] == [16, 2, 8, 4.5, 20, {1: -13.6}, 2.0, True]


def test_a_reference_for_an_element_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"atomic numbers \[30\], but max_number is 20"):
        SchNet(max_number=20, reference_energies={30: 1.0})


def test_bessel_functions_vanish_at_the_cutoff():
    from purestep.models.painn import bessel_basis

    basis = bessel_basis(torch.tensor([2.5, 5.0], dtype=torch.float64), 3, 5.0)
    assert torch.allclose(basis[0], torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64) / 2.5, rtol=0, atol=1e-15)
    assert basis[1].abs().max() < 3 * math.pi * 1e-16  # sin(3 pi) in float64
