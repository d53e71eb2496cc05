"""Which atoms see each other: exact neighbour lists with periodic images, never cut. One function, over the library vesin.

Lists that are reused while atoms move little are in `skin.py`, lists inside a training step in `neighbour_operator.py`.
"""

from typing import Literal

import numpy as np

from ..errors import DataError

Pairs = Literal["full", "half"]

_MARGIN = 1e-6  # asked of the library beyond the cutoff, so that our own comparison decides at the edge


def neighbour_list(
    positions: np.ndarray, cutoff: float, cell: np.ndarray | None = None, pbc: np.ndarray | None = None, *, pairs: Pairs = "full"
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs nearer than `cutoff`, images of an atom itself included.

    Cells smaller than the cutoff, skewed cells and atoms outside their cell are handled alike. The order is that of receiver, sender
    and shift, so it depends on nothing but the structure.

    Args:
        positions: `(N, 3)`, Angstrom.
        cutoff: Largest distance, exclusive, Angstrom. Positive.
        cell: Cell vectors as rows, `(3, 3)`, Angstrom. Rows of directions that are not periodic are ignored.
        pbc: Periodic directions, `(3,)`, bool. None means none.
        pairs: "full" holds every pair in both directions, "half" in one.

    Returns:
        `edge_index` `(2, E)`, int64, sender and receiver, sorted by receiver; and `edge_shift` `(E, 3)`, int64, so that an edge is the
        vector `positions[sender] - positions[receiver] + edge_shift @ cell`.

    Raises:
        DataError: If the periodic cell vectors do not span their space, or positions are not finite.
    """
    if not cutoff > 0:
        raise ValueError(f"cutoff must be positive, got {cutoff}")
    if pairs not in ("full", "half"):
        raise ValueError(f"pairs must be 'full' or 'half', got {pairs!r}")
    positions = np.ascontiguousarray(positions, dtype=np.float64)
    if not np.isfinite(positions).all():
        raise DataError("positions are not finite, so there is no telling which atoms are near")
    periodic = np.zeros(3, dtype=bool) if pbc is None else np.asarray(pbc, dtype=bool)
    box = _completed(cell, periodic) if periodic.any() else np.eye(3)
    receiver, sender, shift = _candidates(positions, cutoff * (1 + _MARGIN), box, periodic)
    vectors = positions[sender] - positions[receiver] + shift @ box
    chosen = np.einsum("ex,ex->e", vectors, vectors) < cutoff * cutoff
    if pairs == "half":
        # the first shift that is not zero decides between an image of an atom and its mirror image
        forward = np.where(shift[:, 0] != 0, shift[:, 0], np.where(shift[:, 1] != 0, shift[:, 1], shift[:, 2])) > 0
        chosen &= (sender > receiver) | ((sender == receiver) & forward)
    order = np.lexsort((*shift[chosen].T[::-1], sender[chosen], receiver[chosen]))
    return np.stack([sender[chosen][order], receiver[chosen][order]]), shift[chosen][order]


def _candidates(positions: np.ndarray, reach: float, box: np.ndarray, periodic: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Receiver, sender and shift of every directed pair nearer than the reach."""
    import vesin  # type: ignore[import-untyped]  # loads a shared library, for which those who need no list should not wait

    none = np.empty(0, dtype=np.int64)
    if len(positions) == 0:
        return none, none, np.empty((0, 3), dtype=np.int64)
    # one thread: loaders have threads of their own
    calculator = vesin.NeighborList(cutoff=reach, full_list=True, sorted=False, n_threads=1)
    receiver, sender, shift = calculator.compute(points=positions, box=box, periodic=periodic, quantities="ijS")
    return receiver.astype(np.int64), sender.astype(np.int64), shift.astype(np.int64).reshape(-1, 3)


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
