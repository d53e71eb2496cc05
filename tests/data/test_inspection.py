"""Inspection: what it says is in the store is in the store."""

import json

import numpy as np
import pytest

from purestep.data import arrays_from_frames, draw_inspection, inspect, shipped, write_store
from purestep.errors import DataError


def test_the_shipped_molecules_are_described():
    found = inspect(shipped("g2").path)
    assert (found.num_frames, found.num_atoms, found.parts) == (2135, 13785, {"train": 1610, "validation": 216, "test": 309})
    assert sum(found.elements.values()) == 13785 and found.elements.keys() == found.reference_energies.keys()
    assert set(found.coverage.values()) == {2135}
    sizes = found.histograms["atoms of a frame"]
    assert sum(sizes.counts) == 2135 and (sizes.edges[0], sizes.edges[-1]) == (2.0, 14.0)
    assert sum(found.histograms["size of a force"].counts) == 13785


def test_coverage_counts_known_labels_and_odd_frames_are_named(tmp_path):
    rng = np.random.default_rng(0)
    frames = [
        {
            "numbers": np.array([8, 1, 1], dtype=np.uint8),
            "positions": rng.normal(size=(3, 3)),
            "energy": rng.normal(),
            "forces": np.ones((3, 3)),
        }
        for _ in range(40)
    ]
    frames[3]["energy"] = np.nan
    frames[5]["energy"] = 900.0
    frames[7]["forces"] = np.full((3, 3), 5e3)
    frames[9]["positions"] = frames[2]["positions"]
    found = inspect(write_store(tmp_path / "set.zarr", arrays_from_frames(frames)).path)
    assert found.coverage["energy"] == 39 and found.coverage["forces"] == 40
    assert {suspicion.frame for suspicion in found.suspicions} == {5, 7} and found.duplicates == ((9, 2),)
    text = str(found)
    assert "energy         97.5 % of frames  eV" in text and "frame 9 is frame 2 again" in text and "suspicious: 3" in text


def test_each_array_is_described_by_its_known_values(tmp_path):
    frames = [
        {"numbers": np.array([8, 1], dtype=np.uint8), "positions": np.zeros((2, 3)), "energy": energy, "charge": np.nan}
        for energy in (1.0, 3.0, np.nan)
    ]
    found = inspect(write_store(tmp_path / "set.zarr", arrays_from_frames(frames), levels={"charge": "frame"}).path)
    energy = found.arrays["energy"]
    assert (energy.dtype, energy.shape, energy.unknown) == ("float64", (3,), 1)
    assert (energy.least, energy.mean, energy.std, energy.largest) == (1.0, 2.0, 1.0, 3.0)
    assert (found.arrays["charge"].unknown, found.arrays["charge"].mean) == (3, None)
    assert found.arrays["numbers"].shape == (6,)
    assert all(0 < size <= length for size, length in zip(energy.chunks, energy.shape, strict=True)), energy
    text = str(found)
    assert "float64[3] in chunks of [3]  1, 2 ± 1, 3  1 unknown" in text and "nothing is known  3 unknown" in text
    json.dumps(found.document(), allow_nan=False)


def test_the_document_is_json_and_the_picture_a_png(tmp_path):
    found = inspect(shipped("g2").path)
    assert json.loads(json.dumps(found.document(), allow_nan=False))["num_frames"] == 2135
    draw_inspection(found, tmp_path / "set.png")
    assert (tmp_path / "set.png").read_bytes().startswith(b"\x89PNG")


def test_a_set_of_structures_alone_can_be_inspected(tmp_path):
    frames = [{"numbers": np.array([1, 1]), "positions": np.array([[0.0, 0, 0], [0, 0, 0.7]])}]
    found = inspect(write_store(tmp_path / "set.zarr", arrays_from_frames(frames)).path)
    assert list(found.histograms) == ["atoms of a frame"] and "suspicious: nothing" in str(found)
    sizes = found.histograms["atoms of a frame"]
    assert (sizes.least, sizes.median, sizes.largest) == (2.0, 2.0, 2.0) and "|  2, 2, 2\n" in str(found)


def test_a_path_without_a_store_is_an_error(tmp_path):
    with pytest.raises(DataError, match="there is no zarr v3 group"):
        inspect(tmp_path / "nowhere")
