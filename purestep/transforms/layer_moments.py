"""NovoGrad: one second moment for each leaf."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .moments import wide_dtype, widen, zeros_of_moments
from .parameters import wide_params


class ScaleByNovogradState(NamedTuple):
    """State of `scale_by_novograd`."""

    count: Tensor  # 0-d int64, updates so far
    weight_decay: Hyperparam
    mu: Tree  # decaying sum of normalized updates
    nu: Tree  # running mean of squared norms, 0-d for each leaf


def scale_by_novograd(
    b1: float = 0.9,
    b2: float = 0.25,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Normalize each leaf by its running norm, decay, and sum: `m <- b1 m + u / (sqrt(v + eps_root) + eps) + weight_decay p; u <- m`.

    `v <- b2 v + (1 - b2) |u|^2` for each leaf, `|u|^2` at the first update.

    Args:
        b1: Decay of the sum, in [0, 1).
        b2: Decay of the squared norms, in [0, 1).
        eps: Added outside the root, in the units of the updates. Not negative.
        eps_root: Added inside the root, in the units of squared updates. Not negative.
        weight_decay: Times the parameters, added to the normalized update; number or schedule. Not negative.
        mu_dtype: Storage of `m`; float32 or wider by default.

    Reference:
        Ginsburg et al., "Stochastic gradient methods with layer-wise adaptive moments for training of deep networks", 2019,
        Algorithm 1. arXiv:1905.11286
    """
    check_numbers("scale_by_novograd", DECAY, b1=b1, b2=b2)
    check_numbers("scale_by_novograd", NOT_NEGATIVE, eps=eps, eps_root=eps_root)
    check_schedulable("scale_by_novograd", NOT_NEGATIVE, weight_decay=weight_decay)

    def init(params: Tree) -> ScaleByNovogradState:
        nu = tree.map(lambda p: torch.zeros((), dtype=wide_dtype(p.dtype).to_real(), device=p.device), params)
        scalars = (scalar_like(params, 0, torch.int64), init_hyperparam(weight_decay, params))
        return ScaleByNovogradState(*scalars, zeros_of_moments(params, mu_dtype), nu)

    def update(updates: Tree, state: ScaleByNovogradState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByNovogradState]:
        leaves, structure = tree.flatten(updates)
        wide, p = widen(leaves), wide_params(params, "scale_by_novograd")
        decay, old_mu = next_hyperparam(weight_decay, state.weight_decay), tree.leaves(state.mu)
        squares = [torch.linalg.vector_norm(u) ** 2 for u in wide]
        share = 1 - b2 * (state.count > 0).double()
        nu = leafwise.lerp(tree.leaves(state.nu), squares, share)
        normalized = [u / ((v + eps_root).sqrt() + eps) for u, v in zip(wide, nu, strict=True)]
        entering = leafwise.add(normalized, leafwise.mul(p, decay.value))
        mu = leafwise.add(leafwise.mul(leafwise.cast(old_mu, [u.dtype for u in wide]), b1), entering)
        stored = leafwise.cast(mu, [m.dtype for m in old_mu])
        new = ScaleByNovogradState(state.count + 1, decay, tree.unflatten(structure, stored), tree.unflatten(structure, nu))
        return tree.unflatten(structure, mu), new

    return GradientTransform(init, update, "scale_by_novograd")
