"""From totals and counts of each sample to the numerator and denominator of a term.

Every term comes down to a total and a count (or weight) for each sample. Two means can be made of them: over everything, or of the
means of the samples. In both, what has no label is in neither sum.
"""

import torch
from torch import Tensor

from ..core.loss import Sums


def pool(totals: Tensor, counts: Tensor) -> Sums:
    """Mean over all that was counted: `sum_i total_i / sum_i count_i`.

    Args:
        totals: `(samples,)`, 0 where nothing counts.
        counts: `(samples,)`, the same dtype.
    """
    return Sums(totals.sum(), counts.sum(), sample_means(totals, counts))


def balance(totals: Tensor, counts: Tensor) -> Sums:
    """Mean of the samples' means: `sum_i total_i / count_i`, divided by the number of samples with a label.

    Args:
        totals: `(samples,)`, 0 where nothing counts.
        counts: `(samples,)`, the same dtype.
    """
    present = counts > 0
    means = torch.where(present, totals / torch.where(present, counts, torch.ones_like(counts)), torch.zeros_like(totals))
    return Sums(means.sum(), present.to(totals.dtype).sum(), sample_means(totals, counts))


def sample_means(totals: Tensor, counts: Tensor) -> Tensor:
    """Mean of each sample without a gradient, for reports; NaN where it has no label."""
    return (totals / counts).detach().masked_fill(counts == 0, float("nan"))


def by_sample(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Totals and counts along the first axis.

    Args:
        values: `(samples, ...)`, 0 where not valid.
        valid: Bool, the same shape.
    """
    counted = valid.to(values.dtype)
    if values.ndim == 1:
        return values, counted
    return values.flatten(1).sum(1), counted.flatten(1).sum(1)
