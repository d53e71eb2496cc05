"""Stores: what is written is what is read, whole or not at all, and the shipped one is sound."""

import numpy as np
import pytest

from purestep.data import AtomicStore, arrays_from_frames, fit_reference_energies, shipped, write_store
from purestep.data.layout import fingerprint
from purestep.errors import DataError


@pytest.fixture
def store(arrays, tmp_path):
    return write_store(tmp_path / "set.zarr", arrays, metadata={"description": "random"})


def test_frames_are_read_as_they_were_written(store, frames):
    assert len(store) == len(frames)
    for number, frame in enumerate(frames):
        read = store[number]
        assert all(np.array_equal(read[key], frame[key]) and read[key].dtype == frame[key].dtype for key in frame)


def test_a_store_is_opened_again_by_its_path(store):
    again = AtomicStore(store.path)
    assert again.fingerprint == store.fingerprint and len(again) == 7
    again.verify()


def test_frames_across_chunks_are_read_whole(arrays, frames, tmp_path, monkeypatch):
    monkeypatch.setattr("purestep.data.writing._CHUNK_ROWS", 3)
    store = write_store(tmp_path / "small_chunks.zarr", arrays)
    assert all(np.array_equal(store[number]["positions"], frame["positions"]) for number, frame in enumerate(frames))
    assert [store[number]["energy"] for number in range(7)] == [frame["energy"] for frame in frames]


def test_arrays_longer_than_a_chunk_are_written_in_whole_shards(arrays, tmp_path, monkeypatch):
    import zarr

    monkeypatch.setattr("purestep.data.writing._CHUNK_ROWS", 2)
    monkeypatch.setattr("purestep.data.writing._CHUNKS_IN_SHARD", 4)
    path = write_store(tmp_path / "sharded.zarr", arrays).path
    positions = zarr.open_group(path, mode="r")["positions"]
    assert (positions.chunks, positions.shards) == ((2, 3), (8, 3))
    assert sorted(file.name for file in (path / "positions" / "c").iterdir()) == ["0", "1", "2"]  # 24 atoms


def test_attributes_say_what_is_in_the_store(store):
    attributes = store.attributes
    assert (attributes["num_frames"], attributes["num_atoms"], attributes["elements"]) == (7, 24, [1, 6, 8])
    assert attributes["units"] == {"positions": "Angstrom", "energy": "eV", "forces": "eV/Angstrom"}
    assert attributes["description"] == "random"


def test_other_arrays_are_kept_per_atom_or_per_frame(arrays, tmp_path):
    more = {"charge": np.arange(24.0), "temperature": np.arange(7)}
    store = write_store(tmp_path / "more.zarr", arrays | more, levels={"charge": "atom", "temperature": "frame"})
    assert store[2]["charge"].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0] and store[2]["temperature"] == 2


def test_splits_are_views_with_fingerprints_of_their_own(store):
    train, test = store.split("train"), store.split("test")
    assert (len(train), len(test)) == (4, 2)
    assert np.array_equal(test[1]["positions"], store[6]["positions"])
    assert len({store.fingerprint, train.fingerprint, test.fingerprint}) == 3


def test_the_fingerprint_changes_with_any_number(arrays):
    changed = {**arrays, "energy": arrays["energy"].copy()}
    changed["energy"][3] = np.nextafter(changed["energy"][3], 0)
    renamed = {("free_energy" if key == "energy" else key): value for key, value in arrays.items()}
    assert len({fingerprint(arrays), fingerprint(changed), fingerprint(renamed)}) == 3
    assert fingerprint(arrays) == fingerprint({key: arrays[key] for key in reversed(arrays)})


def test_the_fingerprint_does_not_depend_on_byte_order(arrays):
    assert fingerprint({"energy": arrays["energy"].astype(">f8")}) == fingerprint({"energy": arrays["energy"].astype("<f8")})


def test_damage_is_noticed(store):
    import zarr

    zarr.open_group(store.path, mode="r+")["energy"][2] = 0.0
    with pytest.raises(DataError, match="fingerprint"):
        AtomicStore(store.path).verify()


def test_a_store_is_never_overwritten(store, arrays):
    with pytest.raises(DataError, match="already exists"):
        write_store(store.path, arrays)


def test_a_failed_write_leaves_nothing_behind(arrays, tmp_path):
    with pytest.raises(TypeError):
        write_store(tmp_path / "set.zarr", arrays, metadata={"not JSON": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": None}, "needs the arrays positions"),
        ({"energy": np.zeros(6)}, r"energy: shape \(6,\), expected \(7,\) for 7 frames and 24 atoms"),
        ({"forces": np.zeros((24, 2))}, r"forces: shape \(24, 2\), expected \(24, 3\)"),
        ({"stress": np.zeros((7, 6))}, r"stress: shape \(7, 6\), expected \(7, 3, 3\)"),
        ({"ptr": np.array([0, 3, 3, 24])}, "ptr must start at 0 and ascend"),
        ({"charge": np.zeros(24)}, "say whether the arrays charge have rows per atom, per frame or per edge"),
        ({"positions": np.where(np.arange(72).reshape(24, 3) == 30, np.nan, 0.0)}, r"positions: not finite in the frames \[3\]"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(arrays, tmp_path, change, message):
    changed = {key: value for key, value in (arrays | change).items() if value is not None}
    with pytest.raises(DataError, match=message):
        write_store(tmp_path / "set.zarr", changed)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    import zarr

    with pytest.raises(DataError, match="there is no zarr v3 group"):
        AtomicStore(tmp_path / "nowhere.zarr")
    zarr.create_group(tmp_path / "other.zarr", zarr_format=3)
    with pytest.raises(DataError, match="not a store"):
        AtomicStore(tmp_path / "other.zarr")


def test_a_file_in_the_place_of_a_store_is_told_how_to_become_one(tmp_path):
    (tmp_path / "frames.extxyz").write_text("1\n\nH 0 0 0\n")
    with pytest.raises(DataError, match=r"frames.extxyz is a file, not the directory of a store; .* data convert .*extxyz .*frames.zarr"):
        AtomicStore(tmp_path / "frames.extxyz")


def test_a_frame_out_of_range_is_an_error(store):
    assert np.array_equal(store[-1]["positions"], store[6]["positions"])
    with pytest.raises(IndexError, match="frame 7 of a store with 7 frames"):
        store[7]


def test_unknown_names_are_refused(store):
    with pytest.raises(DataError, match="unknown split 'val'; there are train, validation, test"):
        store.split("val")
    with pytest.raises(DataError, match="no array 'charge'"):
        store.column("charge")
    with pytest.raises(DataError, match="no shipped store 'qm9'; there is g2"):
        shipped("qm9")


def test_frames_make_the_flat_arrays_again(arrays, frames):
    flat = arrays_from_frames(frames)
    assert all(np.array_equal(flat[key], arrays[key]) for key in flat)


def test_what_a_frame_lacks_is_nan_or_no_cell(frames):
    crystal = {**frames[1], "cell": 4 * np.eye(3), "pbc": np.ones(3, dtype=bool)}
    bare = {key: frames[0][key] for key in ("numbers", "positions")}
    flat = arrays_from_frames([bare, crystal])
    assert np.isnan(flat["energy"][0]) and np.isnan(flat["forces"][:3]).all() and flat["energy"][1] == crystal["energy"]
    assert not flat["cell"][0].any() and flat["pbc"].tolist() == [[False] * 3, [True] * 3]


def test_a_whole_number_that_only_some_frames_have_is_refused(frames):
    with pytest.raises(DataError, match="charge: some frames have it and some do not"):
        arrays_from_frames([{**frames[0], "charge": np.int64(1)}, frames[1]])


def test_reference_energies_are_found_where_composition_explains_everything():
    ptr, numbers = np.array([0, 3, 5, 8, 9]), np.array([8, 1, 1, 8, 8, 6, 8, 8, 1])
    energies = np.array([-75.0 - 26.0, -150.0, -38.0 - 150.0, np.nan])
    fitted = fit_reference_energies(ptr, numbers, energies)
    assert fitted == pytest.approx({1: -13.0, 6: -38.0, 8: -75.0}, abs=1e-10)


def test_reference_energies_see_the_training_part_only(store, arrays):
    training = arrays["split"] == 0
    assert store.reference_energies == fit_reference_energies(arrays["ptr"], arrays["numbers"], arrays["energy"], training)
    changed = np.where(training, arrays["energy"], 1e6)
    assert store.reference_energies == fit_reference_energies(arrays["ptr"], arrays["numbers"], changed, training)


def test_the_shipped_molecules_are_complete_and_split_by_molecule():
    store = shipped("g2")
    store.verify()
    assert (len(store), int(store.ptr[-1])) == (2135, 13785)
    assert [len(store.split(name)) for name in ("train", "validation", "test")] == [1610, 216, 309]
    group, split = store.column("group"), store.column("split")
    parts = [set(group[split == part].tolist()) for part in range(3)]
    assert [len(part) for part in parts] == [82, 11, 16] and len(set.union(*parts)) == 109
    assert set(store.attributes["elements"]) == set(store.reference_energies)


def test_the_shipped_molecules_have_the_stated_baseline_errors():
    store = shipped("g2")
    frames = list(store.split("test"))
    references = store.reference_energies
    per_atom = [
        abs(frame["energy"] - sum(references[number] for number in frame["numbers"].tolist())) / len(frame["numbers"]) for frame in frames
    ]
    assert np.mean(per_atom) == pytest.approx(0.219, abs=5e-4)
    assert np.abs(np.concatenate([frame["forces"] for frame in frames])).mean() == pytest.approx(1.626, abs=5e-4)


def test_forces_of_the_shipped_molecules_add_up_to_nothing():
    store = shipped("g2")
    assert max(np.abs(store[number]["forces"].sum(axis=0)).max() for number in range(0, len(store), 50)) < 1e-12
