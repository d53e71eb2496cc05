"""How much gradients differ from batch to batch, against what they agree on: `gradient_noise_scale`."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.hook import Hook, Stage, StepContext
from ..core.loss import divide
from ..core.ranges import DECAY, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.state import TrainState


class NoiseScaleState(NamedTuple):
    """State of `gradient_noise_scale`; scalars are 0-d float64."""

    total: dict[str, Tensor]  # sum of gradients over the open window, by path; float32 or wider
    squares: Tensor  # sum of squared norms over the open window
    batches: Tensor  # 0-d int64, batches in the open window
    signal: Tensor  # running mean of the estimates of the squared norm of the true gradient
    noise: Tensor  # running mean of the estimates of the trace of the covariance of one batch's gradient


def gradient_noise_scale(window: int = 8, decay: float = 0.9, name: str = "noise_scale") -> Hook:
    """Estimate the gradient noise scale from single batches and means over `window` of them.

        signal = (window |G|^2 - mean |g|^2) / (window - 1);  noise = (mean |g|^2 - |G|^2) / (1 - 1 / window)

    with `g` a batch's gradient and `G` their mean. Metric `<name>` is `noise / signal`, in batches: times the batch size it says about
    how large a batch still pays. NaN until the first window is full. Weights that move within a window add to the noise; inside a
    window of `accumulate` they stand still. Frozen parameters cost memory, and nothing else. A gradient that is not finite is left out.

    Args:
        window: Batches a mean is taken over; at least 2.
        decay: Of the running means of signal and noise, by window; in [0, 1).
        name: Of the hook and its metric.

    Reference:
        McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1 (with a batch as the small
        batch and the window as the large one). arXiv:1812.06162
    """
    check_whole("gradient_noise_scale", at_least(2), window=window)
    check_numbers("gradient_noise_scale", DECAY, decay=decay)

    def init(state: TrainState) -> NoiseScaleState:
        floating = {path: p for path, p in tree.items(state.params) if p.is_floating_point() or p.is_complex()}
        total = {path: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for path, p in floating.items()}
        empty, unknown = scalar_like(state.params, 0.0), scalar_like(state.params, float("nan"))
        return NoiseScaleState(total, empty, scalar_like(state.params, 0, torch.int64), unknown, unknown.clone())

    def update(state: NoiseScaleState, ctx: StepContext) -> tuple[NoiseScaleState, StepContext]:
        square = tree.global_norm(ctx.grads).square()
        added = {path: state.total[path] + grad for path, grad in tree.items(ctx.grads)}
        grown = state._replace(total={**state.total, **added}, squares=state.squares + square, batches=state.batches + 1)
        new = tree.where(grown.batches == window, _closed(grown, window, decay), grown)
        new = tree.where(torch.isfinite(square), new, state)
        return new, ctx.replace(metrics={**ctx.metrics, name: divide(new.noise, new.signal)})

    return Hook(name, frozenset({Stage.AFTER_BACKWARD}), init, update)


def _closed(state: NoiseScaleState, window: int, decay: float) -> NoiseScaleState:
    """The state after a full window: estimates taken in, sums emptied."""
    one = state.squares / window
    many = tree.global_norm(state.total).square() / window**2
    signal, noise = (window * many - one) / (window - 1), (one - many) / (1.0 - 1.0 / window)
    first = torch.isnan(state.signal)
    return NoiseScaleState(
        total=tree.zeros_like(state.total),
        squares=torch.zeros_like(state.squares),
        batches=torch.zeros_like(state.batches),
        signal=torch.where(first, signal, decay * state.signal + (1.0 - decay) * signal),
        noise=torch.where(first, noise, decay * state.noise + (1.0 - decay) * noise),
    )
