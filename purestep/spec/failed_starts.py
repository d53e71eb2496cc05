"""Directories of runs that ended before they began: nothing in them is worth keeping, and a corrected spec may have their place."""

import json
import os
import re

from ..errors import CheckpointSaveError

_OF_A_START = re.compile(
    r"spec\.json|spec\.source\.json|run\.json|status\.json|metrics\.jsonl|messages\.log|git\.patch|packages\.txt|crash|crash-rank\d+\.txt|ranks|checkpoints"
)
"""What a run has written when it fails at its beginning."""


def is_failed_start(run_dir: str) -> bool:
    """Whether a directory holds a run that failed with no checkpoint, no line in its log, and nothing of anybody else beside it."""
    try:
        with open(os.path.join(run_dir, "status.json"), encoding="utf-8") as file:
            status = json.load(file)
        if not isinstance(status, dict) or status.get("status") != "failed" or is_in_use(run_dir):
            return False
        if not all(_OF_A_START.fullmatch(name) for name in os.listdir(run_dir)):
            return False
        checkpoints = os.path.join(run_dir, "checkpoints")
        kept = os.path.exists(checkpoints) and set(os.listdir(checkpoints)) - {".lock"}
        return not kept and not _has_records(os.path.join(run_dir, "metrics.jsonl"))
    except (OSError, ValueError, AttributeError):
        return False


def is_in_use(run_dir: str) -> bool:
    """Whether a process is at this run: it holds the checkpoints, or is about to take the first."""
    root = os.path.join(run_dir, "checkpoints")
    if not os.path.exists(os.path.join(root, ".lock")):
        return False
    from ..checkpoint.lock import lock_root, unlock_root  # loads torch, which the help of a command can do without

    try:
        unlock_root(lock_root(root))
    except CheckpointSaveError:
        return True
    return False


def _has_records(log: str) -> bool:
    """Whether a log says more than that a run was started."""
    if not os.path.exists(log):
        return False
    with open(log, encoding="utf-8") as file:
        return any(json.loads(line).get("kind") != "start" for line in file if line.strip())
