"""From metrics to floats: the one place where reporting waits for the device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def read_scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Read all metrics of one element in one go: one transfer for each device, however many metrics there are.

    Args:
        metrics: Tensors or plain numbers by name. What has more than one element, or is no number, is left out.

    Returns:
        Floats by name, in the order given; not finite where the metric is not.

    Example:
        >>> read_scalars({"loss": torch.tensor(0.5), "applied": torch.tensor(True), "histogram": torch.ones(3)})
        {'loss': 0.5, 'applied': 1.0}
    """
    chosen = {name: value for name, value in metrics.items() if _is_scalar(value)}
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, value in chosen.items():
        if isinstance(value, Tensor):
            by_device.setdefault(value.device, {})[name] = value.detach().reshape(()).to(torch.float64)
    read: dict[str, float] = {}
    for tensors in by_device.values():
        read |= dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True))
    return {name: read[name] if name in read else float(value) for name, value in chosen.items()}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float)
