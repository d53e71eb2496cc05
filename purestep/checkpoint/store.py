"""Finding checkpoints and opening them: everything that can be said about one without reading a tensor."""

import hashlib
import itertools
import math
import os
import re
import stat
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFormatError,
    CheckpointGoneError,
    CheckpointIncompleteError,
    CheckpointUnsafeError,
    NoCheckpointError,
)
from . import disk, tensorfile
from .manifest import COMMIT, INDEX, KEEP, MANIFEST, MAX_COMMIT_BYTES, MAX_MANIFEST_BYTES, Manifest, check_commit, decode
from .splitting import index_of
from .strictjson import collector_paused

_NAME = re.compile(r"step-(\d{10})")
MAX_CUT_AXES = 6
DAMAGE = (CheckpointCorruptError, CheckpointFormatError, CheckpointIncompleteError, CheckpointUnsafeError)
_PATIENCE = 60.0  # seconds for which a reader that loses a checkpoint to a writer looks again; each time there is a newer one
T = TypeVar("T")


class Checkpoint(NamedTuple):
    """A committed checkpoint: its directory and its manifest."""

    path: str
    manifest: Manifest


class Listing(NamedTuple):
    """The checkpoints of a root, oldest label first, and what was rejected, with the reason."""

    checkpoints: list[Checkpoint]
    rejected: list[tuple[str, CheckpointError]]


def directory_name(label: int) -> str:
    """Name of a checkpoint in a root.

    Example:
        >>> directory_name(123)
        'step-0000000123'
    """
    if not 0 <= label < 10**10:
        raise ValueError(f"a checkpoint's label must be in 0 .. 10**10 - 1, got {label}")
    return f"step-{label:010d}"


def label_from_name(name: str) -> int | None:
    """The label in a directory's name; None for names that are not ours, `step-0000000100.backup` among them."""
    match = _NAME.fullmatch(name) if name.isascii() else None
    return int(match[1]) if match else None


def read_manifest(path: str | os.PathLike) -> Manifest:
    """Read and check the manifest of one checkpoint; its files are not looked at.

    Raises:
        CheckpointError: Of the class that says what is wrong.
    """
    path = os.fspath(path)
    return patiently(path, lambda: unless_replaced(path, lambda: _read_manifest(path)))


def _read_manifest(path: str) -> Manifest:
    try:
        line = disk.read_small(path, COMMIT, MAX_COMMIT_BYTES)
    except CheckpointCorruptError as error:
        raise CheckpointIncompleteError(f"{path} has no {COMMIT} file; it was never completed, or is not a checkpoint") from error
    text = disk.read_small(path, MANIFEST, MAX_MANIFEST_BYTES)
    check_commit(line, text, path)
    with collector_paused():
        return decode(text, path)


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read the manifest of one checkpoint and compare the directory with it: exactly its files, of the right kind and size.

    One look: if a writer replaces the checkpoint meanwhile, it seems damaged; `unless_replaced` tells the two apart.

    Raises:
        CheckpointError: Of the class that says what is wrong.
    """
    path = os.fspath(path)
    manifest = _read_manifest(path)
    check_directory(path, manifest)
    check_index(path, manifest)
    for leaf in manifest.leaves:
        # an empty list only for scalars, as the manifest's own check has seen
        problem = tiling_problem(leaf.shape, [(piece.offset, piece.shape) for piece in leaf.pieces])
        if problem:
            raise CheckpointFormatError(f"{path}: {leaf.path!r}: {problem}")
    return Checkpoint(path, manifest)


# --- beside a writer ----------------------------------------------------------------------------------------------


def unless_replaced(path: str, attempt: Callable[[], T]) -> T:
    """The result of `attempt`, which looks at a checkpoint.

    Raises:
        CheckpointGoneError: If it looks damaged only because another was put in its place meanwhile.
    """
    seal = _seal(path)
    try:
        return attempt()
    except DAMAGE as error:
        if _seal(path) == seal:
            raise
        raise CheckpointGoneError(f"{path} was replaced while it was being read; load it again") from error


def _seal(path: str) -> bytes | None:
    try:
        return disk.read_small(path, COMMIT, MAX_COMMIT_BYTES)
    except CheckpointError:
        return None


def patiently(path: str, attempt: Callable[[], T]) -> T:
    """The result of `attempt`, which is made again while what it looks at in `path` is deleted or replaced under it.

    A writer may be faster than a reader any number of times, so time bounds the attempts and their number does not.

    Raises:
        CheckpointGoneError: If `path` itself is gone, or the time is over.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return attempt()
        except CheckpointGoneError:
            if time.monotonic() > end or not os.path.lexists(path):
                raise


# --- against the directory ----------------------------------------------------------------------------------------


def check_directory(path: str, manifest: Manifest) -> None:
    """Compare file names, kinds and sizes with the manifest."""
    expected = {record.path: record.bytes for record in manifest.files}
    found = set()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    raise CheckpointUnsafeError(f"{entry.path} is {disk.describe_kind(info.st_mode)}, expected a regular file")
                found.add(entry.name)
                size = expected.get(entry.name, info.st_size)
                if info.st_size != size:
                    raise CheckpointCorruptError(f"{entry.path} has {info.st_size} bytes, {MANIFEST} says {size} (truncated?)")
    except FileNotFoundError as error:
        raise CheckpointGoneError(f"{path} was deleted while it was being read; load the next one") from error
    lost, foreign = sorted(set(expected) - found), sorted(found - set(expected) - {COMMIT, MANIFEST, KEEP})
    if lost:
        raise disk.missing(path, ", ".join(lost))
    if foreign:
        raise CheckpointCorruptError(f"{path}: unexpected file {foreign[0]!r}; a checkpoint holds only what its {MANIFEST} lists")


def check_index(path: str, manifest: Manifest) -> None:
    """Compare the index of weights in several files, if there is one, byte by byte with what the manifest says that it is."""
    record = next((record for record in manifest.files if record.role == "index"), None)
    if record is None:
        return
    expected = index_of(manifest.files, manifest.leaves)
    if record.bytes != len(expected) or disk.read_small(path, INDEX, record.bytes) != expected:
        raise CheckpointCorruptError(f"{path}: {INDEX} does not say where {MANIFEST} has the weights")
    if record.sha256 not in (None, hashlib.sha256(expected).hexdigest()):
        raise CheckpointCorruptError(f"{path}: {INDEX}: sha256 is not the one in {MANIFEST}")


def tiling_problem(shape: list[int], boxes: list[tuple[list[int], list[int]]]) -> str | None:
    """Why boxes do not cover a shape exactly once, or None.

    Args:
        boxes: Offset and shape of each.
    """
    if boxes == [([0] * len(shape), shape)] or not boxes:
        return None
    volume = 0
    for offset, size in boxes:
        if len(offset) != len(shape) or len(size) != len(shape):
            return f"a piece with offset {offset} and shape {size} does not fit shape {shape}"
        if any(o < 0 or s < 0 or o + s > whole for o, s, whole in zip(offset, size, shape, strict=True)):
            return f"the piece at {offset} of shape {size} leaves the shape {shape}"
        volume += math.prod(size)
    total = math.prod(shape)
    if volume != total:
        return f"pieces cover {volume} of {total} elements"
    return None if total == 0 else _parity_problem(shape, boxes)


def _parity_problem(shape: list[int], boxes: list[tuple[list[int], list[int]]]) -> str | None:
    """Whether boxes of the right total volume overlap, in time linear in their number.

    If each corner inside the whole belongs to an even number of boxes, every element is in an odd number of them, hence at least in
    one; with the volume right, in exactly one.
    """
    cut = [axis for axis in range(len(shape)) if any(size[axis] != shape[axis] for _, size in boxes)]
    if len(cut) > MAX_CUT_AXES:
        return f"pieces cut {len(cut)} axes, at most {MAX_CUT_AXES} are supported"
    corners: set[tuple[int, ...]] = set()
    for offset, size in boxes:
        if 0 not in size:
            corners ^= set(itertools.product(*[(offset[axis], offset[axis] + size[axis]) for axis in cut]))
    whole = set(itertools.product(*[(0, shape[axis]) for axis in cut]))
    return None if corners == whole else f"pieces overlap near {list(min(corners ^ whole))}"


def total_bytes(manifest: Manifest) -> int:
    """Bytes of all tensors of a checkpoint once loaded."""
    return sum(tensorfile.num_bytes(tensorfile.dtype_from_name(leaf.dtype), leaf.shape) for leaf in manifest.leaves if leaf.pieces)


# --- roots --------------------------------------------------------------------------------------------------------


def is_checkpoint(path: str) -> bool:
    """Whether a directory is, or was meant to be, one checkpoint rather than a root."""
    return any(os.path.lexists(os.path.join(path, name)) for name in (COMMIT, MANIFEST))


def candidates(root: str) -> list[tuple[int, str]]:
    """Label and path of the real directories in a root that bear the name of a checkpoint, oldest first."""
    if not os.path.isdir(root):
        raise NoCheckpointError(f"{root} is not a directory; expected a checkpoint or a directory of checkpoints")
    with os.scandir(root) as entries:
        found = [(label_from_name(e.name), e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    return sorted((label, path) for label, path in found if label is not None)


def scan(root: str | os.PathLike) -> Listing:
    """Open every checkpoint of a root without reading tensors."""
    good, rejected = [], []
    for label, path in candidates(os.fspath(root)):
        try:
            good.append(_open_settled(path, label))
        except CheckpointGoneError:
            continue
        except CheckpointError as error:
            rejected.append((path, error))
    return Listing(good, rejected)


def _open_settled(path: str, label: int) -> Checkpoint:
    return patiently(path, lambda: unless_replaced(path, lambda: _open_labelled(path, label)))


def _open_labelled(path: str, label: int) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    check_label(checkpoint, label)
    return checkpoint


def list_checkpoints(root: str | os.PathLike) -> list[Checkpoint]:
    """The committed checkpoints of a root, oldest label first; damaged ones are left out (`scan` gives them too).

    Each has `path` and `manifest`, and the manifest `label`, `counters`, `created`, `reason`, `metrics`, `extra`.
    """
    return scan(root).checkpoints


def check_label(checkpoint: Checkpoint, label: int) -> None:
    """Refuse a checkpoint whose directory bears the number of another."""
    if checkpoint.manifest.label != label:
        raise CheckpointCorruptError(f"{checkpoint.path} holds the checkpoint with label {checkpoint.manifest.label}; was it renamed?")


def no_checkpoint(root: str, rejected: list[tuple[str, CheckpointError]]) -> NoCheckpointError:
    """The error for a root without a usable checkpoint; it lists what is there instead."""
    staged = [name for name in os.listdir(root) if name.startswith(".tmp-")]
    reasons = "".join(f"\n  {path}: {error}" for path, error in rejected)
    return NoCheckpointError(
        f"no committed checkpoint in {root} ({len(staged)} incomplete staging directories, {len(rejected)} rejected){reasons}"
    )
