"""Gradient transforms, one idea per file; `TRANSFORMS` is the table that the laws run over and that a spec chooses from by name.

What a transform is, `chain`, and the selection of leaves live in `core`; finished optimizers in `optimizers`.
"""

from ..core.selection import freeze, masked, partition
from ..core.transform import chain, stateless
from .accumulation import accumulate
from .adam_moments import scale_by_adam
from .clipping import clip, clip_by_global_norm
from .decay import add_decayed_weights
from .momentum import trace
from .nonfinite import skip_nonfinite
from .pass_through import identity, set_to_zero
from .scaling import scale, scale_by_learning_rate, scale_by_schedule

TRANSFORMS = {
    # as they are
    "identity": identity,
    "set_to_zero": set_to_zero,
    # gates
    "accumulate": accumulate,
    "skip_nonfinite": skip_nonfinite,
    # bounds
    "clip": clip,
    "clip_by_global_norm": clip_by_global_norm,
    # scaling
    "scale": scale,
    "scale_by_learning_rate": scale_by_learning_rate,
    "scale_by_schedule": scale_by_schedule,
    "scale_by_adam": scale_by_adam,
    # momentum and decay
    "trace": trace,
    "add_decayed_weights": add_decayed_weights,
}

__all__ = ["TRANSFORMS", "chain", "freeze", "masked", "partition", "stateless", *TRANSFORMS]
