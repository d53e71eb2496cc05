"""Optimizers that treat a weight as the matrix it is, and hand other leaves to a fallback: Muon, SOAP, Shampoo, GaLore."""

from collections.abc import Sequence
from typing import Any

import torch

from ..core import tree
from ..core.ranges import DECAY, FINITE, NOT_NEGATIVE, check_numbers, check_schedulable
from ..core.schedule import ScalarOrSchedule
from ..core.selection import Mask, masked
from ..core.transform import GradientTransform, chain
from ..core.tree import Tree
from ..transforms.adam_moments import scale_by_adam
from ..transforms.decay import add_decayed_weights
from ..transforms.dimensions import Layout, WeightDimensions, check_patterns, dimensions_by_path, fits
from ..transforms.kronecker import scale_by_shampoo, scale_by_soap
from ..transforms.low_rank import scale_by_galore
from ..transforms.momentum import trace
from ..transforms.orthogonal import Coefficients, Preconditioning, scale_by_muon, scale_by_shape
from ..transforms.root_mean_square import scale_by_rss
from ..transforms.scaling import scale_by_learning_rate


def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Coefficients | Sequence[Coefficients] | str = "standard",
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask | None = None,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps_root: float = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: WeightDimensions = None,
    consistent_rms: float | None = None,
    layout: Layout = "out_in",
    debias: bool = True,
    ns_dtype: torch.dtype | None = None,
    fallback: GradientTransform | None = None,
) -> GradientTransform:
    """Step along orthogonalized momentum where a leaf is a matrix, and by AdamW with Nesterov elsewhere.

    The arguments are optax's, and with `layout="in_out"` the numbers are too; `layout` and what follows it are ours. The equal of
    `torch.optim.Muon(lr, weight_decay, momentum, eps=e, adjust_lr_fn=f)` on two-dimensional leaves is `muon(lr,
    weight_decay=weight_decay, beta=momentum, eps=e, debias=False, ns_dtype=torch.bfloat16, consistent_rms=r)` with `r=None` for
    `f="original"` and `r=0.2` for `f="match_rms_adamw"`; its defaults are `weight_decay=0.1, eps=1e-7`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        ns_coeffs: `(a, b, c)`, or one triple for each step, or a name; see `orthogonalize_via_newton_schulz`.
        ns_steps: Number of Newton-Schulz iterations; at least 1.
        beta: Decay of the mean of matrices, in [0, 1).
        eps: Added to a matrix's norm before the iterations, and Adam's `eps`. Not negative.
        weight_decay: Of the matrices, times the learning rate; number or schedule. Not negative.
        weight_decay_mask: Which matrices decay; all by default.
        mu_dtype: Storage of the means; float32 or wider by default.
        nesterov: Look ahead, for matrices and others.
        adaptive: Multiply by the dual norm of the momentum, see `scale_by_muon`.
        preconditioning: What brings the singular values below 1 at first, see `orthogonalize_via_newton_schulz`.
        adam_b1: Of the fallback, as what begins with `adam_`: decay of the mean, in [0, 1).
        adam_b2: Decay of the squares, in [0, 1).
        adam_eps_root: Added inside the root. Not negative.
        adam_weight_decay: Times the learning rate; number or schedule. Not negative.
        adam_learning_rate: Number or schedule, finite; `learning_rate` by default.
        muon_weight_dimension_numbers: Which leaves are matrices, and how: all of two dimensions, read by `layout`, unless said otherwise.
            `{"embed*": None, "conv*.weight": MuonDimensionNumbers((1, 2, 3), 0)}` leaves embeddings to the fallback and reads torch's
            convolutions as `(out, in * height * width)`. See `dimensions_by_path`.
        consistent_rms: See `scale_by_shape`; 0.2 lets one learning rate serve matrices and fallback. Positive.
        layout: `"out_in"` is torch's `(out, in)`, `"in_out"` optax's `(in, out)`.
        debias: Correct the mean for its start; False is torch's form, see `scale_by_muon`.
        ns_dtype: Of the iterations; float32 or wider by default.
        fallback: For the leaves that are no matrices, in place of AdamW.

    Reference:
        Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. Momentum is optax's (a corrected mean).
    """
    check_numbers("muon", DECAY, adam_b1=adam_b1, adam_b2=adam_b2)
    check_numbers("muon", NOT_NEGATIVE, adam_eps_root=adam_eps_root)
    check_schedulable("muon", NOT_NEGATIVE, adam_weight_decay=adam_weight_decay)
    if adam_learning_rate is not None:
        check_schedulable("muon", FINITE, adam_learning_rate=adam_learning_rate)
    where: dict[str, Any] = {"weight_dimension_numbers": muon_weight_dimension_numbers, "layout": layout}
    how: dict[str, Any] = {"adaptive": adaptive, "preconditioning": preconditioning, "debias": debias, "ns_dtype": ns_dtype}
    matrices = chain(
        scale_by_muon(ns_coeffs, ns_steps, beta, eps, mu_dtype, nesterov=nesterov, **how, **where),
        scale_by_shape(consistent_rms=consistent_rms, **where),
        add_decayed_weights(weight_decay, _by_path(weight_decay_mask)),
        scale_by_learning_rate(learning_rate),
        name="matrices",
    )
    others = chain(
        scale_by_adam(adam_b1, adam_b2, eps, adam_eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(adam_weight_decay),
        scale_by_learning_rate(learning_rate if adam_learning_rate is None else adam_learning_rate),
        name="others",
    )
    return _matrices_and_others(matrices, fallback or others, muon_weight_dimension_numbers, layout, "muon")


def soap(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.95,
    b2: float = 0.95,
    shampoo_beta: float | None = None,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
    *,
    max_precond_dim: int = 10000,
    weight_dimension_numbers: WeightDimensions = None,
    layout: Layout = "out_in",
    fallback: GradientTransform | None = None,
) -> GradientTransform:
    """Run AdamW in the eigenbasis of Shampoo's preconditioners where a leaf is a matrix, and plain elsewhere.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b1: Decay of the mean of gradients, in [0, 1).
        b2: Decay of the squares in the basis, in [0, 1).
        shampoo_beta: Decay of the preconditioners, in [0, 1); `b2` by default.
        eps: Added outside the root, in the units of the gradients. Not negative.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.
        max_precond_dim: A side that is longer is not rotated; a whole number.
        weight_dimension_numbers: Which leaves are matrices, and how, as `muon_weight_dimension_numbers` of `muon`.
        layout: Of two-dimensional leaves: `"out_in"` is torch's, `"in_out"` optax's.
        fallback: Scaling for the leaves that are no matrices; `scale_by_adam(b1, b2, eps)` by default.

    Reference:
        Vyas et al., "SOAP: improving and stabilizing Shampoo using Adam", 2024, Algorithm 3. arXiv:2409.11321. With the changes that
        `scale_by_soap` names.
    """
    where = {"weight_dimension_numbers": weight_dimension_numbers, "layout": layout}
    matrices = scale_by_soap(b1, b2, shampoo_beta, eps, max_precond_dim, **where)
    return chain(
        _matrices_and_others(matrices, fallback or scale_by_adam(b1, b2, eps), **where, name="preconditioner"),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="soap",
    )


def shampoo(
    learning_rate: ScalarOrSchedule,
    b2: float | None = None,
    eps: float = 1e-6,
    momentum: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
    *,
    max_precond_dim: int = 8192,
    graft: bool = False,
    weight_dimension_numbers: WeightDimensions = None,
    layout: Layout = "out_in",
    fallback: GradientTransform | None = None,
) -> GradientTransform:
    """Precondition the gradient from both sides where a leaf is a matrix, and by summed squares elsewhere, with momentum on top.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        b2: None sums squares, as in the paper; a number in [0, 1) takes running means.
        eps: Added to the eigenvalues, times the identity. Not negative.
        momentum: Decay of the sum of preconditioned updates, in [0, 1).
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.
        max_precond_dim: A side that is longer has no preconditioner; a whole number.
        graft: Give each leaf's result the norm of its gradient.
        weight_dimension_numbers: Which leaves are matrices, and how, as `muon_weight_dimension_numbers` of `muon`.
        layout: Of two-dimensional leaves: `"out_in"` is torch's, `"in_out"` optax's.
        fallback: Scaling for the leaves that are no matrices; `scale_by_rss(0.0, eps)` by default, Shampoo's own form for vectors.

    Reference:
        Gupta et al., "Shampoo: preconditioned stochastic tensor optimization", 2018, Algorithm 1. arXiv:1802.09568
    """
    check_numbers("shampoo", DECAY, momentum=momentum)
    where = {"weight_dimension_numbers": weight_dimension_numbers, "layout": layout}
    matrices = scale_by_shampoo(b2, eps, max_precond_dim, graft=graft, **where)
    return chain(
        _matrices_and_others(matrices, fallback or scale_by_rss(0.0, eps), **where, name="preconditioner"),
        trace(momentum),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="shampoo",
    )


def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransform | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
    weight_dimension_numbers: WeightDimensions = None,
    *,
    layout: Layout = "out_in",
) -> GradientTransform:
    """Run Adam on projections of the gradient to a few directions; see `scale_by_galore`.

    Args:
        learning_rate: Factor of the steps: a number, or a schedule of the number of updates so far. Finite; negative climbs.
        rank: Number of directions; at least 1.
        update_proj_gap: Updates between two choices of directions; at least 1.
        scale: Factor on projected updates, the paper's alpha; finite.
        base_optimizer: What runs on the projections; `scale_by_adam()` by default.
        weight_decay: Times the learning rate.
        mask: Which leaves decay; all by default.
        weight_dimension_numbers: Which leaves are projected, and how, as `muon_weight_dimension_numbers` of `muon`.
        layout: Of two-dimensional leaves: `"out_in"` is torch's, `"in_out"` optax's.

    Reference:
        Zhao et al., "GaLore: memory-efficient LLM training by gradient low-rank projection", 2024, Algorithm 2. arXiv:2403.03507. The
        longer side is projected, as in optax.
    """
    return chain(
        scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers, layout=layout),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        name="galore",
    )


def _matrices_and_others(
    matrices: GradientTransform, others: GradientTransform, weight_dimension_numbers: WeightDimensions, layout: Layout, name: str
) -> GradientTransform:
    """Two optimizers, one for the leaves that have dimension numbers; either may have no leaf."""

    def is_matrix(params: Tree) -> Tree:
        check_patterns(weight_dimension_numbers, params)
        return tree.unflatten(
            tree.structure(params), [dims is not None for dims in dimensions_by_path(weight_dimension_numbers, params, layout).values()]
        )

    def is_other(params: Tree) -> Tree:
        return tree.map(lambda hit: not hit, is_matrix(params))

    return chain(masked(matrices, is_matrix), masked(others, is_other), name=name)


def _by_path(mask: Mask | None) -> Mask | None:
    """A mask that also fits the flat dict of a part: a tree of bools is read by the paths of its leaves and branches."""
    if (
        mask is None
        or callable(mask)
        or isinstance(mask, str)
        or (isinstance(mask, list | tuple) and all(isinstance(m, str) for m in mask))
    ):
        return mask
    entries = [("", mask)] if isinstance(mask, bool) else tree.items(mask)
    return lambda params: {path: next(value for entry, value in entries if fits(path, entry)) for path in tree.paths(params)}
