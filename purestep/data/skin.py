"""Neighbour lists that are reused while atoms move little: found once with a wider reach, then only filtered."""

from typing import NamedTuple, Self

import numpy as np

from .neighbours import neighbour_list


class SkinList(NamedTuple):
    """Pairs within the cutoff and a skin around it, and where the atoms were then."""

    cutoff: float
    skin: float
    edge_index: np.ndarray
    edge_shift: np.ndarray
    positions: np.ndarray
    cell: np.ndarray | None
    pbc: np.ndarray | None

    @classmethod
    def at(cls, positions: np.ndarray, cutoff: float, skin: float, cell: np.ndarray | None = None, pbc: np.ndarray | None = None) -> Self:
        """Find the pairs nearer than `cutoff + skin`.

        Args:
            positions: `(N, 3)`, Angstrom.
            cutoff: Of the lists to come, Angstrom.
            skin: How much further to look, Angstrom; at least 0.
        """
        if not skin >= 0:
            raise ValueError(f"skin must be at least 0, got {skin}")
        found = neighbour_list(positions, cutoff + skin, cell, pbc)
        kept = [None if array is None else np.array(array) for array in (cell, pbc)]
        return cls(cutoff, skin, *found, np.array(positions, dtype=np.float64), *kept)

    def serves(self, positions: np.ndarray, cell: np.ndarray | None = None, pbc: np.ndarray | None = None) -> bool:
        """Whether these pairs still hold all that are within the cutoff: no atom has moved by half the skin, the cell not at all."""
        same = positions.shape == self.positions.shape and _equal(cell, self.cell) and _equal(pbc, self.pbc)
        return same and bool((np.square(positions - self.positions).sum(axis=1) < (self.skin / 2) ** 2).all())

    def within(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs that are nearer than the cutoff now, as `neighbour_list` gives them."""
        sender, receiver = self.edge_index
        offset = 0.0 if self.cell is None else self.edge_shift @ _offsets(self.cell, self.pbc)
        vectors = positions[sender] - positions[receiver] + offset
        near = np.einsum("ex,ex->e", vectors, vectors) < self.cutoff * self.cutoff
        return self.edge_index[:, near], self.edge_shift[near]


def reuse(
    known: SkinList | None,
    positions: np.ndarray,
    cutoff: float,
    skin: float,
    cell: np.ndarray | None = None,
    pbc: np.ndarray | None = None,
) -> tuple[tuple[np.ndarray, np.ndarray], SkinList]:
    """The neighbour list now, and what to hand in next time: the known pairs if they still serve, else new ones.

    Example:
        >>> import numpy as np
        >>> positions = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        >>> (edges, _), known = reuse(None, positions, cutoff=1.5, skin=0.4)
        >>> _, again = reuse(known, positions + 0.1, cutoff=1.5, skin=0.4)
        >>> again is known
        True
    """
    if known is None or (known.cutoff, known.skin) != (cutoff, skin) or not known.serves(positions, cell, pbc):
        known = SkinList.at(positions, cutoff, skin, cell, pbc)
    return known.within(positions), known


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return (one is None) == (other is None) and (one is None or np.array_equal(one, other))  # type: ignore[arg-type]


def _offsets(cell: np.ndarray, pbc: np.ndarray | None) -> np.ndarray:
    # rows of directions that are not periodic have only zero shifts, but may hold anything
    return np.where((np.zeros(3, dtype=bool) if pbc is None else np.asarray(pbc))[:, None], cell, 0.0)
