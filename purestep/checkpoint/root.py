"""What a writer does in its root around a save: refuse to go back, make way for a label, refresh the links, delete what is old."""

import logging
import os
import uuid
from collections.abc import Collection
from contextlib import suppress

from ..errors import CheckpointError, CheckpointSaveError
from . import disk, retention
from .best import best_of
from .restore import being_read, verify
from .retention import Policy
from .staging import discard, is_kept, link_name
from .store import candidates, directory_name, read_manifest, scan

_log = logging.getLogger("purestep.checkpoint")


def refuse_to_go_back(root: str, label: int) -> None:
    """Make sure that a checkpoint with this label will be the newest of its root.

    Otherwise loading from the root would give another one than the latest that was saved. Damaged checkpoints with a higher label
    are set aside under another name.

    Raises:
        CheckpointSaveError: If an intact one has a higher label.
    """
    for other, path in candidates(root):
        if other <= label:
            continue
        try:
            verify(path)
        except CheckpointError as error:
            _set_aside(path, error)
            continue
        raise CheckpointSaveError(
            f"{root} has {directory_name(other)}, which is newer than label {label}; continue from it, choose a new root, or move it away"
        )


def make_way(path: str, run_id: str) -> None:
    """Make sure that a checkpoint may be written at `path`: nothing is there, or one of this run, or a damaged one, which is set aside.

    Raises:
        CheckpointSaveError: If one of another run is there, or one that a KEEP file protects.
    """
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        raise CheckpointSaveError(f"{path} exists and is not a directory; move it away")
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        _set_aside(path, error)
        return
    if manifest.run_id != run_id:
        raise CheckpointSaveError(f"{path} belongs to another run ({manifest.run_id}); choose a new root")
    if is_kept(path):
        raise CheckpointSaveError(f"{path} holds a KEEP file and would be replaced; choose a new root, or remove KEEP")


def _set_aside(path: str, error: CheckpointError) -> None:
    aside = f"{path}.damaged-{uuid.uuid4().hex[:8]}"
    _log.error("damaged checkpoint set aside as %s: %s", aside, error)
    disk.rename(path, aside)
    disk.sync_dir(os.path.dirname(path))


def refresh_links(root: str, path: str, policy: Policy) -> None:
    """Point `latest` and `best` at checkpoints, for people; loading never follows them, so failure does not matter."""
    links = {"latest": path}
    if policy.keep_best:
        rule = policy.keep_best[0]
        best = best_of(scan(root).checkpoints, rule.metric, rule.mode)
        links |= {"best": best[0].path} if best else {}
    for name, target in links.items():
        link = os.path.join(root, name)
        if os.path.islink(link) or not os.path.lexists(link):
            with suppress(OSError):
                disk.point_link(link, os.path.basename(target), link_name(root))


def apply_retention(root: str, policy: Policy, run_id: str, protected: Collection[str] = ()) -> list[str]:
    """Delete what no rule keeps; called only when the newest checkpoint is safe.

    Returns:
        The deleted paths. What cannot be deleted is logged and tried again next time.
    """
    found = scan(root).checkpoints
    kept = {checkpoint.path for checkpoint in found if is_kept(checkpoint.path)}
    deleted = []
    for checkpoint in retention.plan(found, policy, run_id=run_id, protected={*kept, *protected, *being_read()}).delete:
        try:
            discard(checkpoint.path)
            deleted.append(checkpoint.path)
        except OSError as error:
            _log.warning("could not delete %s: %s", checkpoint.path, error)
    return deleted
