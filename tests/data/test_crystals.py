"""Crystals from a file to a trained potential: the example runs and learns, and stress is the derivative of the energy."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import purestep as ps
from purestep.data import Padding, collate, prepare

EXAMPLE = Path(__file__).parents[2] / "examples" / "fcc_stress.py"


def example():
    spec = importlib.util.spec_from_file_location("fcc_stress", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path):
    """Sixty strained and rattled cells of copper and nickel, with the labels of ASE's effective medium theory."""
    ase_build, io = pytest.importorskip("ase.build"), pytest.importorskip("ase.io")
    from ase.calculators.emt import EMT

    rng, written = np.random.default_rng(0), []
    for number in range(60):
        atoms = ase_build.bulk(("Cu", "Ni")[number % 2], cubic=True)
        strain = rng.uniform(-0.04, 0.04, size=(3, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.positions += rng.normal(size=(4, 3)) * 0.08
        atoms.info |= {"name": f"cell {number}", "split": "test" if number % 6 > 3 else "train"}
        atoms.calc = EMT()
        atoms.get_potential_energy(), atoms.get_stress()
        written.append(atoms)
    io.write(tmp_path / "crystals.extxyz", written)
    return tmp_path / "crystals.extxyz"


@pytest.mark.slow
def test_the_example_learns_energies_forces_and_stresses_of_crystals(file, capsys, untouched_globals):
    result = example().main([str(file), "--steps", "100"])
    assert "20 test" in capsys.readouterr().out
    model, baseline = result["model"], result["baseline"]
    assert all(model[key] < baseline[key] for key in ("energy", "forces", "stress")) and model["forces"] < 0.6 * baseline["forces"]


def test_the_example_says_how_to_use_it(capsys):
    with pytest.raises(SystemExit):
        example().main([])
    assert "source" in capsys.readouterr().err


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ps.models.PaiNN(hidden_size=8, num_layers=2, num_radial=6, cutoff=3.5, stress=True).double()


CELL = np.array([[3.6, 0.1, 0.0], [0.2, 3.5, 0.1], [-0.1, 0.2, 3.7]])
POSITIONS = (
    np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]) + 0.02 * np.random.default_rng(1).normal(size=(4, 3))
) @ CELL


def batch_of(strain, pad_to=None):
    crystal = {
        "numbers": np.array([29, 28, 29, 13]),
        "positions": POSITIONS @ (np.eye(3) + strain),
        "cell": CELL @ (np.eye(3) + strain),
        "pbc": np.ones(3, dtype=bool),
    }
    return collate([prepare(crystal, 3.5, dtype=np.float64)], pad_to=pad_to)


@pytest.mark.parametrize("pad_to", [None, Padding(3, 10, 400)], ids=["plain", "padded"])
def test_stress_is_the_derivative_of_the_energy_by_strain(model, pad_to):
    found = model(batch_of(np.zeros((3, 3)), pad_to))["stress"][0]
    volume, step = abs(np.linalg.det(CELL)), 1e-4
    for i in range(3):
        for j in range(3):
            strain = np.zeros((3, 3))
            strain[i, j] += step / 2
            strain[j, i] += step / 2
            up, down = model(batch_of(strain, pad_to))["energy"][0], model(batch_of(-strain, pad_to))["energy"][0]
            assert found[i, j].item() == pytest.approx(((up - down) / (2 * step * volume)).item(), abs=1e-6)
