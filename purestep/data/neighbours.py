"""Which atoms see each other: exact neighbour lists by brute force, with periodic images. One function; lists are never cut."""

import numpy as np

from ..errors import DataError


def neighbour_list(
    positions: np.ndarray, cutoff: float, cell: np.ndarray | None = None, pbc: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """All directed pairs nearer than `cutoff`, images of an atom itself included.

    Every pair is tried with every cell shift that could bring it within reach, so cells smaller than the cutoff, skewed cells and
    atoms outside their cell are handled alike. Time and memory grow with (atoms)^2 times (shifts).

    Args:
        positions: `(N, 3)`, Angstrom.
        cutoff: Largest distance, exclusive, Angstrom. Positive.
        cell: Cell vectors as rows, `(3, 3)`, Angstrom. Rows of directions that are not periodic are ignored.
        pbc: Periodic directions, `(3,)`, bool. None means none.

    Returns:
        `edge_index` `(2, E)`, int64, sender and receiver, sorted by receiver; and `edge_shift` `(E, 3)`, int64, so that an edge is the
        vector `positions[sender] - positions[receiver] + edge_shift @ cell`.

    Raises:
        DataError: If the periodic cell vectors do not span their space.
    """
    if not cutoff > 0:
        raise ValueError(f"cutoff must be positive, got {cutoff}")
    periodic = np.zeros(3, dtype=bool) if pbc is None else np.asarray(pbc, dtype=bool)
    shifts = np.zeros((1, 3), dtype=np.int64)
    offsets = np.zeros((1, 3))
    if periodic.any():
        box = _completed(cell, periodic)
        shifts = _reachable_shifts(positions, cutoff, box, periodic)
        offsets = shifts @ box
    vectors = positions[None, :, None, :] - positions[:, None, None, :] + offsets  # receiver, sender, shift
    near = np.einsum("rsmx,rsmx->rsm", vectors, vectors) < cutoff * cutoff
    home = np.flatnonzero((shifts == 0).all(axis=1))[0]
    atoms = np.arange(len(positions))
    near[atoms, atoms, home] = False
    receiver, sender, image = np.nonzero(near)
    return np.stack([sender, receiver]).astype(np.int64), shifts[image]


def _completed(cell: np.ndarray | None, periodic: np.ndarray) -> np.ndarray:
    """The cell with unit vectors, orthogonal to the periodic ones, in the directions that are not periodic."""
    if cell is None:
        raise DataError(f"pbc is {periodic.tolist()} but there is no cell; give the cell vectors as rows")
    rows = np.asarray(cell, dtype=np.float64)[periodic]
    *_, basis = np.linalg.svd(rows)
    box = np.empty((3, 3))
    box[periodic], box[~periodic] = rows, basis[len(rows) :]
    lengths = np.linalg.norm(rows, axis=1)
    if not abs(np.linalg.det(box)) > 1e-6 * np.prod(lengths):
        raise DataError(f"the periodic cell vectors {rows.tolist()} do not span a volume; correct the cell or pbc {periodic.tolist()}")
    return box


def _reachable_shifts(positions: np.ndarray, cutoff: float, box: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """All cell shifts that may bring two atoms within the cutoff: along each axis the cutoff over the cell's height, plus the spread."""
    inverse = np.linalg.inv(box)
    reach = cutoff * np.linalg.norm(inverse, axis=0)
    spread = np.ptp(positions @ inverse, axis=0) if len(positions) else np.zeros(3)
    most = np.where(periodic, np.ceil(reach + spread), 0).astype(np.int64)
    ranges = [np.arange(-count, count + 1) for count in most]
    return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
