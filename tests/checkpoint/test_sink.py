"""Rows of predictions: each exactly once, however often the run is interrupted."""

import itertools
import shutil

import numpy as np
import pytest
import torch
import zarr

from purestep.checkpoint import load_extra, save
from purestep.checkpoint import sink as module
from purestep.checkpoint.sink import Sink
from purestep.errors import CheckpointCorruptError, CheckpointFormatError

SIZES = [3, 1, 5, 2, 4, 6, 1, 1, 7, 2]


def batches():
    begin = 0
    for size in SIZES:
        index = torch.arange(begin, begin + size)
        yield {"index": index, "energy": index.double() * 0.5, "forces": torch.zeros(size, 2, 3) + index[:, None, None] % 3}
        begin += size


def rows_of(path):
    group = zarr.open_group(path, mode="r")
    return {name: np.asarray(array[:]) for name, array in group.arrays()}


def expected():
    parts = list(batches())
    return {name: np.concatenate([part[name].numpy() for part in parts]) for name in parts[0]}


def assert_whole(path):
    found = rows_of(path)
    assert found.keys() == expected().keys()
    assert all(np.array_equal(found[name], rows) and found[name].dtype == rows.dtype for name, rows in expected().items())


@pytest.mark.parametrize("chunk_rows", [1, 4, 1000])
def test_rows_come_out_as_they_went_in(scratch, chunk_rows):
    with Sink(scratch / "out.zarr", chunk_rows=chunk_rows) as sink:
        for batch in batches():
            sink.append(batch)
    assert_whole(scratch / "out.zarr")
    assert sink.rows == sum(SIZES)


class Died(Exception):
    """The end of a process, at a write of the store."""


def run(root, kill_at=None):
    """Append and commit with a checkpoint after every third batch, from the latest checkpoint on; optionally die at a write."""
    count = itertools.count()
    original = module.disk.write_file

    def write_file(path, blocks):
        if next(count) == kill_at:
            raise Died
        return original(path, blocks)

    position = load_extra(root / "one") if (root / "one").exists() else {"batches": 0, "rows": 0}
    module.disk.write_file = write_file
    try:
        sink = Sink(root / "out.zarr", rows=position["rows"], chunk_rows=4)
        for number, batch in enumerate(batches(), start=1):
            if number <= position["batches"]:
                continue
            sink.append(batch)
            if number % 3 == 0:
                rows = sink.commit()
                module.disk.write_file = original
                save(root / "one", {}, extra={"batches": number, "rows": rows})
                module.disk.write_file = write_file
        sink.commit()
    finally:
        module.disk.write_file = original
    return next(count)


def test_a_run_interrupted_at_every_write_of_the_store_has_every_row_once(scratch):
    (scratch / "whole").mkdir()
    num_writes = run(scratch / "whole")
    assert_whole(scratch / "whole" / "out.zarr")
    assert num_writes > 20
    for first in range(0, num_writes - 1, 4):
        root = scratch / f"at-{first}"
        root.mkdir()
        for kill_at in (first, 3):  # and again, soon after the resume
            try:
                run(root, kill_at)
            except Died:
                continue
        run(root)
        assert_whole(root / "out.zarr")


def test_rows_that_do_not_count_are_cut_off(scratch):
    with Sink(scratch / "out.zarr", chunk_rows=4) as sink:
        sink.append({"x": torch.arange(11)})
    with Sink(scratch / "out.zarr", rows=6) as sink:
        sink.append({"x": torch.tensor([100])})
    assert rows_of(scratch / "out.zarr")["x"].tolist() == [0, 1, 2, 3, 4, 5, 100]


def test_chunks_of_zeros_are_written_and_a_lost_one_is_noticed(scratch):
    with Sink(scratch / "out.zarr", chunk_rows=4) as sink:
        sink.append({"x": torch.zeros(4)})
    with Sink(scratch / "out.zarr", rows=4) as sink:
        sink.append({"x": torch.zeros(4)})
    assert sorted(path.name for path in (scratch / "out.zarr" / "x" / "c").iterdir()) == ["0", "1"]
    (scratch / "out.zarr" / "x" / "c" / "0").unlink()
    with pytest.raises(CheckpointCorruptError, match="chunk c/0 is missing"):
        Sink(scratch / "out.zarr", rows=8)
    shutil.rmtree(scratch / "out.zarr" / "x")
    with pytest.raises(CheckpointCorruptError, match="is empty, 8 rows"):
        Sink(scratch / "out.zarr", rows=8)


def test_a_store_with_rows_is_not_begun_again_and_no_other_directory_is_taken(scratch):
    with Sink(scratch / "out.zarr") as sink:
        sink.append({"x": torch.zeros(8)})
    with pytest.raises(CheckpointFormatError, match="give the number of rows that count"):
        Sink(scratch / "out.zarr")
    with pytest.raises(CheckpointCorruptError, match="has 8 rows, 9 should be there"):
        Sink(scratch / "out.zarr", rows=9)
    (scratch / "other").mkdir()
    (scratch / "other" / "thesis.tex").touch()
    with pytest.raises(CheckpointFormatError, match="not a zarr v3 group"):
        Sink(scratch / "other", rows=0)


def test_narrow_floats_are_kept_exactly_in_float32(scratch):
    values = torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16)
    with Sink(scratch / "out.zarr") as sink:
        sink.append({"x": values})
    found = rows_of(scratch / "out.zarr")["x"]
    assert torch.equal(torch.from_numpy(found), values.float())


def test_samples_of_another_form_are_refused(scratch):
    with Sink(scratch / "out.zarr") as sink:
        sink.append({"x": torch.zeros(2, 3)})
        with pytest.raises(ValueError, match="samples have"):
            sink.append({"x": torch.zeros(2, 4)})
        with pytest.raises(ValueError, match="samples have"):
            sink.append({"x": torch.zeros(2, 3), "y": torch.zeros(2)})
        with pytest.raises(ValueError, match="same number of samples"):
            sink.append({"x": torch.zeros(2, 3), "y": torch.zeros(3)})
        with pytest.raises(ValueError, match="got a scalar"):
            sink.append({"x": torch.tensor(1.0)})
    assert rows_of(scratch / "out.zarr")["x"].shape == (2, 3)


def test_an_exception_in_the_run_commits_nothing_more(scratch):
    with pytest.raises(KeyError), Sink(scratch / "out.zarr", chunk_rows=4) as sink:
        sink.append({"x": torch.zeros(6)})
        raise KeyError
    assert rows_of(scratch / "out.zarr")["x"].shape == (4,)
