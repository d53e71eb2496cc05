"""Saving a state into a directory of its own, in one call that returns when it is safe."""

import os
import stat
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError, CheckpointSaveError
from . import layout
from .hashing import Hash
from .manifest import Reason
from .splitting import MAX_FILE_BYTES, check_limit
from .staging import clean, is_kept
from .store import label_from_name, read_manifest
from .write import about_state, saving, write_checkpoint


def save(
    path: str | os.PathLike,
    state: Any,
    *,
    label: int | None = None,
    extra: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    reason: Reason = "manual",
    hash: Hash = "crc32c",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> str:
    """Write one checkpoint; when this returns, it survives a power loss.

    A complete checkpoint of ours at `path` is replaced in one atomic step: readers, and a crash at any moment, see the old one or
    the new one. Anything else that is not an empty directory is refused, as is a checkpoint that holds a KEEP file.

    Args:
        path: The directory of the checkpoint; missing parents are created.
        state: Any tree of tensors, bools, ints, floats and strings.
        label: Number of the checkpoint; default that in a name like `step-0000000123`, else the state's `batch_count`, else 0.
        extra: Plain JSON to keep beside the state in the same commit, such as the data position; `load_extra` returns it.
        metrics: Numbers by which a checkpoint can be chosen as the best.
        hash: `"crc32c"` keeps the checksum of each tensor; `"sha256"` also that of each file, computed in a second thread beside the
            write, which takes longer than the write itself where no core is free or the disk is fast.
        max_file_bytes: Above this the weights, and the rest likewise, are spread over several files, with an index beside them by which
            other tools find a weight. A tensor is never cut.
        reason: Why it was written; those of reason `final` or `manual` are never deleted by retention.

    Returns:
        The absolute path.

    Raises:
        CheckpointSaveError: If it could not be written; what was there is untouched.
    """
    check_limit(max_file_bytes)
    path = os.path.abspath(os.fspath(path))
    placed = layout.place(state)
    named = label_from_name(os.path.basename(path))
    if label is not None and named not in (None, label):
        raise ValueError(f"{path} bears the number {named}, label= says {label}; a root would not find it")
    about = about_state(state, named if label is None else label, reason=reason, extra=extra, metrics=dict(metrics or {}))
    with saving(path):
        check_replaceable(path)
        parent, name = os.path.split(path)
        if os.path.isdir(parent):
            clean(parent, name)
        write_checkpoint(path, placed, about, hash=hash, max_file_bytes=max_file_bytes)
    return path


def check_replaceable(path: str) -> None:
    """Refuse to write over anything but a complete checkpoint of ours.

    Raises:
        CheckpointSaveError: If something else is there.
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise CheckpointSaveError(f"{path} exists and is not a directory; save to a new name")
    if not os.listdir(path):
        return
    try:
        read_manifest(path)
    except CheckpointError as error:
        raise CheckpointSaveError(
            f"{path} exists and is not a complete checkpoint ({error}); save to a new name or move it away"
        ) from error
    if is_kept(path):
        raise CheckpointSaveError(f"{path} holds a KEEP file; save to a new name, or remove KEEP")
