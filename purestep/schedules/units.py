"""Schedules written in epochs, samples or tokens, read by a count of optimizer steps."""

import torch
from torch import Tensor

from ..core.ranges import POSITIVE, check_numbers
from ..core.schedule import Schedule, as_count


def in_epochs(schedule: Schedule, steps_per_epoch: float, staircase: bool = False) -> Schedule:
    """Read a schedule written in epochs at `count / steps_per_epoch`.

    Args:
        schedule: For example `cosine_decay(1e-3, decay_steps=90)`: 90 epochs.
        steps_per_epoch: Optimizer steps in one pass over the data. Positive.
        staircase: Change only between epochs, as torch's schedulers do when stepped once per epoch.

    Raises:
        ValueError: If `steps_per_epoch` is not positive.

    Reference:
        Ours. With `staircase`, a scheduler of torch 2.13 stepped once per epoch.
    """
    check_numbers("in_epochs", POSITIVE, steps_per_epoch=steps_per_epoch)

    def read(count: Tensor | int) -> Tensor:
        # divided, not multiplied by the inverse: whole epochs must come out whole
        epochs = as_count(count) / steps_per_epoch
        return schedule(torch.floor(epochs) if staircase else epochs)

    return read


def in_samples(schedule: Schedule, batch_size: float) -> Schedule:
    """Read a schedule written in samples at `count * batch_size`.

    Args:
        schedule: Its counts are samples.
        batch_size: Samples per optimizer step, over all micro-batches and ranks. Positive.

    Raises:
        ValueError: If `batch_size` is not positive.

    Reference:
        Ours; `in_tokens` with another unit.
    """
    check_numbers("in_samples", POSITIVE, batch_size=batch_size)
    return lambda count: schedule(as_count(count) * batch_size)


def in_tokens(schedule: Schedule, tokens_per_step: float) -> Schedule:
    """Read a schedule written in tokens at `count * tokens_per_step`.

    Args:
        schedule: Its counts are tokens.
        tokens_per_step: Tokens per optimizer step, over all micro-batches and ranks. Positive.

    Raises:
        ValueError: If `tokens_per_step` is not positive.

    Reference:
        Brown et al., "Language models are few-shot learners", 2020, appendix B, whose schedule counts tokens. arXiv:2005.14165
    """
    check_numbers("in_tokens", POSITIVE, tokens_per_step=tokens_per_step)
    return lambda count: schedule(as_count(count) * tokens_per_step)
