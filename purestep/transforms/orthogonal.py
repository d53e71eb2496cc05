"""Muon's parts: momentum whose matrices are made orthogonal by Newton-Schulz iterations, and the scale that their shapes ask for.

Which dimensions form the matrix is said in `dimensions.py`; the finished optimizer, with a fallback for other leaves, is
`optimizers/matrix_methods.py`.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import tree
from ..core.ranges import DECAY, NOT_NEGATIVE, POSITIVE, at_least, check_numbers, check_whole
from ..core.schedule import scalar_like
from ..core.transform import GradientTransform
from ..core.tree import Tree
from . import leafwise
from .corrected_mean import corrected_mean
from .dimensions import Layout, MuonDimensionNumbers, WeightDimensions, as_matrices, dimensions_of, fans, finite_or_zero, from_matrices
from .moments import decay_mean, widen, zeros_of_moments

Preconditioning = Literal["frobenius", "spectral", "aol", "schatten"]
Coefficients = tuple[float, float, float]

NS_COEFFS = {
    "standard": (3.4445, -4.775, 2.0315),
    "dion": (
        (4.0848, -6.8946, 2.927),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
"""Coefficients by name: those of Muon, and those of Dion, one triple for each of five steps."""


def orthogonalize_via_newton_schulz(
    x: Tensor,
    ns_coeffs: Coefficients | Sequence[Coefficients] | str = "standard",
    ns_steps: int = 5,
    preconditioning: Preconditioning = "frobenius",
    eps: float = 1e-8,
    dimension_numbers: MuonDimensionNumbers | None = None,
    *,
    ns_dtype: torch.dtype | None = None,
) -> Tensor:
    """Move the singular values of a matrix towards 1 and keep its singular vectors: `U S V^T` becomes about `U V^T`.

    Each step is `X <- a X + (b A + c A^2) X` with `A = X X^T`. Muon's coefficients do not converge to 1 but to about [0.7, 1.2],
    which they reach in five steps.

    Args:
        x: A matrix; with `dimension_numbers` any leaf of two or more dimensions.
        ns_coeffs: `(a, b, c)`, or one triple for each step (the last `ns_steps` of them are used), or a name in `NS_COEFFS`.
        ns_steps: Number of iterations.
        preconditioning: What brings the singular values below 1 at first: division by the Frobenius norm or by the spectral norm
            (which takes a singular value decomposition); or a rescaling inside the first step, of each row (`"aol"`) or by the
            Schatten 4-norm (`"schatten"`).
        eps: Added to the norm; least value of the rescaling.
        ns_dtype: Of the iterations; that of `x`, but at least float32, by default. bfloat16 is what `torch.optim.Muon` uses.

    Returns:
        Shape of `x`, float32 or wider.

    Raises:
        ValueError: If the coefficients are too few, or a name is unknown.

    Reference:
        Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. Bernstein and Newhouse, "Old optimizer, new
        norm", 2024. arXiv:2409.20325. Boissin et al., "Turbo-Muon", 2025 (rescaling inside the first step).
    """
    wide = widen([x])[0]
    dims = dimension_numbers or MuonDimensionNumbers(1, 0)
    matrices = as_matrices(wide, dims).to(ns_dtype or wide.dtype)
    return from_matrices(_orthogonal(matrices, _steps(ns_coeffs, ns_steps), preconditioning, eps).to(wide.dtype), wide, dims)


def _steps(ns_coeffs: Coefficients | Sequence[Coefficients] | str, ns_steps: int) -> list[Coefficients]:
    """One triple for each step."""
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in NS_COEFFS:
            raise ValueError(f"unknown ns_coeffs {ns_coeffs!r} (known: {', '.join(NS_COEFFS)}); or give (a, b, c)")
        ns_coeffs = NS_COEFFS[ns_coeffs]
    several = [tuple(row) for row in ns_coeffs] if isinstance(ns_coeffs[0], Sequence) else [tuple(ns_coeffs)] * ns_steps  # type: ignore[arg-type]
    if len(several) < ns_steps or any(len(row) != 3 for row in several):
        raise ValueError(f"ns_coeffs must be (a, b, c), or at least ns_steps = {ns_steps} such triples, got {ns_coeffs}")
    return several[len(several) - ns_steps :]  # type: ignore[return-value]


def _orthogonal(x: Tensor, steps: list[Coefficients], preconditioning: str, eps: float) -> Tensor:
    if preconditioning not in ("frobenius", "spectral", "aol", "schatten"):
        raise ValueError(f"unknown preconditioning {preconditioning!r} (known: frobenius, spectral, aol, schatten)")
    if x.shape[-2] > x.shape[-1]:  # the smaller of the two Gram matrices
        return _orthogonal(x.mT, steps, preconditioning, eps).mT
    if preconditioning in ("frobenius", "spectral"):
        norm = torch.linalg.matrix_norm(x, keepdim=True) if preconditioning == "frobenius" else _spectral_norm(x)
        x = x / (norm + eps)
    for number, (a, b, c) in enumerate(steps):
        gram = x @ x.mH
        if number == 0 and preconditioning in ("aol", "schatten"):
            size = gram.abs().sum(-1, keepdim=True) if preconditioning == "aol" else torch.linalg.matrix_norm(gram, keepdim=True)
            scale = size.clamp(min=eps).rsqrt()
            x, gram = x * scale, gram * scale * scale.mT
        x = _fused(x, _fused(gram, gram, gram, b, c), x, a, 1.0)
    return x


def _spectral_norm(x: Tensor) -> Tensor:
    """Largest singular value, with two dimensions of size 1."""
    return torch.linalg.svdvals(finite_or_zero(x))[..., :1].unsqueeze(-1)


def _fused(x: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    """`beta x + alpha left @ right`, rounded once where the dtype is narrow."""
    multiply = torch.addmm if x.ndim == 2 else torch.baddbmm
    return multiply(x, left, right, beta=beta, alpha=alpha)


@tree.node(static=("dimensions",))
class ScaleByMuonState:
    """State of `scale_by_muon`."""

    count: Tensor  # 0-d int64, updates so far
    mu: Tree  # running mean of updates
    dimensions: tuple[MuonDimensionNumbers, ...]  # of each leaf


def scale_by_muon(
    ns_coeffs: Coefficients | Sequence[Coefficients] | str = "standard",
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: WeightDimensions = None,
    layout: Layout = "out_in",
    debias: bool = True,
    ns_dtype: torch.dtype | None = None,
) -> GradientTransform:
    """Orthogonalize the running mean of matrix updates.

        m <- beta m + (1 - beta) u;    u <- orthogonal(m^)

    where `m^ = m / (1 - beta^t)`, and with Nesterov `beta m / (1 - beta^(t+1)) + (1 - beta) u / (1 - beta^t)`.

    Args:
        ns_coeffs: `(a, b, c)`, or one triple for each step, or a name; see `orthogonalize_via_newton_schulz`.
        ns_steps: Number of iterations; at least 1.
        beta: Decay of the mean, in [0, 1).
        eps: Added to the norm before the iterations. Not negative.
        mu_dtype: Storage of `m`; float32 or wider by default.
        nesterov: Look ahead.
        adaptive: Multiply the result by its inner product with `m^`, the dual norm of the momentum.
        preconditioning: What brings the singular values below 1 at first, see `orthogonalize_via_newton_schulz`.
        weight_dimension_numbers: Which dimensions form the matrix, see `dimensions_by_path`; every leaf needs some.
        layout: Of two-dimensional leaves that this does not speak of: `"out_in"` is torch's, `"in_out"` optax's.
        debias: False drops the corrections, as `torch.optim.Muon` and Jordan do; that changes the balance of Nesterov's two terms in early
            steps.
        ns_dtype: Of the iterations; float32 or wider by default. bfloat16 is what `torch.optim.Muon` uses.

    Raises:
        ValueError: At `init`, if a leaf has no dimension numbers, or fewer than two dimensions.

    Reference:
        Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. With `debias` the mean is corrected as in optax
        0.2.8 `contrib.scale_by_muon`.
    """
    check_whole("scale_by_muon", at_least(1), ns_steps=ns_steps)
    check_numbers("scale_by_muon", DECAY, beta=beta)
    check_numbers("scale_by_muon", NOT_NEGATIVE, eps=eps)
    steps = _steps(ns_coeffs, ns_steps)

    def init(params: Tree) -> ScaleByMuonState:
        dimensions = dimensions_of(weight_dimension_numbers, params, layout, "scale_by_muon")
        return ScaleByMuonState(scalar_like(params, 0, torch.int64), zeros_of_moments(params, mu_dtype), dimensions)

    def update(updates: Tree, state: ScaleByMuonState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByMuonState]:
        leaves, structure = tree.flatten(updates)
        wide, old = widen(leaves), tree.leaves(state.mu)
        count = state.count + 1
        mu = decay_mean(old, wide, beta)
        raw = leafwise.lerp(wide, mu, beta) if nesterov else mu
        momentum = corrected_mean(mu, wide, beta, count, nesterov) if debias else raw
        out = []
        for leaf, dims in zip(momentum, state.dimensions, strict=True):
            matrices = _orthogonal(as_matrices(leaf, dims).to(ns_dtype or leaf.dtype), steps, preconditioning, eps)
            orthogonal = from_matrices(matrices.to(leaf.dtype), leaf, dims)
            out.append((leaf.conj() * orthogonal).sum() * orthogonal if adaptive else orthogonal)
        stored = leafwise.cast(mu, [m.dtype for m in old])
        return tree.unflatten(structure, out), ScaleByMuonState(count, tree.unflatten(structure, stored), state.dimensions)

    return GradientTransform(init, update, "scale_by_muon")


@tree.node(static=("dimensions",))
class ScaleByShapeState:
    """State of `scale_by_shape`, which has no tensors."""

    dimensions: tuple[MuonDimensionNumbers, ...]  # of each leaf


def scale_by_shape(
    weight_dimension_numbers: WeightDimensions = None, consistent_rms: float | None = None, *, layout: Layout = "out_in"
) -> GradientTransform:
    """Scale the update of a matrix by what its shape asks for.

    `sqrt(max(1, fan_out / fan_in))` keeps learning rates good at all widths; `consistent_rms * sqrt(max(fan_in, fan_out))` gives
    each orthogonal update that root mean square.

    Args:
        weight_dimension_numbers: Which dimensions form the matrix, as in `scale_by_muon`.
        consistent_rms: None for the first form; 0.2 matches the size of AdamW's updates (torch calls it `"match_rms_adamw"`). Positive.
        layout: Of two-dimensional leaves that this does not speak of, as in `scale_by_muon`.

    Reference:
        Bernstein, "Deriving Muon", 2025. Liu et al., "Muon is scalable for LLM training", 2025, eq. 4. arXiv:2502.16982
    """
    if consistent_rms is not None:
        check_numbers("scale_by_shape", POSITIVE, consistent_rms=consistent_rms)

    def scale(leaf: Tensor, dims: MuonDimensionNumbers) -> Tensor:
        fan_in, fan_out = fans(leaf, dims)
        if consistent_rms is None:
            return leaf * math.sqrt(max(1.0, fan_out / max(fan_in, 1)))
        return leaf * (math.sqrt(max(fan_in, fan_out)) * consistent_rms)

    def init(params: Tree) -> ScaleByShapeState:
        return ScaleByShapeState(dimensions_of(weight_dimension_numbers, params, layout, "scale_by_shape"))

    def update(updates: Tree, state: ScaleByShapeState, params: Tree = None, **extra: Any) -> tuple[Tree, ScaleByShapeState]:
        leaves, structure = tree.flatten(updates)
        return tree.unflatten(structure, [scale(leaf, dims) for leaf, dims in zip(leaves, state.dimensions, strict=True)]), state

    return GradientTransform(init, update, "scale_by_shape")
