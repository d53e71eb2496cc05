"""Where a run is, and which of its checkpoints is meant."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from ..exits import ExitCode, Refusal
from ..run_directory import command_line, next_free
from .beginning import Start
from .granting import words_of


class Place(NamedTuple):
    """A run, and the label of the checkpoint that a path named."""

    run_dir: str
    step: int | None = None


def place_of(path: str) -> Place:
    """The run that a path is of: its directory, that of its checkpoints, or one of these.

    Raises:
        Refusal: If there is no spec of a run around it.
    """
    from ...checkpoint.store import label_from_name

    whole = os.path.abspath(path)
    around = (whole, os.path.dirname(whole), os.path.dirname(os.path.dirname(whole)))
    depth = next((depth for depth, directory in enumerate(around) if os.path.isfile(os.path.join(directory, "spec.json"))), None)
    if depth is None or not os.path.isdir(whole):
        raise Refusal(f"{path} is no directory of a run: there is no spec.json in it", ExitCode.PATH)
    return Place(around[depth], label_from_name(os.path.basename(whole)) if depth == 2 else None)


def checkpoints_of(run_dir: str) -> list[int]:
    """Labels of the complete checkpoints of a run, oldest first; none if there is no directory of them."""
    from ...checkpoint.store import list_checkpoints

    root = root_of(run_dir)
    return [found.manifest.label for found in list_checkpoints(root)] if os.path.isdir(root) else []


def root_of(run_dir: str) -> str:
    """Where a run keeps its checkpoints."""
    return os.path.join(run_dir, "checkpoints")


def start_at(run_dir: str, step: int | None, branch: bool, trust: Sequence[str] = ()) -> Start:
    """Where to go on.

    Args:
        step: Label of a checkpoint; None: the newest.
        branch: Whether the run goes on in another directory.
        trust: What the command was granted, for the advice.

    Raises:
        Refusal: If there is nothing to go on from, or later checkpoints would be left behind.
    """
    labels = checkpoints_of(run_dir)
    if not labels:
        raise Refusal(f"{run_dir} holds no checkpoints to go on from", ExitCode.PATH)
    if step is not None and step not in labels:
        raise Refusal(f"{run_dir} has no checkpoint {step} (it has {', '.join(map(str, labels))})", ExitCode.PATH)
    if step is not None and step != labels[-1] and not branch:
        elsewhere = ("--step", str(step), "--run-dir", next_free(run_dir))
        again = command_line("purestep", "spec", "resume", run_dir, *elsewhere, *words_of(trust))
        raise Refusal(
            f"{run_dir} has checkpoints after {step}, which would be left behind; go on in another directory", ExitCode.PATH, [again]
        )
    return Start(root_of(run_dir), step)
