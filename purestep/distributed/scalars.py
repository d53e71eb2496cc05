"""Numbers of all ranks as one: mean, sum, smallest, largest."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from .topology import Topology

Reduction = Literal["mean", "sum", "min", "max"]
_REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"mean": torch.mean, "sum": torch.sum, "min": torch.amin, "max": torch.amax}


def reduce_scalars(values: Mapping[str, float], topology: Topology, *, how: Reduction = "mean") -> dict[str, float]:
    """Reduce numbers over ranks, on the host; every rank calls this, with the same names in any order.

    The losses and the gradient norm of a step are those of all ranks already; this is for what each rank measures on its own.

    Args:
        values: Numbers by name.
        topology: From `init`.
        how: `"mean"`, `"sum"`, `"min"` or `"max"`.

    Raises:
        ValueError: If `how` is unknown.
    """
    if how not in _REDUCTIONS:
        raise ValueError(f"reduce_scalars: how must be one of {', '.join(_REDUCTIONS)}, got {how!r}")
    names = sorted(values)
    table = torch.zeros(topology.world_size, len(names), dtype=torch.float64)
    table[topology.rank] = torch.tensor([float(values[name]) for name in names], dtype=torch.float64)
    reduced = _REDUCTIONS[how](topology.ranks.sum(table.reshape(-1)).view(table.shape), 0)
    return dict(zip(names, reduced.tolist(), strict=True))
