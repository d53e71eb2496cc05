"""A record of the samples with the largest losses: `hard_examples`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.hook import Hook, Stage, StepContext
from ..core.loss import LossOutput, lookup, sum_of
from ..core.ranges import at_least, check_whole
from ..core.schedule import scalar_like
from ..core.state import TrainState
from ..errors import HookError


class HardExamplesState(NamedTuple):
    """The hardest samples so far, hardest first; rows that are still empty have the loss -inf and -1 elsewhere."""

    loss: Tensor  # (size,), float64
    sample: Tensor  # (size,), int64: what the batch calls the sample, or its place in its batch
    batch_count: Tensor  # (size,), int64: batches done before the sample's


def hard_examples(size: int = 16, sample_key: str | None = None, name: str = "hard_examples") -> Hook:
    """Keep the `size` samples with the largest losses seen so far, in the state under `<name>`.

    The loss of a sample is the weighted sum of what the terms say of it; terms that give no values by sample, and missing labels, do
    not count. A sample seen twice may stand there twice. Metric `<name>/largest` is the largest loss of a sample in the batch.

    Args:
        size: Samples to keep; at least 1.
        sample_key: Name of an integer field `(samples,)` of the batch that identifies its samples. None: their place in the batch.
        name: Of the hook and its metric.

    Raises:
        HookError: At the first call, if no term of the loss gives values by sample.
    """
    check_whole("hard_examples", at_least(1), size=size)

    def init(state: TrainState) -> HardExamplesState:
        none = scalar_like(state.params, -1, torch.int64)
        return HardExamplesState(scalar_like(state.params, float("-inf")).repeat(size), none.repeat(size), none.repeat(size))

    def update(state: HardExamplesState, ctx: StepContext) -> tuple[HardExamplesState, StepContext]:
        values = _loss_by_sample(ctx.loss, name)  # type: ignore[arg-type]
        place = torch.arange(values.shape[0], device=values.device)
        sample = place if sample_key is None else _read(ctx.batch, sample_key, name).to(torch.int64)
        batch = ctx.counters.batch_count.expand(values.shape[0])
        losses = torch.cat([state.loss, values])
        order = torch.argsort(losses, descending=True, stable=True)[:size]
        new = HardExamplesState(losses[order], torch.cat([state.sample, sample])[order], torch.cat([state.batch_count, batch])[order])
        return new, ctx.replace(metrics={**ctx.metrics, f"{name}/largest": values.max()})

    # after the backward pass the samples of all parts of a cut batch are together
    return Hook(name, frozenset({Stage.AFTER_BACKWARD}), init, update)


def _loss_by_sample(loss: LossOutput, name: str) -> Tensor:
    given = {term: values for term, values in loss.per_sample.items() if values is not None}
    if not given:
        raise HookError(
            f"hook {name!r}: no term of the loss ({', '.join(loss.sums)}) gives values by sample; let one return Sums(..., per_sample)"
        )
    known = torch.stack([~torch.isnan(values) for values in given.values()]).any(0)
    total = sum_of(loss.weights[term] * torch.nan_to_num(values.to(torch.float64), 0.0, float("inf")) for term, values in given.items())
    return torch.where(known, total, float("-inf"))


def _read(batch: Any, key: str, name: str) -> Tensor:
    parts: Sequence[Any] = batch if type(batch) is tuple else (batch,)  # a batch that the step has cut
    return torch.cat([lookup(part, key, f"hook {name!r}", "field of the batch") for part in parts])
