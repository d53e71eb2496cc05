"""Forces and stress as derivatives of the energy, inside a model's forward, wherever it runs."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..core.grad import runs_transformed
from .atoms import Atoms

EnergyFunction = Callable[[Tensor, Tensor | None], Tensor]


def energy_and_forces(energy: EnergyFunction, atoms: Atoms, parameters: Iterable[Tensor], stress: bool = False) -> dict[str, Tensor]:
    """Energy, forces `-dE/dx`, and on request stress `(1/V) dE/d(strain)`, tension positive.

    The strain is symmetric and moves positions and cell alike: `x (1 + strain)`. Graphs without a cell have stress 0.

    Args:
        energy: From positions `(N, 3)` and cell `(B, 3, 3)` to energies `(B, 1)`, eV.
        parameters: What the energy depends on besides. If none of it requires a gradient, no graph is kept.
        stress: Whether stress is wanted. A batch without cells has none.

    Returns:
        `energy` `(B, 1)`, `forces` `(N, 3)`, and maybe `stress` `(B, 3, 3)`.
    """
    cell = atoms.cell
    if not stress or cell is None:
        value, (slope,) = value_and_derivatives(lambda positions: energy(positions, cell), (atoms.positions,), parameters)
        return {"energy": value, "forces": -slope}

    def strained(positions: Tensor, strain: Tensor) -> Tensor:
        symmetric = 0.5 * (strain + strain.transpose(-1, -2))
        moved = positions + (positions.unsqueeze(-2) @ symmetric[atoms.batch]).squeeze(-2)
        return energy(moved, cell + cell @ symmetric)

    value, (slope, by_strain) = value_and_derivatives(strained, (atoms.positions, torch.zeros_like(cell)), parameters)
    volume = torch.linalg.det(cell).abs().unsqueeze(-1).unsqueeze(-1)
    periodic = volume > 0
    return {"energy": value, "forces": -slope, "stress": torch.where(periodic, by_strain / torch.where(periodic, volume, 1.0), 0.0)}


def value_and_derivatives(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Iterable[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Value of a function, and the derivatives of its sum with respect to all inputs.

    There are two ways with one result. `torch.func` can be nested, mapped, and traced by Dynamo. Elsewhere `torch.autograd` on fresh
    leaves is faster, works where gradients are switched off, and keeps no graph when nothing asks for one.
    """
    return _by_func(function, inputs) if runs_transformed() else _by_autograd(function, inputs, parameters)


def _by_func(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    def total(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        value = function(*inputs)
        return value.sum(), value

    derivatives, value = torch.func.grad(total, argnums=tuple(range(len(inputs))), has_aux=True)(*inputs)
    return value, derivatives


def _by_autograd(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Iterable[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *parameters))
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [leaf if leaf.requires_grad else _fresh(leaf) for leaf in inputs]
        value = function(*leaves)
        derivatives = torch.autograd.grad(value.sum(), leaves, create_graph=keep, materialize_grads=True)
    return (value, derivatives) if keep else (value.detach(), derivatives)


def _fresh(leaf: Tensor) -> Tensor:
    # a tensor made in inference mode can never require a gradient, its copy can
    return (leaf.clone() if leaf.is_inference() else leaf.detach()).requires_grad_()
