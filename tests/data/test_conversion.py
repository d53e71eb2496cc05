"""Conversion: names, units, signs and parts come out right, and bad frames are named with file, number and reason."""

import shutil
import sys

import numpy as np
import pytest

from purestep.data import HashSplit, Units, append_converted, convert, shipped
from purestep.errors import DataError

pytest.importorskip("ase")
import ase.build
import ase.io
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator


def crystals(count=4):
    found = []
    for seed in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=seed)
        atoms.set_cell(atoms.cell @ (np.eye(3) + 0.02 * np.ones((3, 3))), scale_atoms=True)
        atoms.calc = EMT()
        results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), "stress": atoms.get_stress()}
        atoms.calc = SinglePointCalculator(atoms, **results)
        atoms.info["name"] = f"seed {seed // 2}"
        found.append(atoms)
    return found


WATER = {"numbers": np.array([8, 1, 1]), "positions": np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]), "energy": -76.4}


@pytest.mark.parametrize("suffix", ["extxyz", "traj", "db"])
def test_files_of_ase_keep_energy_forces_stress_and_cell(tmp_path, suffix):
    written = crystals()
    ase.io.write(tmp_path / f"set.{suffix}", written)
    store, report = convert(tmp_path / f"set.{suffix}", tmp_path / "set.zarr")
    assert len(store) == report.num_frames == 4 and not report.bad
    for atoms, frame in zip(written, (store[number] for number in range(4)), strict=True):
        # extended XYZ writes eight decimals
        assert np.allclose(frame["forces"], atoms.get_forces(), rtol=0, atol=1e-8)
        assert np.allclose(frame["stress"], atoms.get_stress(voigt=False), rtol=0, atol=1e-8)
        assert frame["energy"] == pytest.approx(atoms.get_potential_energy(), abs=1e-8)
        assert np.allclose(frame["cell"], atoms.cell.array) and frame["pbc"].all()


def test_databases_of_ase_keep_the_pairs_and_arrays_of_the_user(tmp_path):
    from ase.db import connect

    with connect(tmp_path / "set.db") as database:
        database.write(Atoms("CO", [[0, 0, 0], [0, 0, 1.1]]), ref_energy=-112.0, data={"ref_forces": np.ones((2, 3))})
    keys = {"energy": "ref_energy", "forces": "ref_forces"}
    frame = convert(tmp_path / "set.db", tmp_path / "set.zarr", keys=keys).store[0]
    assert frame["energy"] == -112.0 and frame["forces"].tolist() == [[1.0] * 3] * 2


def test_objects_of_ase_and_files_of_several_paths_are_sources_too(tmp_path):
    written = crystals()
    ase.io.write(tmp_path / "a.traj", written[:1])
    ase.io.write(tmp_path / "b.traj", written[1:])
    by_objects = convert(written, tmp_path / "objects.zarr").store
    by_paths = convert([tmp_path / "a.traj", tmp_path / "b.traj"], tmp_path / "paths.zarr").store
    assert by_objects.fingerprint == by_paths.fingerprint


def test_stress_is_positive_under_tension(tmp_path):
    stretched = ase.build.bulk("Cu", a=3.7, cubic=True)
    stretched.calc = EMT()
    results = {"energy": stretched.get_potential_energy(), "stress": stretched.get_stress()}
    stretched.calc = SinglePointCalculator(stretched, **results)
    frame = convert([stretched], tmp_path / "set.zarr").store[0]
    assert (np.diag(frame["stress"]) > 0.01).all()


def test_six_components_of_stress_are_in_the_order_of_ase(tmp_path):
    record = {**WATER, "cell": 9 * np.eye(3), "stress": np.arange(6.0)}
    assert convert([record], tmp_path / "set.zarr").store[0]["stress"].tolist() == [[0, 5, 4], [5, 1, 3], [4, 3, 2]]


def test_labels_are_found_under_the_names_of_the_source(tmp_path):
    atoms = Atoms("CO", [[0, 0, 0], [0, 0, 1.1]])
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = -112.0, np.ones((2, 3))
    ase.io.write(tmp_path / "set.extxyz", [atoms, atoms])
    keys = {"energy": "REF_energy", "forces": "REF_forces"}
    frame = convert(tmp_path / "set.extxyz", tmp_path / "set.zarr", keys=keys, reference_energies=None).store[1]
    assert frame["energy"] == -112.0 and frame["forces"].tolist() == [[1.0] * 3] * 2


def test_labels_that_only_some_frames_have_are_counted(tmp_path):
    store, report = convert([{**WATER, "REF": -76.4}, WATER], tmp_path / "set.zarr", keys={"energy": "REF"})
    assert np.isnan(store[1]["energy"]) and report.labelled == {"energy": 1} and "labels: energy in 1" in str(report)


def test_a_name_that_no_frame_has_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no frame has 'REF_energy' for energy; the frames have energy, numbers, positions"):
        convert([WATER], tmp_path / "set.zarr", keys={"energy": "REF_energy"})
    assert list(tmp_path.iterdir()) == []


def test_units_are_converted(tmp_path):
    record = {**WATER, "energy": 1.0, "forces": np.ones((3, 3)), "cell": np.eye(3) * 20, "stress": np.eye(3)}
    units = Units(energy="Hartree", length="Bohr", stress="GPa", stress_sign="compression")
    frame = convert([record], tmp_path / "set.zarr", units=units).store[0]
    assert frame["energy"] == pytest.approx(27.211386, abs=1e-6)  # values as tables give them
    assert frame["positions"][1, 0] == pytest.approx(0.96 * 0.52917721, abs=1e-8)
    assert frame["forces"][0, 0] == pytest.approx(51.422067, abs=1e-6)
    assert frame["stress"][0, 0] == pytest.approx(-1 / 160.21766, abs=1e-9)


def test_a_gradient_becomes_forces_and_a_virial_stress(tmp_path):
    record = {**WATER, "gradient": np.ones((3, 3)), "cell": 10 * np.eye(3), "virial": 5 * np.eye(3)}
    frame = convert([record], tmp_path / "set.zarr").store[0]
    assert frame["forces"].tolist() == [[-1.0] * 3] * 3 and frame["stress"][0, 0] == pytest.approx(-5e-3, rel=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"energy": "hartree"}, "did you mean 'Hartree'"),
        ({"forces": "eV"}, "expected <energy>/<length>"),
        ({"stress": "Pa"}, "expected <energy>"),
    ],
)
def test_unknown_units_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        Units(**settings)


BAD = {
    "no number": ({"positions": None}, "has no positions"),
    "nan": ({"energy": np.nan}, "energy is not finite"),
    "infinite force": ({"forces": np.full((3, 3), np.inf)}, "forces is not finite"),
    "shape": ({"forces": np.zeros((2, 3))}, r"forces has the shape \(2, 3\), expected \(3, 3\) for 3 atoms"),
    "unknown element": ({"numbers": np.array([8, 1, 119])}, r"unknown elements: atomic numbers \[119\]"),
    "unknown symbol": ({"numbers": np.array(["O", "H", "Hx"])}, r"unknown elements \['Hx'\]"),
    "zero cell": ({"cell": np.zeros((3, 3)), "pbc": True}, "spans no volume"),
    "no cell": ({"pbc": [True, True, True]}, "is periodic but has no cell"),
    "twice": ({"positions": np.zeros((3, 3))}, "atoms 0 and 1 are nearer than 0.1 Angstrom"),
    "image": ({"cell": np.diag([0.96, 9, 9])}, r"atoms 0 and 1, an image in cell \[-1, 0, 0\] are nearer"),
    "stress": ({"stress": np.arange(9.0).reshape(3, 3)}, "stress is not symmetric"),
    "empty": ({"numbers": np.zeros(0), "positions": np.zeros((0, 3))}, "has no atoms"),
    "text": ({"energy": "low"}, "energy holds <U3, not numbers"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_frame_stops_a_strict_conversion_which_leaves_nothing(tmp_path, change, message):
    with pytest.raises(DataError, match=f"^list, frame 1: .*{message}"):
        convert([WATER, {**WATER, **change}, WATER], tmp_path / "set.zarr")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_frames_are_left_out_and_reported_on_request(tmp_path, change, message):
    store, report = convert([WATER, {**WATER, **change}, WATER], tmp_path / "set.zarr", on_bad="skip")
    assert len(store) == 2 and [(frame.source, frame.number) for frame in report.bad] == [("list", 1)]
    assert "1 left out" in str(report)


def test_a_file_that_breaks_off_is_reported_with_its_frame(tmp_path):
    file = tmp_path / "set.extxyz"
    ase.io.write(file, crystals())
    file.write_text("\n".join(file.read_text().splitlines()[:-3]))
    with pytest.raises(DataError, match=r"set\.extxyz, frame 3: cannot be read"):
        convert(file, tmp_path / "set.zarr")
    store, report = convert(file, tmp_path / "set.zarr", on_bad="skip")
    assert len(store) == 3 and report.bad[0].number == 3


def test_equal_and_odd_frames_are_kept_and_reported(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        {**WATER, "positions": WATER["positions"] + rng.normal(size=(3, 3)) * 0.02, "energy": -76 + 0.01 * n % 0.05} for n in range(30)
    ]
    records[7] = {**records[7], "energy": 76.0}
    records[9] = records[4]
    store, report = convert(records, tmp_path / "set.zarr")
    assert len(store) == 30 and report.duplicates == ((9, 4),)
    assert [found.frame for found in report.suspicions] == [7]
    assert "frame 9 is frame 4 again" in str(report) and "frame 7: energy per atom" in str(report)


def test_parts_are_drawn_by_group_and_do_not_depend_on_the_other_frames(tmp_path):
    records = [{**WATER, "group": f"molecule {number // 3}", "energy": -76.0 - number} for number in range(90)]
    split = HashSplit(validation=0.2, test=0.3)
    store, report = convert(records, tmp_path / "set.zarr", split=split)
    parts = store.column("split").reshape(30, 3)
    assert (parts == parts[:, :1]).all() and set(report.parts) == {"train", "validation", "test"}
    fewer = convert(records[45:], tmp_path / "fewer.zarr", split=split).store
    assert np.array_equal(fewer.column("split"), store.column("split")[45:])
    other = convert(records, tmp_path / "other.zarr", split=split._replace(seed=1)).store
    assert not np.array_equal(other.column("split"), store.column("split"))


def test_drawn_parts_have_about_the_shares_asked_for(tmp_path):
    rng = np.random.default_rng(1)
    records = [{**WATER, "positions": WATER["positions"] + rng.normal(size=(3, 3)) * 0.02} for _ in range(1000)]
    parts = convert(records, tmp_path / "set.zarr", split=HashSplit(by="content")).report.parts
    assert abs(parts["validation"] - 100) < 40 and abs(parts["test"] - 100) < 40  # four standard deviations of a binomial


def test_a_split_without_groups_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no group to split by"):
        convert([WATER], tmp_path / "set.zarr", split=HashSplit())


def test_named_parts_are_kept(tmp_path):
    records = [{**WATER, "split": name} for name in ("train", "val", "test", "train")]
    assert convert(records, tmp_path / "set.zarr").store.column("split").tolist() == [0, 1, 2, 0]


def test_references_are_fitted_given_or_left_out(tmp_path):
    records = [{**WATER, "split": "train"}, {**WATER, "energy": 1e6, "split": "test"}]
    fitted = convert(records, tmp_path / "fitted.zarr").store.reference_energies
    assert fitted[8] + 2 * fitted[1] == pytest.approx(-76.4, abs=1e-10)
    given = {1: -13.6, 8: -75.0}
    assert convert(records, tmp_path / "given.zarr", reference_energies=given).store.reference_energies == given
    with pytest.raises(DataError, match="has no reference energies"):
        _ = convert(records, tmp_path / "none.zarr", reference_energies=None).store.reference_energies
    with pytest.raises(DataError, match=r"for the elements \[1\]"):
        convert(records, tmp_path / "part.zarr", reference_energies={8: -75.0})


def test_arrays_of_the_user_are_kept_by_level(tmp_path):
    records = [{**WATER, "q": np.arange(3.0), "mu": np.ones(3)}, WATER]
    store = convert(
        records, tmp_path / "set.zarr", keys={"charge": "q", "dipole": "mu"}, levels={"charge": "atom", "dipole": "frame"}
    ).store
    assert store[0]["charge"].tolist() == [0, 1, 2] and store[0]["dipole"].tolist() == [1, 1, 1] and np.isnan(store[1]["charge"]).all()
    with pytest.raises(DataError, match=r"keys: there is no 'charge' .*charge=atom, frame or edge"):
        convert(records, tmp_path / "other.zarr", keys={"charge": "q"})
    with pytest.raises(DataError, match=r"keys: there is no 'force'; did you mean 'forces'\?"):
        convert(records, tmp_path / "other.zarr", keys={"force": "mu"})


def test_names_in_the_source_that_nobody_asked_for_are_told(tmp_path):
    records = [{**{key: WATER[key] for key in ("numbers", "positions")}, "REF_energy": -76.4, "dipole": np.ones(3)}, WATER]
    asked = convert(records, tmp_path / "asked.zarr", keys={"energy": "REF_energy"}, levels={"dipole": "frame"})
    assert asked.report.unread == ("energy",)  # the second frame has its energy under our name, which was not asked for
    left = convert(records, tmp_path / "left.zarr").report
    assert left.unread == ("REF_energy", "dipole")
    assert "not read: REF_energy, dipole; name a label among them by keys, such as energy=REF_energy" in str(left)
    assert "not read" not in str(convert([WATER], tmp_path / "whole.zarr").report)


def test_converted_frames_are_appended_with_the_names_of_groups(tmp_path):
    records = [{**WATER, "group": name} for name in ("a", "b")]
    convert(records, tmp_path / "set.zarr")
    store, report = append_converted([{**WATER, "group": name} for name in ("b", "c")], tmp_path / "set.zarr")
    assert store.column("group").tolist() == [0, 1, 1, 2] and store.attributes["group_names"] == ["a", "b", "c"]
    assert report.num_frames == 2


def test_large_sources_are_written_in_pieces(tmp_path, monkeypatch):
    records = [{**WATER, "energy": float(number)} for number in range(7)]
    whole = convert(records, tmp_path / "whole.zarr").store
    monkeypatch.setattr("purestep.data.conversion._ROWS_IN_MEMORY", 6)
    pieces = convert(iter(records), tmp_path / "pieces.zarr").store
    pieces.verify()
    assert len(pieces.attributes["segments"]) == 4
    assert pieces.column("energy").tolist() == whole.column("energy").tolist() == [float(number) for number in range(7)]
    assert pieces.reference_energies == whole.reference_energies


def test_a_whole_number_that_only_some_pieces_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("purestep.data.conversion._ROWS_IN_MEMORY", 3)
    with pytest.raises(DataError, match="spin: some frames have it and some do not"):
        convert([{**WATER, "spin": np.int64(1)}, WATER], tmp_path / "set.zarr", levels={"spin": "frame"})
    assert list(tmp_path.iterdir()) == []


def test_a_store_can_be_converted_again_with_its_groups_and_missing_labels(tmp_path):
    records = [{**WATER, "group": "a", "split": "test"}, {**WATER, "group": "b", "split": "train", "forces": np.ones((3, 3))}]
    store = convert(records, tmp_path / "set.zarr").store
    again = convert(tmp_path / "set.zarr", tmp_path / "again.zarr").store
    assert again.fingerprint == store.fingerprint and again.attributes["group_names"] == ["a", "b"]


def test_arrays_in_memory_are_a_source(tmp_path):
    arrays = {"numbers": WATER["numbers"], "positions": np.stack([WATER["positions"]] * 2), "energy": [1.0, 2.0]}
    assert convert(arrays, tmp_path / "set.zarr").store.column("energy").tolist() == [1.0, 2.0]


def test_frames_are_appended_to_a_store_of_one_group(tmp_path):
    shutil.copytree(shipped("g2").path, tmp_path / "set.zarr")
    store, _ = append_converted([{**WATER, "split": "test", "group": "H2O"}], tmp_path / "set.zarr")
    assert len(store) == 2136 and len(store.split("test")) == 310
    store.verify()


def test_an_existing_path_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="already exists"):
        convert(iter(lambda: pytest.fail("was read"), None), tmp_path)


@pytest.mark.parametrize(("suffix", "module"), [("extxyz", "ase"), ("h5", "h5py")])
def test_a_missing_library_is_an_error_that_names_the_extra(tmp_path, monkeypatch, suffix, module):
    (tmp_path / f"set.{suffix}").write_text("")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.io", None)
    with pytest.raises(DataError, match=r"pip install 'purestep\[atoms\]'"):
        convert(tmp_path / f"set.{suffix}", tmp_path / "set.zarr")


def test_unreadable_sources_are_refused(tmp_path):
    (tmp_path / "set.csv").write_text("")
    with pytest.raises(DataError, match=r"no reader for '\.csv'"):
        convert(tmp_path / "set.csv", tmp_path / "set.zarr")
    with pytest.raises(DataError, match="there is no such file"):
        convert(tmp_path / "nowhere.npz", tmp_path / "set.zarr")
    with pytest.raises(DataError, match="item 0 of the list is a int"):
        convert([3], tmp_path / "set.zarr")
