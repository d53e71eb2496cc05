"""Per-sample predictions on disk: rows of zarr v3 arrays, each exactly once however often the run is interrupted.

The number of rows that count is not kept in the store but in the checkpoint, beside the state that produced them. Whoever resumes
opens the store with that number; later rows are cut off, and are produced again by the resumed run.
"""

import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import zarr
from torch import Tensor
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from ..errors import CheckpointCorruptError, CheckpointFormatError
from . import disk
from .staging import make_root

DEFAULT_CHUNK_ROWS = 1024


class DurableStore(LocalStore):
    """A local store whose keys survive a power loss: flushed under another name, then renamed."""

    async def set(self, key: str, value: Buffer) -> None:
        """Write one key; readers see the old or the new value."""
        path = str(self.root / key)
        make_root(os.path.dirname(path))
        scratch = f"{path}.{uuid.uuid4().hex}.partial"
        try:
            disk.write_file(scratch, [value.to_bytes()])
            disk.rename(scratch, path)
        except BaseException:
            disk.remove_file(scratch)
            raise
        disk.sync_dir(os.path.dirname(path))


class Sink:
    """Writer of rows; every field is an array whose first axis counts samples.

    Args:
        path: Directory of the store.
        rows: How many rows count, from the checkpoint that is resumed; later ones are deleted. By default the store is new, and
            must not be there.
        chunk_rows: Rows of a chunk, for a new store.

    Raises:
        CheckpointFormatError: If there is something else at `path`, or a store though `rows` does not say what of it counts.
        CheckpointCorruptError: If the store has fewer whole rows than count.
    """

    def __init__(self, path: str | os.PathLike, *, rows: int | None = None, chunk_rows: int = DEFAULT_CHUNK_ROWS) -> None:
        if (rows is not None and rows < 0) or chunk_rows < 1:
            raise ValueError(f"rows must be at least 0 and chunk_rows at least 1, got {rows} and {chunk_rows}")
        self.path = Path(os.path.abspath(os.fspath(path)))
        self._group = _open_group(self.path, rows)
        rows = rows or 0
        with zarr.config.set({"array.write_empty_chunks": True}):  # an existing array takes this from here, and from nowhere else
            self._arrays: dict[str, zarr.Array] = dict(self._group.arrays())
        self._chunk_rows = next((array.chunks[0] for array in self._arrays.values()), chunk_rows)
        if rows and not self._arrays:
            raise CheckpointCorruptError(f"{self.path} is empty, {rows} rows of it should be there")
        self._tails = {name: [_tail(self.path, name, array, rows)] for name, array in self._arrays.items()}
        self._rows = rows

    @property
    def rows(self) -> int:
        """Rows appended so far; keep the value that `commit` returns in the checkpoint."""
        return self._rows

    def append(self, rows: Mapping[str, Tensor | np.ndarray]) -> None:
        """Add samples; whole chunks are written at once, the rest stays in memory until `commit`.

        Args:
            rows: Fields, each with samples along the first axis; always the same fields, dtypes and shapes of a sample.

        Raises:
            ValueError: If fields, dtypes or shapes differ from those before, or the numbers of samples differ.
        """
        arrays = {name: _as_numpy(value) for name, value in rows.items()}
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"{self.path}: all fields must have the same number of samples, got {counts}")
        if not self._arrays:
            self._create(arrays)
        self._check(arrays)
        for name, array in arrays.items():
            self._tails[name].append(array)
        self._rows += next(iter(counts.values()))
        self._write(whole_chunks_only=True)

    def commit(self) -> int:
        """Write everything to the device.

        Returns:
            The number of rows, to be kept in the checkpoint of this moment.
        """
        self._write(whole_chunks_only=False)
        return self._rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.commit()

    def _create(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            self._arrays[name] = self._group.create_array(
                name,
                shape=(0, *array.shape[1:]),
                chunks=(self._chunk_rows, *[max(size, 1) for size in array.shape[1:]]),
                dtype=array.dtype,
                compressors=[ZstdCodec(level=1), Crc32cCodec()],
                # a chunk that is not there reads as zeros: one of zeros must be there like any other, or nobody could tell it was lost
                config={"write_empty_chunks": True},
            )
            self._tails[name] = []

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        expected = {name: (array.dtype, array.shape[1:]) for name, array in self._arrays.items()}
        found = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
        if found != expected:
            raise ValueError(f"{self.path}: samples have {found}, the store has {expected}")

    def _write(self, *, whole_chunks_only: bool) -> None:
        """Write what is in memory from the last chunk boundary on; an unfinished chunk stays in memory and is written again later."""
        for name, parts in self._tails.items():
            held = sum(map(len, parts))
            count = held - held % self._chunk_rows if whole_chunks_only else held
            if count == 0:
                continue
            tail = np.concatenate(parts)
            begin = self._rows - held
            array = self._arrays[name]
            if array.shape[0] < begin + count:
                array.resize((begin + count, *array.shape[1:]))
            array[begin : begin + count] = tail[:count]
            self._tails[name] = [tail[held - held % self._chunk_rows :]]


def _open_group(path: Path, rows: int | None) -> zarr.Group:
    make_root(str(path.parent))
    store = DurableStore(path)
    if path.exists():
        for scratch in path.rglob("*.partial"):
            disk.remove_file(str(scratch))
    if not path.exists() or not any(path.iterdir()):
        return zarr.create_group(store, zarr_format=3)
    if rows is None:
        raise CheckpointFormatError(f"{path} exists; give the number of rows that count, from the checkpoint, or another path")
    try:
        group = zarr.open_group(store, mode="r+", zarr_format=3)
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise CheckpointFormatError(f"{path} exists and is not a zarr v3 group: {error}") from error
    if rows == 0:  # the run may have ended between the creation of two fields, or in the middle of one
        for entry in sorted(path.iterdir()):
            if entry.is_dir():
                disk.remove_dir(str(entry))
    return group


def _tail(path: Path, name: str, array: zarr.Array, rows: int) -> np.ndarray:
    """Cut an array to the rows that count, and read those of its last, unfinished chunk."""
    if array.shape[0] < rows:
        raise CheckpointCorruptError(f"{path}/{name} has {array.shape[0]} rows, {rows} should be there")
    chunk_rows = array.chunks[0]
    for index in range(math.ceil(rows / chunk_rows)):
        key = array.metadata.encode_chunk_key((index, *[0] * (array.ndim - 1)))
        if not (path / name / key).is_file():
            raise CheckpointCorruptError(f"{path}/{name}: chunk {key} is missing (it would read as zeros)")
    if array.shape[0] > rows:
        array.resize((rows, *array.shape[1:]))
    return np.asarray(array[rows - rows % chunk_rows : rows])


def _as_numpy(value: Tensor | np.ndarray) -> np.ndarray:
    """Rows on the host; dtypes that zarr lacks become float32, which holds all their values."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        narrow = value.dtype is torch.bfloat16 or (value.is_floating_point() and value.itemsize == 1)
        value = (value.float() if narrow else value).numpy()
    if value.ndim == 0:
        raise ValueError("a field needs samples along its first axis, got a scalar")
    return np.array(value)
