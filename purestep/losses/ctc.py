"""Connectionist temporal classification: the likelihood of a label sequence over all its alignments."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import LossError
from .entropy import pick


def ctc_loss(
    logits: Tensor, logit_paddings: Tensor, labels: Tensor, label_paddings: Tensor, *, blank_id: int = 0, log_epsilon: float = -1e5
) -> Tensor:
    """`-log` of the probability of the labels, summed over all alignments, for each sequence.

    The frames are unrolled in the graph, which therefore grows with their number.

    Args:
        logits: `(B, T, K)`, of `K` classes, the blank among them.
        logit_paddings: `(B, T)`, 1 where a frame is padding, else 0.
        labels: `(B, N)`, integers.
        label_paddings: `(B, N)`, 1 where a label is padding, else 0; padding comes last.
        log_epsilon: Stands for the logarithm of 0.

    Returns:
        `(B,)`.

    Raises:
        LossError: If the shapes do not fit.

    Reference:
        Graves et al., "Connectionist temporal classification", 2006, section 4.1; states as in optax: `phi[n]` is "n labels so far,
        then a blank or nothing", `emit[n]` "label n just emitted".
    """
    _check(logits, logit_paddings, labels, label_paddings)
    logs = torch.log_softmax(logits, -1)
    blank = logs[:, :, blank_id]
    emission = logs.gather(2, labels.to(torch.int64)[:, None, :].expand(-1, logs.shape[1], -1))
    same = F.pad((labels[:, :-1] == labels[:, 1:]).to(logs.dtype), (0, 1))  # the next label is this one: a blank must part them
    start = torch.zeros_like(logs[:, 0, :1])
    phi = torch.cat([start, torch.full_like(emission[:, 0], log_epsilon)], 1)
    emit = torch.full_like(emission[:, 0], log_epsilon)
    for t in range(logs.shape[1]):
        padded = logit_paddings[:, t, None].bool()
        free = _add(phi, emit + log_epsilon * same)
        next_emit = torch.logaddexp(free[:, :-1], emit) + emission[:, t]
        next_phi = _add(free + blank[:, t, None], emit + blank[:, t, None] + log_epsilon * (1 - same))
        emit, phi = torch.where(padded, emit, next_emit), torch.where(padded, phi, next_phi)
    lengths = labels.shape[1] - label_paddings.sum(1).to(torch.int64)
    return -pick(_add(phi, emit), lengths, 1)


def _add(phi: Tensor, arriving: Tensor) -> Tensor:
    """Add probabilities that arrive at all states but the first."""
    return torch.cat([phi[:, :1], torch.logaddexp(phi[:, 1:], arriving)], 1)


def _check(logits: Tensor, logit_paddings: Tensor, labels: Tensor, label_paddings: Tensor) -> None:
    if logits.ndim != 3 or labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        raise LossError(f"ctc_loss: logits must be (B, T, K) and labels (B, N), got {tuple(logits.shape)} and {tuple(labels.shape)}")
    if logit_paddings.shape != logits.shape[:2] or label_paddings.shape != labels.shape:
        raise LossError(
            f"ctc_loss: paddings must be {tuple(logits.shape[:2])} and {tuple(labels.shape)}, "
            f"got {tuple(logit_paddings.shape)} and {tuple(label_paddings.shape)}"
        )
