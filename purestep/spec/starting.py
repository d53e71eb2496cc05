"""The state that a run begins with: new, or new but for weights that come from elsewhere."""

import os

import torch

from ..checkpoint.weights import Report, from_pretrained
from ..core.state import TrainState
from ..training import Training
from .envelope import Source, Spec

CHECKPOINTS = "checkpoints"
"""Where a run keeps its checkpoints, within its directory."""


def first_state(spec: Spec, training: Training, device: torch.device | str | None = None) -> tuple[TrainState, Report | None]:
    """The first state of a run, and which weights were loaded; None if none were asked for.

    Raises:
        CheckpointError: If there are no weights at the path, or they do not fit the model; all differences at once.
        PatternError: If a pattern matches no weight of the model.
    """
    state = training.init(spec.runtime.seed, device)
    source = spec.source
    if source is None:
        return state, None
    loaded = from_pretrained(
        weights_path(source),
        state,
        map=source.rename or None,
        patterns=source.patterns,
        step="latest" if source.step is None else source.step,
        key=source.key,
    )
    return loaded.state, loaded.report


def weights_path(source: Source) -> str:
    """Where the weights are: of a run, in its checkpoints."""
    inside = os.path.join(source.checkpoint_path, CHECKPOINTS)
    return inside if os.path.isdir(inside) else source.checkpoint_path
