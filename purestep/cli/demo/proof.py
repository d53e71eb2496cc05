"""The proof that a resumed run is the uninterrupted one.

The process that is killed has gone on past its last checkpoint. So at the batch of the kill there are two states, of a run that never
stopped and of one that resumed, and two stretches of log; they are compared bit by bit.
"""

import os
import signal
from typing import Any

import torch
from torch import Tensor

from ...checkpoint import load, save
from ...core import tree
from ...core.event import Event
from ...core.hook import Stage
from ...reporting import ConsoleProgress, read_metrics
from .. import documents
from . import layout


class Kill:
    """Listener that ends its own process after a batch, as a power cut does: nothing is closed, written or said.

    Only the state and the log of this very moment are put aside first, for the comparison.

    Args:
        run_dir: Of the run.
        at: The batch.
        progress: Is closed before, so that the terminal stays usable.
    """

    def __init__(self, run_dir: str, at: int, progress: ConsoleProgress):
        self._run_dir, self._at, self._progress = run_dir, at, progress

    def __call__(self, event: Event) -> None:
        """Kill, if this is the moment."""
        if event.stage is Stage.AFTER_BATCH and event.batch_count == self._at:
            os.makedirs(os.path.join(self._run_dir, layout.PROOF_DIRECTORY), exist_ok=True)
            log = read_metrics(os.path.join(self._run_dir, layout.METRICS))
            documents.write(os.path.join(self._run_dir, layout.KILLED_LOG), {"lines": log})
            save(os.path.join(self._run_dir, layout.KILLED), event.state)
            self._progress.close()
            os.kill(os.getpid(), signal.SIGKILL)


class Comparison:
    """Listener that compares the state and the log with those of the killed process, at the batch at which it died.

    Args:
        run_dir: Of the run.
        at: The batch.
        progress: Is told what came out.
    """

    def __init__(self, run_dir: str, at: int, progress: ConsoleProgress):
        self._run_dir, self._at, self._progress = run_dir, at, progress
        self._resumed_at = 0

    def __call__(self, event: Event) -> None:
        """Compare, if this is the moment, and write down what came out."""
        if event.stage is Stage.BEFORE_TRAINING:
            self._resumed_at = event.batch_count
        if event.stage is not Stage.AFTER_BATCH or event.batch_count != self._at:
            return
        killed = load(os.path.join(self._run_dir, layout.KILLED), like=event.state)
        leaves = differing_leaves(killed, event.state)
        before = documents.read(os.path.join(self._run_dir, layout.KILLED_LOG))["lines"]
        after = read_metrics(os.path.join(self._run_dir, layout.METRICS))
        anew = sum(line["batch"] > self._resumed_at for line in after)
        proof = {
            "resumed_after_batch": self._resumed_at,
            "compared_after_batch": self._at,
            "leaves": len(tree.leaves(killed)),
            "differing_leaves": leaves,
            "log_lines": anew,
            "same_log": before == after,
            "bitwise": not leaves and before == after and bool(before),
        }
        documents.write(os.path.join(self._run_dir, layout.PROOF), proof)
        self._progress.note(proof_text(proof))


def differing_leaves(one: Any, other: Any) -> list[str]:
    """Paths of the leaves whose bits are not the same; `<structure>` if the trees do not even have the same leaves."""
    first, second = dict(tree.items(one)), dict(tree.items(other))
    if first.keys() != second.keys():
        return ["<structure>"]
    return [path for path in first if not same_bits(first[path], second[path])]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same bit for bit: -0.0 differs from 0.0, a NaN equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)


def proof_text(proof: dict[str, Any]) -> str:
    """What came out, in one line."""
    if not proof["bitwise"]:
        parts = [*proof["differing_leaves"], *([] if proof["same_log"] else ["the log"])]
        return f"the resumed run DIFFERS from the killed one after batch {proof['compared_after_batch']}: {', '.join(parts)}"
    return (
        f"batch {proof['compared_after_batch']} reached again: all {proof['leaves']} leaves of the state and all "
        f"{proof['log_lines']} lines of the log are bitwise those of the killed process"
    )
