"""Layouts of arrays that well-known data sets use, in npz and HDF5."""

import numpy as np
import pytest

from purestep.data import Units, convert
from purestep.errors import DataError

h5py = pytest.importorskip("h5py")
RNG = np.random.default_rng(5)
SHAPE = np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
POSITIONS = SHAPE + 0.02 * RNG.normal(size=(5, 3, 3))
ENERGIES, FORCES = RNG.normal(size=5), RNG.normal(size=(5, 3, 3))


def test_conformers_of_one_molecule_share_their_numbers(tmp_path):
    # as in rMD17
    np.savez(
        tmp_path / "set.npz",
        nuclear_charges=np.array([8, 1, 1]),
        coords=POSITIONS,
        energies=ENERGIES,
        forces=FORCES,
        old_indices=np.arange(5),
    )
    store = convert(tmp_path / "set.npz", tmp_path / "set.zarr", units=Units(energy="kcal/mol")).store
    assert len(store) == 5 and store[3]["numbers"].tolist() == [8, 1, 1]
    assert np.array_equal(store[3]["positions"], POSITIONS[3])
    assert store[3]["energy"] == pytest.approx(ENERGIES[3] * 0.0433641, abs=1e-6)  # as tables give it


def test_padded_molecules_end_at_their_last_atom(tmp_path):
    # as QM9 is often kept
    charges = np.array([[8, 1, 1], [1, 1, 0]])
    positions = np.stack([SHAPE, [[0, 0, 0], [0.74, 0, 0], [0, 0, 0]]])
    np.savez(tmp_path / "set.npz", charges=charges, positions=positions, U0=[-76.4, -1.1], dipole=np.ones((2, 3)))
    keys = {"energy": "U0", "dipole": "dipole"}
    store = convert(tmp_path / "set.npz", tmp_path / "set.zarr", keys=keys, levels={"dipole": "frame"}).store
    assert [store[number]["numbers"].tolist() for number in range(2)] == [[8, 1, 1], [1, 1]]
    assert store[1]["positions"].shape == (2, 3) and store[1]["energy"] == -1.1 and store[1]["dipole"].shape == (3,)


def test_flat_arrays_with_offsets_keep_groups_and_parts(tmp_path):
    np.savez(
        tmp_path / "set.npz",
        ptr=[0, 3, 5],
        numbers=[8, 1, 1, 1, 1],
        positions=np.concatenate([SHAPE, [[0, 0, 0], [0.74, 0, 0]]]),
        group=[1, 0],
        group_names=["hydrogen", "water"],
        split=[0, 2],
    )
    store = convert(tmp_path / "set.npz", tmp_path / "set.zarr").store
    assert [store.attributes["group_names"][group] for group in store.column("group")] == ["water", "hydrogen"]
    assert store.column("split").tolist() == [0, 2]


def test_groups_of_an_hdf5_file_are_molecules(tmp_path):
    # as in ANI-1x and SPICE
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for name, symbols in (("water", "OHH"), ("acid", "SHH")):
            group = file.create_group(f"part/{name}")
            group["species"] = np.array(list(symbols), dtype="S2")
            group["coordinates"], group["wb97x_dz.energy"], group["wb97x_dz.forces"] = POSITIONS, ENERGIES, FORCES
    keys = {"energy": "wb97x_dz.energy", "forces": "wb97x_dz.forces"}
    store, report = convert(tmp_path / "set.h5", tmp_path / "set.zarr", keys=keys)
    assert len(store) == 10 and store.attributes["group_names"] == ["part/acid", "part/water"]
    assert store[0]["numbers"].tolist() == [16, 1, 1] and np.array_equal(store[7]["forces"], FORCES[2])
    assert not report.bad


def test_a_gradient_of_an_hdf5_file_becomes_forces(tmp_path):
    with h5py.File(tmp_path / "set.h5", "w") as file:
        group = file.create_group("water")
        group["atomic_numbers"], group["conformations"] = [8, 1, 1], POSITIONS / 0.529177210544
        group["dft_total_energy"], group["dft_total_gradient"] = ENERGIES, FORCES
    keys = {"energy": "dft_total_energy", "gradient": "dft_total_gradient"}
    frame = convert(tmp_path / "set.h5", tmp_path / "set.zarr", keys=keys, units=Units(energy="Hartree", length="Bohr")).store[2]
    assert np.allclose(frame["forces"], -51.422067 * FORCES[2], rtol=1e-6)  # as tables give it
    assert np.allclose(frame["positions"], POSITIONS[2], rtol=1e-12)  # there and back


def test_bad_frames_of_a_file_are_named_with_group_and_number(tmp_path):
    energies = ENERGIES.copy()
    energies[3] = np.nan
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["water/numbers"], file["water/positions"], file["water/energy"] = [8, 1, 1], POSITIONS, energies
    with pytest.raises(DataError, match=r"set\.h5:/water, frame 3: energy is not finite"):
        convert(tmp_path / "set.h5", tmp_path / "set.zarr")


def test_files_without_numbers_and_positions_are_refused_with_what_they_hold(tmp_path):
    np.savez(tmp_path / "set.npz", a=np.zeros(3))
    with pytest.raises(DataError, match="no array for numbers and positions; it holds a"):
        convert(tmp_path / "set.npz", tmp_path / "set.zarr")
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["a"] = np.zeros(3)
    with pytest.raises(DataError, match="no group holds numbers and positions"):
        convert(tmp_path / "set.h5", tmp_path / "set.zarr")
    (tmp_path / "broken.h5").write_text("not HDF5")
    with pytest.raises(DataError, match="cannot be read as HDF5"):
        convert(tmp_path / "broken.h5", tmp_path / "set.zarr")


def test_rows_of_a_data_set_of_dicts_are_frames(tmp_path):
    class Rows:  # what `datasets.Dataset` offers: a length, and dicts of lists by number
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return {"numbers": [8, 1, 1], "positions": POSITIONS[range(5)[index]].tolist(), "energy": float(ENERGIES[index])}

    store = convert(Rows(), tmp_path / "set.zarr").store
    assert np.array_equal(store.column("positions"), POSITIONS.reshape(-1, 3)) and np.array_equal(store.column("energy"), ENERGIES)


def test_tensors_are_arrays_too(tmp_path):
    import torch

    record = {"numbers": torch.tensor([8, 1, 1]), "positions": torch.tensor(SHAPE), "energy": torch.tensor([-76.4], dtype=torch.float64)}
    assert convert([record], tmp_path / "set.zarr").store[0]["energy"] == -76.4
