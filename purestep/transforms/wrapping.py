"""What a wrapper around another transform does with a verdict: open what `update` returned, and close it again."""

from typing import Any

import torch
from torch import Tensor

from ..core.transform import Gated, silence
from ..core.tree import Tree


def open_gate(returned: Any) -> tuple[Tree, Tensor | None, Tensor | None]:
    """Updates, `apply` and `reject`; without a gate the verdicts are None."""
    return (returned.updates, returned.apply, returned.reject) if isinstance(returned, Gated) else (returned, None, None)


def close_gate(updates: Tree, apply: Tensor | None, reject: Tensor | None) -> Any:
    """Put the verdict back around updates that were changed since."""
    if apply is None:
        return updates
    return Gated(silence(updates, apply), apply, torch.zeros_like(apply) if reject is None else reject)
