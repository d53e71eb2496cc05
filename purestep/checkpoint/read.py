"""Reading tensors out of the files of an open checkpoint, with every byte checked on the way.

The bytes go straight into the memory they are meant for, in one pass over each file; the file's SHA-256 is computed beside it.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import google_crc32c
import numpy as np
import torch
from torch import Tensor

from ..core.saved_parts import Box
from ..errors import CheckpointCorruptError, CheckpointUnsafeError
from . import disk, tensorfile
from .hashing import MAX_QUEUED, Hasher, hashing
from .manifest import FileRecord, Leaf, Manifest, Piece
from .store import Checkpoint
from .strictjson import collector_paused

# crc: every header byte by byte, and the CRC-32C of each tensor that is read; full: also the SHA-256 of each file that is touched
Verify = Literal["full", "crc"]
MAX_READERS = 4
PARALLEL_BYTES = 16 << 20  # below this, starting threads takes longer than reading


class Request(NamedTuple):
    """A box of a leaf, and the dense host tensor of its shape that it shall fill."""

    leaf: Leaf
    box: Box
    target: Tensor


class _Part(NamedTuple):
    leaf: Leaf
    piece: Piece


def new_tensor(leaf: Leaf, shape: Sequence[int]) -> Tensor:
    """Host memory for a leaf, or for a box of it."""
    return torch.empty(tuple(shape), dtype=tensorfile.dtype_from_name(leaf.dtype))


def check_memory(manifest: Manifest, num_bytes: int, path: str) -> None:
    """Refuse to allocate what the machine cannot hold, before anything is allocated.

    Raises:
        CheckpointUnsafeError: If the tensors need more than the machine's memory.
    """
    limit = disk.memory_bytes()
    if num_bytes > limit:
        raise CheckpointUnsafeError(f"{path}: {len(manifest.leaves)} leaves need {num_bytes} bytes, this machine has {limit}")


def read_all(checkpoint: Checkpoint, requests: list[Request], verify: Verify = "crc") -> None:
    """Fill the target of each request.

    Raises:
        CheckpointCorruptError: If a checksum, a header or a size differs from the manifest; all damaged tensors are named.
    """
    wanted: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        for piece in request.leaf.pieces:
            if _overlap(piece, request) is not None:
                wanted.setdefault((piece.file, piece.tensor), []).append(request)
    damaged: list[str] = []
    parts = parts_by_file(checkpoint.manifest)
    for record in checkpoint.manifest.files:
        in_file = {tensor: found for (file, tensor), found in wanted.items() if file == record.path}
        if in_file:
            damaged += _read_file(checkpoint, record, parts[record.path], in_file, verify)
    _raise_damaged(checkpoint, damaged)


def check_all(checkpoint: Checkpoint) -> None:
    """Read every byte of a checkpoint and compare all checksums, in constant memory.

    Raises:
        CheckpointCorruptError: If anything differs; all damaged tensors are named.
    """
    damaged: list[str] = []
    parts = parts_by_file(checkpoint.manifest)
    for record in checkpoint.manifest.files:
        if record.role != "index":  # compared when the checkpoint was opened
            damaged += _read_file(checkpoint, record, parts.get(record.path, {}), {}, "full")
    _raise_damaged(checkpoint, damaged)


def _raise_damaged(checkpoint: Checkpoint, damaged: list[str]) -> None:
    if damaged:
        count = sum(len(leaf.pieces) for leaf in checkpoint.manifest.leaves)
        raise CheckpointCorruptError(f"{checkpoint.path}: " + "; ".join(damaged[:20]) + f"; {len(damaged)} of {count} tensors damaged")


def parts_by_file(manifest: Manifest) -> dict[str, dict[str, _Part]]:
    """Leaf and piece of each tensor of each file."""
    parts: dict[str, dict[str, _Part]] = {}
    for leaf in manifest.leaves:
        for piece in leaf.pieces:
            parts.setdefault(piece.file, {})[piece.tensor] = _Part(leaf, piece)
    return parts


def _read_file(
    checkpoint: Checkpoint, record: FileRecord, parts: Mapping[str, _Part], wanted: Mapping[str, list[Request]], verify: Verify
) -> list[str]:
    with disk.open_regular(checkpoint.path, record.path) as fd, hashing(verify == "full" and record.sha256 is not None) as hasher:
        header, entries = read_header(fd, record, os.path.join(checkpoint.path, record.path), parts)
        _feed(hasher, header)
        needed = [entry for entry in entries if verify == "full" or entry.name in wanted]

        def read(entry: tensorfile.Entry) -> str:
            return _read_entry(fd, len(header) + entry.begin, entry, parts[entry.name], wanted.get(entry.name, ()), hasher)

        # the hasher wants the bytes in order; without it, several threads share the page faults of new memory
        if hasher is None and sum(entry.end - entry.begin for entry in needed) > PARALLEL_BYTES:
            with ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1)) as readers:
                found = list(readers.map(read, needed))
        else:
            found = [read(entry) for entry in needed]
        damaged = [
            f"{record.path}: tensor {entry.name!r} crc32c {crc} expected {parts[entry.name].piece.crc32c}"
            for entry, crc in zip(needed, found, strict=True)
            if crc != parts[entry.name].piece.crc32c
        ]
        if hasher is not None and (sha256 := hasher.digest()) != record.sha256 and not damaged:
            damaged.append(f"{record.path}: sha256 {sha256[:12]}... expected {str(record.sha256)[:12]}..., though each crc32c holds")
    return damaged


def _feed(hasher: Hasher | None, block) -> None:
    if hasher is not None:
        hasher.update(block)


def read_header(fd: int, record: FileRecord, where: str, parts: Mapping[str, _Part]) -> tuple[bytes, list[tensorfile.Entry]]:
    """Read the header of an open file, check it on its own, and then against the manifest.

    Raises:
        CheckpointFormatError: If the header is malformed.
        CheckpointCorruptError: If it does not say what the manifest says.
    """
    prefix = bytearray(8)
    got = disk.read_into(fd, memoryview(prefix))
    length = tensorfile.header_length(bytes(prefix[:got]), record.bytes, where)
    text = bytearray(length)
    disk.read_into(fd, memoryview(text), 8)
    with collector_paused():
        entries = tensorfile.parse_header(bytes(text), record.bytes - 8 - length, where)
    for entry in entries:
        if entry.name not in parts:
            raise CheckpointCorruptError(f"{where}: tensor {entry.name!r} is not in the manifest")
        part = parts[entry.name]
        dtype, shape = tensorfile.stored_form(tensorfile.dtype_from_name(part.leaf.dtype), part.piece.shape)
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise CheckpointCorruptError(
                f"{where}: {entry.name!r} is {entry.dtype}{list(entry.shape)} in the file, {dtype}{list(shape)} in the manifest"
            )
    lost = set(parts) - {entry.name for entry in entries}
    if lost:
        raise CheckpointCorruptError(f"{where}: tensor {min(lost)!r} is in the manifest, but not in the file")
    header = bytes(prefix) + bytes(text)
    if header != tensorfile.make_header({entry.name: (entry.dtype, entry.shape) for entry in entries})[0]:
        raise CheckpointCorruptError(f"{where}: the header says what the manifest says, but not in the words that were written")
    return header, entries


def _read_entry(fd: int, offset: int, entry: tensorfile.Entry, part: _Part, requests: Sequence[Request], hasher: Hasher | None) -> str:
    """Read one tensor into the memory that wants it; its checksum."""
    if not requests:
        return _stream(fd, offset, entry.end - entry.begin, hasher)
    direct = [request for request in requests if _is_direct(part.piece, request)]
    memory = direct[0].target if direct else new_tensor(part.leaf, part.piece.shape)
    crc = _fill(fd, offset, tensorfile.byte_view(memory), hasher)
    for request in requests:
        shared = _overlap(part.piece, request)
        if request.target is not memory and shared:
            request.target[shared.there] = memory[shared.here]
    return crc


def _fill(fd: int, offset: int, memory: np.ndarray, hasher: Hasher | None) -> str:
    return _read_blocks(fd, offset, (memory[begin : begin + disk.SLICE] for begin in range(0, len(memory), disk.SLICE)), hasher)


def _stream(fd: int, offset: int, num_bytes: int, hasher: Hasher | None) -> str:
    # a slice is written again only after more others than the hasher can hold at a time
    ring = itertools.cycle([np.empty(min(disk.SLICE, num_bytes), dtype=np.uint8) for _ in range(MAX_QUEUED + 2)])
    sizes = (min(disk.SLICE, num_bytes - begin) for begin in range(0, num_bytes, disk.SLICE))
    return _read_blocks(fd, offset, (block[:size] for size, block in zip(sizes, ring, strict=False)), hasher)


def _read_blocks(fd: int, offset: int, blocks: Iterable[np.ndarray], hasher: Hasher | None) -> str:
    crc = 0
    for block in blocks:
        if disk.read_into(fd, memoryview(block.data), offset) < len(block):
            return "of a truncated file"
        offset += len(block)
        crc = google_crc32c.extend(crc, block)
        _feed(hasher, block)
    return f"{crc:08x}"


# --- boxes --------------------------------------------------------------------------------------------------------


def _is_direct(piece: Piece, request: Request) -> bool:
    """Whether a piece is exactly the requested box, so that its bytes can be read in place."""
    same = list(request.target.shape) == piece.shape and list(request.box.offset) == piece.offset
    return same and request.target.is_contiguous()


class _Shared(NamedTuple):
    here: tuple[slice, ...]
    there: tuple[slice, ...]


def _overlap(piece: Piece, request: Request) -> _Shared | None:
    """Where a piece and a requested box meet, as slices of the piece and of the target; None if they do not."""
    here, there = [], []
    for at, size, begin, length in zip(piece.offset, piece.shape, request.box.offset, request.target.shape, strict=True):
        low, high = max(at, begin), min(at + size, begin + length)
        if low >= high:
            return None
        here.append(slice(low - at, high - at))
        there.append(slice(low - begin, high - begin))
    return _Shared(tuple(here), tuple(there))
