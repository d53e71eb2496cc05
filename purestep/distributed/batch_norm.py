"""Batch normalisation among ranks: statistics of each rank's own share, or of the whole batch.

The state stays the same on every rank either way: with local statistics the running ones are averaged over ranks.
"""

import copy
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.ranks import Ranks

Statistics = Literal["local", "synchronised"]


class _DifferentiableSum(torch.autograd.Function):
    """Sum over ranks. Each rank's loss is a share of the whole, so the gradient of a summand is the sum of all ranks' gradients."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, ranks: Ranks) -> Tensor:
        return ranks.sum(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Ranks], output: Tensor) -> None:
        ctx.ranks = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _DifferentiableSum.apply(gradient, ctx.ranks), None


def with_statistics(models: Any, ranks: Ranks, statistics: Statistics) -> Any:
    """The same modules with batch normalisation that knows of other ranks; parameters are shared with the given ones, not copied."""
    modules = list(models.values()) if isinstance(models, dict) else [models]
    parts = [part for module in modules for part in module.modules()]
    if not any(isinstance(part, _BatchNorm) for part in parts):
        return models
    kept = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(models, kept)  # all at once: two models may share a part
    for module in copied.values() if isinstance(copied, dict) else [copied]:
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.__dict__["forward"] = _Forward(part, ranks, statistics)  # found before the method of the class
    return copied


class _Forward:
    """What a batch normalisation does in place of its own forward."""

    def __init__(self, module: _BatchNorm, ranks: Ranks, statistics: Statistics):
        self.module, self.ranks, self.statistics = module, ranks, statistics

    def __call__(self, x: Tensor) -> Tensor:
        if not self.module.training:  # ranks evaluate each on its own
            return type(self.module).forward(self.module, x)
        return _synchronised(self.module, x, self.ranks) if self.statistics == "synchronised" else _local(self.module, x, self.ranks)


def _local(module: _BatchNorm, x: Tensor, ranks: Ranks) -> Tensor:
    out = type(module).forward(module, x)
    if module.running_mean is not None and module.running_var is not None:
        mean = ranks.sum(torch.cat([module.running_mean, module.running_var])) / ranks.world_size
        # new tensors: the backward pass has kept the old ones, which must not change under it
        module.running_mean, module.running_var = (half.clone() for half in mean.split(module.num_features))
    return out


def _synchronised(module: _BatchNorm, x: Tensor, ranks: Ranks) -> Tensor:
    """Two sums over ranks, mean first and then the squares around it, so that nothing cancels."""
    module._check_input_dim(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    own = wide.new_full((1,), float(x.numel() // max(x.shape[1], 1)))
    summed = _DifferentiableSum.apply(torch.cat([wide.sum(axes), own]), ranks)
    count = summed[-1].detach()
    mean = summed[:-1] / count
    centred = wide - mean.view(shape)
    variance = _DifferentiableSum.apply(centred.square().sum(axes), ranks) / count
    # of a single value nothing can be said about the spread: the variance is 0, not 0 / 0
    _update_statistics(module, mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
    out = centred * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        out = out * module.weight.view(shape) + module.bias.view(shape)
    return out.to(x.dtype)


def _update_statistics(module: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if module.running_mean is None or module.running_var is None:
        return
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    momentum = module.momentum if module.momentum is not None else 1.0 / module.num_batches_tracked.to(mean.dtype)
    module.running_mean.copy_((1 - momentum) * module.running_mean + momentum * mean)
    module.running_var.copy_((1 - momentum) * module.running_var + momentum * variance)
