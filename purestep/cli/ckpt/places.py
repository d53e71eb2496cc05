"""Which checkpoint a command line means."""

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...checkpoint import Checkpoint
    from ...checkpoint.manifest import Manifest

STEP = click.option("--step", default="latest", show_default=True, metavar="WHICH", help="latest, a label, best:METRIC or best:max:METRIC.")
"""The option by which one of several checkpoints is chosen."""


def checkpoints_of(path: str) -> str:
    """A checkpoint or a directory of checkpoints as it is; of a run, its directory of checkpoints."""
    inner = os.path.join(path, "checkpoints")
    return inner if os.path.isdir(inner) else path


def choose(path: str, step: str) -> "Checkpoint":
    """Open the one that is meant; one that is damaged is refused, and not passed over.

    Args:
        path: A checkpoint, a directory of checkpoints, or a run.
        step: As given on the command line.

    Raises:
        click.BadParameter: If `step` says nothing, or there is nothing to choose from.
        CheckpointError: If there is no such checkpoint, or it is damaged.
    """
    from ...checkpoint.best import parse_best
    from ...checkpoint.restore import with_checkpoint
    from ...checkpoint.store import is_checkpoint

    root = checkpoints_of(path)
    label = int(step) if step.isascii() and step.isdecimal() else None
    if step != "latest" and is_checkpoint(root):
        raise click.BadParameter(f"{root} is one checkpoint; there is nothing to choose from", param_hint="--step")
    if step != "latest" and label is None:
        try:
            parse_best(step)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--step") from error
    return with_checkpoint(root, lambda found: found, step=step if label is None else label, on_corrupt="raise")


def metrics_of(manifest: "Manifest") -> dict[str, float]:
    """The metrics of a manifest as numbers."""
    return {name: float.fromhex(text) for name, text in manifest.metrics.items()}


def validated_weights(checkpoint: "Checkpoint") -> str | None:
    """The weights that the run validated: `raw`, or the name of the hook that averaged them; None if it validated nothing.

    Raises:
        click.BadParameter: If an average was validated, and there are several.
    """
    manifest = checkpoint.manifest
    averaged = metrics_of(manifest).get("validation/ema", _logged(checkpoint.path))
    if averaged is None:
        return None
    paths = [leaf.path.split(".") for leaf in manifest.leaves]
    names = sorted({parts[1] for parts in paths if len(parts) > 3 and parts[0] == "hook_state" and parts[2] == "params"})
    if averaged != 1.0 or not names:
        return "raw"
    if len(names) > 1:
        raise click.BadParameter(f"there are several averages, {', '.join(names)}; name one, or raw", param_hint="--weights")
    return names[0]


def _logged(checkpoint: str) -> float | None:
    """Whether the last validation in the log of the run was of an average, 1 or 0; a checkpoint may be older than the first one."""
    from ...reporting import read_metrics

    log = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(checkpoint))), "metrics.jsonl")
    if not os.path.isfile(log):
        return None
    return next((line["validation/ema"] for line in reversed(read_metrics(log)) if line.get("validation/ema") is not None), None)
