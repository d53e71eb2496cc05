"""Hooks, one idea per file; `HOOKS` is the table that the laws run over and that a spec chooses from by name.

What a hook is, and what each stage holds, lives in `core/hook.py`. Whatever acts on the world outside is a listener of the loop.
"""

from .augmentation import input_noise, random_rotation
from .frequency import every
from .gradient_statistics import gradient_norm, layer_gradient_norms, nonfinite_location, update_ratios
from .noise_scale import gradient_noise_scale
from .penalties import elastic_weight_consolidation, penalty
from .running_loss import loss_statistics
from .sample_record import hard_examples
from .weight_averages import average, ema, polyak, swa, warmup_decay

HOOKS = {
    # averages of the weights
    "ema": ema,
    "swa": swa,
    "polyak": polyak,
    # what is seen of gradients, updates and losses
    "gradient_norm": gradient_norm,
    "layer_gradient_norms": layer_gradient_norms,
    "update_ratios": update_ratios,
    "nonfinite_location": nonfinite_location,
    "gradient_noise_scale": gradient_noise_scale,
    "loss_statistics": loss_statistics,
    "hard_examples": hard_examples,
    # changes of the input
    "input_noise": input_noise,
    "random_rotation": random_rotation,
    # terms of the loss
    "penalty": penalty,
    "elastic_weight_consolidation": elastic_weight_consolidation,
}

__all__ = ["HOOKS", "average", "every", "warmup_decay", *HOOKS]
