"""Writing one checkpoint: placed leaves into files, checksums into a manifest, the manifest under the seal."""

import datetime
import os
import platform
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import safetensors
import torch
from torch import Tensor

from .. import __version__
from ..core.state import check_not_consumed
from ..errors import CheckpointSaveError
from . import disk, layout, strictjson, tensorfile
from .hashing import Hash
from .layout import Placed
from .manifest import INDEX, MAJOR, MAX_MANIFEST_BYTES, MINOR, FileRecord, Leaf, Manifest, Piece, Reason, Schema, Version, encode
from .splitting import MAX_FILE_BYTES, index_of, split_placed
from .staging import commit, staging


@dataclass(frozen=True)
class About:
    """What a manifest says besides files and leaves."""

    label: int
    schema: Schema
    counters: dict[str, int] = field(default_factory=dict)
    aliases: list[list[str]] = field(default_factory=list)
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    parent_id: str | None = None
    reason: Reason = "manual"
    metrics: Mapping[str, float] = field(default_factory=dict)
    finite: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    world_size: int = 1


def about_state(state: Any, label: int | None = None, *, extra: Mapping[str, Any] | None = None, **others: Any) -> About:
    """Describe a state; the label is its `batch_count` unless given, 0 for a tree without counters.

    Raises:
        CheckpointSaveError: If `extra` is not plain JSON.
    """
    check_not_consumed(state, "save")
    return About(
        label=layout.label_of(state) if label is None else label,
        schema=layout.schema_of(state),
        counters=layout.counters_of(state),
        aliases=layout.aliases_of(state),
        extra=_plain(extra or {}),
        **others,
    )


def _plain(extra: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what will be read back; tuples become lists."""
    try:
        return strictjson.load(strictjson.dump(dict(extra)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointSaveError(f"extra must be plain JSON with texts as keys and without NaN: {error}") from error


def write_checkpoint(
    target: str, placed: Sequence[Placed], about: About, *, hash: Hash = "crc32c", max_file_bytes: int = MAX_FILE_BYTES
) -> str:
    """Write a whole checkpoint; when this returns it is on the device under its final name.

    Args:
        hash: Whether every file gets a SHA-256 besides the CRC-32C of each tensor.
        max_file_bytes: Above this the tensors of a file are spread over several.

    Returns:
        The new checkpoint's id.

    Raises:
        CheckpointSaveError: If anything went wrong; whatever was at `target` before is still there.
    """
    check_space(os.path.dirname(target), placed)
    with saving(target), staging(target) as stage:
        files, leaves = write_files(stage.path, split_placed(placed, max_file_bytes), hash=hash)
        files += _write_index(stage.path, files, leaves, hash)
        manifest = make_manifest(files, leaves, about)
        commit(stage, encode_checked(manifest))
    return manifest.checkpoint_id


@contextmanager
def saving(target: str) -> Iterator[None]:
    """Turn errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointSaveError(f"{target}: could not be written: {error}; earlier checkpoints are untouched") from error


def check_space(parent: str, placed: Sequence[Placed]) -> None:
    """Refuse before any work if the file system is too full.

    Raises:
        CheckpointSaveError: If less than 1.1 times the tensors' bytes are free.
    """
    needed = sum(item.leaf.numel() * item.leaf.element_size() for item in placed if isinstance(item.leaf, Tensor))
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    free = disk.free_bytes(parent)
    if free < 1.1 * needed:
        raise CheckpointSaveError(f"{parent}: {free} bytes are free, a checkpoint of {needed} bytes needs 1.1 times as much")


# --- tensors ------------------------------------------------------------------------------------------------------


def write_files(directory: str, placed: Sequence[Placed], *, hash: Hash = "crc32c") -> tuple[list[FileRecord], list[Leaf]]:
    """Write the tensors of placed leaves into the files they are assigned to.

    Returns:
        A record of each file, and of each leaf in the order of `placed`.
    """
    by_file: dict[str, list[Placed]] = {}
    for item in placed:
        if isinstance(item.leaf, Tensor):
            by_file.setdefault(item.file, []).append(item)
    records: list[FileRecord] = []
    checksums: dict[tuple[str, str], str] = {}
    for name in sorted(by_file):
        written, file_checksums = write_tensors(os.path.join(directory, name), {item.name: item.leaf for item in by_file[name]}, hash=hash)
        role = layout.role_of(name)
        records.append(FileRecord(path=name, role=role, bytes=written.num_bytes, sha256=written.sha256))
        checksums |= {(name, tensor): crc for tensor, crc in file_checksums.items()}
    return records, [_leaf_record(item, checksums) for item in placed]


def _write_index(directory: str, files: Sequence[FileRecord], leaves: Sequence[Leaf], hash: Hash) -> list[FileRecord]:
    """Write the index that weights in several files need."""
    if sum(record.role == "weights" for record in files) < 2:
        return []
    written = disk.write_file(os.path.join(directory, INDEX), [index_of(files, leaves)], hash=hash)
    return [FileRecord(path=INDEX, role="index", bytes=written.num_bytes, sha256=written.sha256)]


def write_tensors(path: str, tensors: Mapping[str, Tensor], *, hash: Hash = "crc32c") -> tuple[disk.Written, dict[str, str]]:
    """Write one safetensors file.

    Returns:
        Its size and hash, and the CRC-32C of each tensor's bytes.
    """
    header, entries = tensorfile.make_header({name: tensorfile.stored_form(leaf.dtype, leaf.shape) for name, leaf in tensors.items()})
    checksums: dict[str, str] = {}

    def blocks() -> Iterator[Any]:
        yield header
        for entry in entries:
            checksum = 0
            for block in _slices(dense_bytes(tensors[entry.name])):
                checksum = google_crc32c.extend(checksum, block)
                yield block
            checksums[entry.name] = f"{checksum:08x}"

    written = disk.write_file(path, blocks(), hash=hash)
    expected = len(header) + (entries[-1].end if entries else 0)
    if written.num_bytes != expected:
        raise CheckpointSaveError(f"{path}: wrote {written.num_bytes} bytes, expected {expected}")
    return written, checksums


def dense_bytes(leaf: Tensor) -> np.ndarray:
    """The bytes of any dense tensor in row-major order, on the host; copied only if they have to be."""
    return tensorfile.byte_view(leaf.detach().resolve_conj().resolve_neg().cpu().contiguous())


def _slices(data: np.ndarray) -> Iterable[np.ndarray]:
    return (data[begin : begin + disk.SLICE] for begin in range(0, len(data), disk.SLICE))


def _leaf_record(item: Placed, checksums: Mapping[tuple[str, str], str]) -> Leaf:
    if not isinstance(item.leaf, Tensor):
        return Leaf(path=item.path, kind=layout.kind_of(item.leaf), value=layout.encode_scalar(item.leaf))
    box = item.box or layout.whole(item.leaf.shape)
    crc = checksums[item.file, item.name]
    piece = Piece(file=item.file, tensor=item.name, crc32c=crc, offset=list(box.offset), shape=list(item.leaf.shape))
    return Leaf(path=item.path, kind="tensor", dtype=tensorfile.dtype_name(item.leaf.dtype), shape=list(box.whole), pieces=[piece])


# --- the manifest -------------------------------------------------------------------------------------------------


def make_manifest(files: list[FileRecord], leaves: list[Leaf], about: About) -> Manifest:
    """Join what was written with what is said about it, under a new id."""
    return Manifest(
        format="purestep.checkpoint",
        format_version=Version(major=MAJOR, minor=MINOR),
        min_reader=MAJOR,
        checkpoint_id=str(uuid.uuid4()),
        parent_id=about.parent_id,
        run_id=about.run_id,
        label=about.label,
        counters=about.counters,
        created=now().isoformat(timespec="microseconds"),
        reason=about.reason,
        writer=_writer(),
        state_schema=about.schema,
        world_size=about.world_size,
        metrics={name: float(value).hex() for name, value in about.metrics.items()},
        finite=about.finite,
        files=files,
        aliases=about.aliases,
        leaves=leaves,
        extra=about.extra,
    )


def now() -> datetime.datetime:
    """The time that goes into a manifest."""
    return datetime.datetime.now(datetime.UTC)


def encode_checked(manifest: Manifest) -> bytes:
    """The manifest's text, if a reader would accept it."""
    text = encode(manifest)
    if len(text) > MAX_MANIFEST_BYTES:
        raise CheckpointSaveError(
            f"the manifest would have {len(text)} bytes, at most {MAX_MANIFEST_BYTES} are allowed; is extra too large?"
        )
    return text


def _writer() -> dict[str, str | int]:
    return {
        "purestep": __version__,
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "byteorder": "little",
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
