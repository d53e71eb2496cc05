"""What a potential must keep: energies under rotation, translation and permutation of atoms; forces turn with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core import rng

if TYPE_CHECKING:  # comparing trees should not load the stores
    from ..data import AtomicBatch


def check_equivariance(
    fn: Callable[["AtomicBatch"], Mapping[str, Tensor]],
    batch: "AtomicBatch",
    *,
    invariant: Sequence[str] = ("energy",),
    vectors: Sequence[str] = ("forces",),
    tensors: Sequence[str] = ("stress",),
    rtol: float = 1e-10,
    atol: float = 1e-10,
    seed: int = 0,
) -> None:
    """Check that a potential respects the symmetries of space, each structure turned, moved and permuted by itself.

    Args:
        fn: From a batch to predictions by name; the model in its final state.
        batch: In float64 for the tolerances given. Its edges are kept: they are not searched anew.
        invariant: Predictions by structure, `(B, ...)`, that must not change.
        vectors: Predictions by atom, `(N, 3)`, that turn with the structure and follow the order of atoms.
        tensors: Predictions by structure, `(B, 3, 3)`, that turn from both sides. Names that `fn` does not return are left out.
        rtol: Of the largest magnitude of the prediction.
        atol: In the units of the prediction.
        seed: Of rotations, shifts and orders.

    Raises:
        AssertionError: Naming symmetry and prediction.
    """
    expected = {key: value.detach() for key, value in fn(batch).items()}
    missing = [key for key in (*invariant, *vectors) if key not in expected]
    assert not missing, f"check_equivariance: fn returned {sorted(expected)}, without {missing}; pass its names as invariant= and vectors="
    key = torch.tensor(seed)
    turn = _rotations(key, batch)
    shift = 3.0 * rng.normal(key, 2, (batch.num_graphs, 3), torch.float64).to(batch.positions)[batch.batch]
    order = torch.argsort(batch.batch + rng.uniform(key, 3, tuple(batch.batch.shape), torch.float64).to(batch.batch.device))
    per_atom = turn[batch.batch]

    def turned(key: str, value: Tensor) -> Tensor:
        if key in vectors:
            return _turn(per_atom, value)
        return turn.to(value) @ value @ turn.to(value).mT if key in tensors else value

    cases = (
        ("rotation", _rotated(batch, turn), turned),
        ("translation", batch.replace(positions=batch.positions + shift), lambda key, value: value),
        ("permutation of atoms", _permuted(batch, order), lambda key, value: value[order] if key in vectors else value),
    )
    for symmetry, changed, transformed in cases:
        found = fn(changed)
        for name in (*invariant, *vectors, *(name for name in tensors if name in expected)):
            _compare(symmetry, name, found[name].detach(), transformed(name, expected[name]), rtol, atol)


def _compare(symmetry: str, name: str, found: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    worst, allowed = float((found - expected).abs().max()), atol + rtol * float(expected.abs().max())
    # `not <=` rather than `>`: NaN fails too
    assert worst <= allowed, f"check_equivariance: under {symmetry}, {name} is off by {worst:.3g}, allowed are {allowed:.3g}"


def _turn(matrices: Tensor, values: Tensor) -> Tensor:
    return (matrices.to(values) @ values.unsqueeze(-1)).squeeze(-1)


def _rotations(key: Tensor, batch: "AtomicBatch") -> Tensor:
    """A rotation for each structure, `(B, 3, 3)`: the orthogonal factor of a random matrix, with determinant 1."""
    matrix = rng.normal(key, 1, (batch.num_graphs, 3, 3), torch.float64)
    factor, _ = torch.linalg.qr(matrix)
    return (factor * torch.linalg.det(factor)[:, None, None]).to(batch.positions.device)


def _rotated(batch: "AtomicBatch", turn: Tensor) -> "AtomicBatch":
    cell = None if batch.cell is None else batch.cell @ turn.to(batch.cell).mT
    return batch.replace(positions=_turn(turn[batch.batch], batch.positions), cell=cell)


def _permuted(batch: "AtomicBatch", order: Tensor) -> "AtomicBatch":
    """The same structures with their atoms in another order; edges follow."""
    place = torch.argsort(order)
    fields = ("positions", "numbers", "batch", "atom_mask", "forces")
    changes = {name: getattr(batch, name)[order] for name in fields if getattr(batch, name) is not None}
    edges = {} if batch.edge_index is None else {"edge_index": place[batch.edge_index]}
    users = None if batch.per_atom is None else {name: values[order] for name, values in batch.per_atom.items()}
    return batch.replace(**changes, **edges, per_atom=users)
