"""Directories of runs that ended before they began: nothing in them is worth keeping, and a corrected spec may have their place."""

import json
import os

_OF_A_START = {"spec.json", "run.json", "status.json", "metrics.jsonl", "crash-rank0.txt", "checkpoints"}
"""What a run has written when it fails at its beginning."""


def is_failed_start(run_dir: str) -> bool:
    """Whether a directory holds a run that failed with no checkpoint, no line in its log, and nothing of anybody else beside it."""
    try:
        with open(os.path.join(run_dir, "status.json"), encoding="utf-8") as file:
            status = json.load(file)
        if not isinstance(status, dict) or status.get("status") != "failed" or not set(os.listdir(run_dir)) <= _OF_A_START:
            return False
        checkpoints = os.path.join(run_dir, "checkpoints")
        kept = os.path.exists(checkpoints) and set(os.listdir(checkpoints)) - {".lock"}
        return not kept and not _has_records(os.path.join(run_dir, "metrics.jsonl"))
    except (OSError, ValueError, AttributeError):
        return False


def _has_records(log: str) -> bool:
    """Whether a log says more than that a run was started."""
    if not os.path.exists(log):
        return False
    with open(log, encoding="utf-8") as file:
        return any(json.loads(line).get("kind") != "start" for line in file if line.strip())
