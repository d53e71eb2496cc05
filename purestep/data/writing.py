"""Writing stores: a new one appears whole or not at all, and what is appended counts from one atomic rename on.

A commit is a zarr group of its own, whole shards that are never touched again. The last act of a commit replaces the metadata file of
the store, which lists the groups that count; a commit that was interrupted leaves a directory that nobody reads.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import DataError
from .committing import alone, replace_attributes, sync, sync_directory
from .layout import FORMAT, UNITS, check_arrays, joined_fingerprint, levels_of, missing_values, pointers_of, summary
from .references import fit_reference_energies
from .store import AtomicStore

References = Literal["fit"] | Mapping[int, float] | None

_CHUNK_ROWS = 1 << 13
_CHUNKS_IN_SHARD = 32
_SEGMENTS = "segments"
_FITTED_FROM = ("numbers", "energy", "split")


def write_store(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    *,
    levels: Mapping[str, str] | None = None,
    reference_energies: References = "fit",
    metadata: Mapping[str, Any] | None = None,
) -> AtomicStore:
    """Write a new store; it appears whole or not at all.

    Args:
        path: Directory to make; must not exist.
        arrays: `ptr` `(F + 1,)`, `numbers` `(N,)`, `positions` `(N, 3)`, and what there is of `energy` `(F,)`, `forces` `(N, 3)`,
            `cell` `(F, 3, 3)`, `pbc` `(F, 3)`, `stress` `(F, 3, 3)`, `group` `(F,)`, `split` `(F,)` (0 train, 1 validation, 2 test).
            Frames may have edges of their own: `edge_ptr` `(F + 1,)`, `edge_index` `(E, 2)`, sender and receiver within the frame, and
            `edge_shift` `(E, 3)`. Other arrays are kept as they are. Missing labels are NaN.
        levels: "atom", "frame" or "edge" for other arrays.
        reference_energies: eV by atomic number; "fit" fits them to the training part; None keeps none.
        metadata: More attributes, JSON values.

    Raises:
        DataError: If arrays contradict each other, or the path exists.
    """
    return write_segments(path, [arrays], levels=levels, reference_energies=reference_energies, metadata=lambda: metadata or {})


def write_segments(
    path: str | os.PathLike,
    segments: Iterable[Mapping[str, np.ndarray]],
    *,
    levels: Mapping[str, str] | None = None,
    reference_energies: References = "fit",
    metadata: Callable[[], Mapping[str, Any]] = dict,
) -> AtomicStore:
    """Write a new store part by part, of which only one is held in memory; it appears whole or not at all.

    Args:
        metadata: Called when all parts are written.

    Raises:
        DataError: If arrays contradict each other, there are none, or the path exists.
    """
    path = Path(path)
    if path.exists():
        raise DataError(f"{path}: already exists; stores are never overwritten")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        parts: list[dict[str, Any]] = []
        examples: dict[str, np.ndarray] = {}
        for number, arrays in enumerate(segments):
            parts.append(_write(temporary, f"{_SEGMENTS}/{number:06d}" if number else "", arrays, levels or {}))
            examples |= {key: arrays[key][:1].copy() for key in parts[-1]["levels"].keys() - examples.keys()}
        if not parts:
            raise DataError("there are no frames to write")
        for key, like in examples.items():
            if any(key not in part["levels"] for part in parts):
                missing_values(key, like.shape, like.dtype)  # raises where nothing can stand for it in the other parts
        replace_attributes(temporary, {**metadata(), **_attributes(parts)})
        _settle_references(temporary, reference_energies)
        sync(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return AtomicStore(path)


def append_frames(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], *, levels: Mapping[str, str] | None = None) -> AtomicStore:
    """Append frames to a store in one atomic commit: readers see all of them or none.

    Fitted reference energies are fitted anew to the whole; given ones stay, and must cover new elements.

    Args:
        arrays: As for `write_store`. Labels that only some commits have are NaN in the others.

    Raises:
        DataError: If arrays contradict each other or the store, or another process is appending.
    """
    return append_segments(path, [arrays], levels=levels)


def append_segments(
    path: str | os.PathLike,
    segments: Iterable[Mapping[str, np.ndarray]],
    *,
    levels: Mapping[str, str] | None = None,
    metadata: Callable[[], Mapping[str, Any]] = dict,
) -> AtomicStore:
    """Append several parts, of which only one is held in memory, in one atomic commit.

    Raises:
        DataError: As `append_frames`.
    """
    path = Path(path)
    with alone(path):
        store = AtomicStore(path)
        old = store.attributes.get("segments") or [{"path": "", **_summary_of_first(store)}]
        _sweep(path, old)
        new, columns = [], [{"ptr": store.ptr, **{key: store.column(key) for key in _FITTED_FROM if key in store.levels}}]
        for arrays in segments:
            stated = {key: level for key, level in {**store.levels, **(levels or {})}.items() if key in arrays}
            arrays = _fitting(store, arrays, stated)
            new.append(_write(path, f"{_SEGMENTS}/{uuid.uuid4().hex[:12]}", arrays, stated))
            sync(path / new[-1]["path"])
            columns.append({key: arrays[key] for key in ("ptr", *_FITTED_FROM) if key in arrays})
        attributes = {**store.attributes, **metadata(), **_attributes([*old, *new])}
        if attributes.get("references") == "fit":
            attributes |= _fitted(columns)
        _check_covered(attributes)
        replace_attributes(path, attributes)
    return AtomicStore(path)


def _sweep(path: Path, listed: Sequence[Mapping[str, Any]]) -> None:
    """Remove what interrupted commits have left."""
    directory = path / _SEGMENTS
    names = {Path(part["path"]).name for part in listed} | {"zarr.json"}
    for orphan in set(os.listdir(directory) if directory.exists() else ()) - names:
        shutil.rmtree(directory / orphan, ignore_errors=True)


def _write(path: Path, name: str, arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> dict[str, Any]:
    """One group of arrays; returns how the store lists it."""
    import zarr  # see AtomicStore
    from zarr.codecs import BloscCodec

    levels = levels_of(arrays, {key: level for key, level in levels.items() if key in arrays})
    check_arrays(arrays, levels)
    if name and not (path / _SEGMENTS / "zarr.json").exists():
        zarr.create_group(path / _SEGMENTS, zarr_format=3)
    group = zarr.create_group(path / name, zarr_format=3)
    pointers = pointers_of(levels).values()
    for key in (*pointers, *levels):
        data = np.ascontiguousarray(arrays[key])
        chunk = len(data) if key in pointers else max(1, min(len(data), _CHUNK_ROWS))
        shards = (chunk * _CHUNKS_IN_SHARD, *data.shape[1:]) if len(data) > chunk else None
        codec = BloscCodec(cname="zstd", clevel=9, shuffle="shuffle", typesize=data.dtype.itemsize)
        group.create_array(key, data=data, chunks=(chunk, *data.shape[1:]), shards=shards, compressors=codec)
    return {"path": name, **summary(arrays, levels)}


def _attributes(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a store says of itself, from what its parts say."""
    levels: dict[str, str] = {}
    for part in parts:
        levels |= part["levels"]
    energies = [part["energy_per_atom"] for part in parts if "energy_per_atom" in part and part["energy_per_atom"]["count"]]
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "version": 3 if "edge" in levels.values() else 1 if len(parts) == 1 else 2,
        "num_frames": sum(part["num_frames"] for part in parts),
        "num_atoms": sum(part["num_atoms"] for part in parts),
        **({"num_edges": sum(part["num_edges"] for part in parts)} if all("num_edges" in part for part in parts) else {}),
        "levels": levels,
        "units": {key: unit for key, unit in UNITS.items() if key in levels},
        "elements": sorted({number for part in parts for number in part["elements"]}),
        "labelled_frames": {key: sum(part["labelled_frames"].get(key, 0) for part in parts) for key in levels},
        "fingerprint": joined_fingerprint(part["fingerprint"] for part in parts),
        "segments": [dict(part) for part in parts],
    }
    if energies:
        count, total = (sum(energy[key] for energy in energies) for key in ("count", "sum"))
        low, high = (choose(energy["bounds"][end] for energy in energies) for end, choose in ((0, min), (1, max)))
        attributes["energy_per_atom"] = {"mean": total / count, "min": low, "max": high}
    return attributes


def _summary_of_first(store: AtomicStore) -> dict[str, Any]:
    """The summary of a store that was written before stores kept one."""
    return summary({"ptr": store.ptr, **{key: store.column(key) for key in store.levels}}, store.levels)


def _settle_references(path: Path, wanted: References) -> None:
    store = AtomicStore(path)
    if wanted is None or (wanted == "fit" and not store.attributes["labelled_frames"].get("energy")):
        return
    if isinstance(wanted, Mapping):
        found: dict[str, Any] = {"references": "given", "reference_energies": {str(number): float(e) for number, e in wanted.items()}}
    else:
        found = _fitted([{"ptr": store.ptr, **{key: store.column(key) for key in _FITTED_FROM if key in store.levels}}])
    _check_covered({**store.attributes, **found})
    replace_attributes(path, {**store.attributes, **found})


def _fitted(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    sizes = [part["ptr"][1:] - part["ptr"][:-1] for part in parts]
    ptr = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    energy = np.concatenate([part.get("energy", np.full(len(size), np.nan)) for part, size in zip(parts, sizes, strict=True)])
    numbers = np.concatenate([part["numbers"] for part in parts])
    training = np.concatenate([part["split"] for part in parts]) == 0 if all("split" in part for part in parts) else None
    references = fit_reference_energies(ptr, numbers, energy, training)
    return {"references": "fit", "reference_energies": {str(number): value for number, value in references.items()}}


def _check_covered(attributes: Mapping[str, Any]) -> None:
    if attributes.get("references") == "given" and (
        missing := [number for number in attributes["elements"] if str(number) not in attributes["reference_energies"]]
    ):
        raise DataError(f"no reference energy was given for the elements {missing}; give them all, or none")


def _fitting(store: AtomicStore, arrays: Mapping[str, np.ndarray], levels: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Arrays to append, in the dtypes of the store."""
    fitting = dict(arrays)
    for key in levels_of(arrays, levels):
        if key not in store.levels:
            missing_values(key, (1, *arrays[key].shape[1:]), arrays[key].dtype)  # raises where nothing can stand for it in older frames
    for key, level in store.levels.items():
        if levels.get(key, level) != level:
            raise DataError(f"{key}: rows per {levels[key]}, but the store {store.path} has rows per {level}")
        if key not in levels:
            store.missing(key, 1)  # raises where nothing can stand for what is missing
            continue
        like = store.like(key)
        fitting[key] = arrays[key].astype(like.dtype)
        if arrays[key].shape[1:] != like.shape[1:] or not np.array_equal(fitting[key], arrays[key], equal_nan=like.dtype.kind == "f"):
            raise DataError(
                f"{key}: rows {arrays[key].shape[1:]} of {arrays[key].dtype}, but the store {store.path} has rows {like.shape[1:]} of "
                f"{like.dtype}, which cannot hold these values"
            )
    return fitting
