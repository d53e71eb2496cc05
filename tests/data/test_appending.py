"""Appending: one commit counts whole or not at all, and the store is as if all had been written at once."""

import os
import subprocess
import sys

import numpy as np
import pytest

from purestep.data import AtomicStore, append_frames, arrays_from_frames, write_store
from purestep.errors import DataError


@pytest.fixture
def store(frames, tmp_path):
    return write_store(tmp_path / "set.zarr", arrays_from_frames(frames[:4]))


def test_appended_frames_follow_the_others(store, frames):
    longer = append_frames(store.path, arrays_from_frames(frames[4:6]))
    longest = append_frames(store.path, arrays_from_frames(frames[6:]))
    assert (len(store), len(longer), len(longest)) == (4, 6, 7)
    assert all(np.array_equal(longest[number][key], frame[key]) for number, frame in enumerate(frames) for key in frame)
    whole = arrays_from_frames(frames)
    assert all(np.array_equal(longest.column(key), whole[key]) for key in longest.levels) and np.array_equal(longest.ptr, whole["ptr"])
    longest.verify()


def test_attributes_are_those_of_the_whole(store, frames, tmp_path):
    longer = append_frames(store.path, arrays_from_frames(frames[4:]))
    whole = write_store(tmp_path / "whole.zarr", arrays_from_frames(frames))
    for key in ("num_frames", "num_atoms", "levels", "elements", "units", "labelled_frames", "reference_energies"):
        assert longer.attributes[key] == whole.attributes[key], key
    assert longer.attributes["energy_per_atom"] == pytest.approx(whole.attributes["energy_per_atom"], rel=1e-14)  # another order of sums
    assert longer.fingerprint != store.fingerprint


def test_labels_that_only_some_commits_have_are_nan_elsewhere(store, frames):
    bare = [{key: frame[key] for key in ("numbers", "positions")} | {"dipole": np.ones(3)} for frame in frames[4:]]
    longer = append_frames(store.path, arrays_from_frames(bare), levels={"dipole": "frame"})
    assert np.isnan(longer[4]["energy"]) and np.isnan(longer[5]["forces"]).all() and longer[5]["forces"].shape == (4, 3)
    assert np.isnan(longer[0]["dipole"]).all() and longer[4]["dipole"].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(longer.column("energy")).tolist() == [False] * 4 + [True] * 3
    assert longer.attributes["labelled_frames"]["dipole"] == 3


@pytest.mark.parametrize("fatal", ["numbers/zarr.json", "zarr.json"])
def test_a_killed_writer_leaves_the_old_store_and_the_next_one_succeeds(store, frames, tmp_path, fatal):
    more = arrays_from_frames(frames[4:])
    np.savez(tmp_path / "more.npz", **more)
    done = subprocess.run([sys.executable, "-c", KILLED, store.path, tmp_path / "more.npz", fatal], check=False)
    assert done.returncode == 9
    AtomicStore(store.path).verify()
    assert len(AtomicStore(store.path)) == 4
    append_frames(store.path, more).verify()
    assert len(AtomicStore(store.path)) == 7


# the writer dies when it would rename to the fatal file: of an array of the commit, or of the store, which is the last act
KILLED = """
import os, pathlib, sys
import numpy as np
from purestep.data import append_frames

def deadly(rename):
    def replace(source, target):
        if str(target).endswith("/" + sys.argv[3]) and (sys.argv[3] != "zarr.json" or ".zarr.json." in str(source)):
            os._exit(9)
        return rename(source, target)
    return replace

os.replace, pathlib.Path.replace = deadly(os.replace), deadly(pathlib.Path.replace)
append_frames(sys.argv[1], dict(np.load(sys.argv[2])))
"""


def test_what_an_interrupted_commit_left_is_swept_away(store, frames):
    orphan = store.path / "segments" / "orphan"
    orphan.mkdir(parents=True)
    longer = append_frames(store.path, arrays_from_frames(frames[4:]))
    assert len(longer) == 7 and not orphan.exists()


def test_a_commit_that_fails_changes_nothing(store, frames):
    before = (store.path / "zarr.json").read_bytes()
    arrays = arrays_from_frames(frames[4:])
    with pytest.raises(DataError, match="energy: shape"):
        append_frames(store.path, {**arrays, "energy": np.zeros(2)})
    with pytest.raises(DataError, match=r"numbers: rows \(\) of float64, but the store .* of uint8, which cannot hold these values"):
        append_frames(store.path, {**arrays, "numbers": arrays["numbers"] + 0.5})
    with pytest.raises(DataError, match=r"forces: rows per frame, but the store .* has rows per atom"):
        append_frames(store.path, {**arrays, "forces": np.zeros((3, 3))}, levels={"forces": "frame"})
    assert (store.path / "zarr.json").read_bytes() == before and len(AtomicStore(store.path)) == 4


def test_a_whole_number_that_older_frames_cannot_have_is_refused(store, frames):
    spins = [{**frame, "spin": np.int64(1)} for frame in frames[4:]]
    with pytest.raises(DataError, match="spin: some frames have it and some do not, but int64 has no value for what is missing"):
        append_frames(store.path, arrays_from_frames(spins), levels={"spin": "frame"})
    assert len(AtomicStore(store.path)) == 4 and AtomicStore(store.path)[3]["energy"] == frames[3]["energy"]


def test_given_references_must_cover_new_elements(frames, tmp_path):
    hydrogen = {**frames[1], "numbers": np.array([1], dtype=np.uint8)}
    store = write_store(tmp_path / "h.zarr", arrays_from_frames([hydrogen]), reference_energies={1: -13.6})
    assert append_frames(store.path, arrays_from_frames([hydrogen])).reference_energies == {1: -13.6}
    with pytest.raises(DataError, match=r"no reference energy was given for the elements \[8\]"):
        append_frames(store.path, arrays_from_frames([{**hydrogen, "numbers": np.array([8], dtype=np.uint8)}]))


def test_two_writers_do_not_mix(store, frames):
    import fcntl

    handle = os.open(store.path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process is appending"):
        append_frames(store.path, arrays_from_frames(frames[4:]))
    os.close(handle)
