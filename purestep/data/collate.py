"""From frames to batches: concatenation, neighbour lists, and padding to fixed sizes.

A frame is a mapping of NumPy arrays with the names of a store (`numbers`, `positions`, `energy`, ...). `PreparedFrames` adds the
neighbour list and the working precision once per frame; `collate` joins prepared frames. Sizes are chosen by `plan_padding`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ..errors import DataError
from .batch import AtomicBatch
from .neighbours import neighbour_list
from .order import permutation
from .references import sum_of_references

Frame = Mapping[str, np.ndarray]


class Frames(Protocol):
    """A data set of frames: a store, a part of one, or anything alike."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Frame: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the content does."""


class Padding(NamedTuple):
    """Fixed sizes of a batch: real ones and padding together."""

    graphs: int
    atoms: int
    edges: int


class PreparedFrames:
    """Frames with neighbour lists, in the precision of training; each is prepared once and kept in memory.

    Energies are those above the sum of the atoms' reference energies, subtracted in float64 before any rounding.

    Args:
        dataset: Frames as they are stored, total energies in float64.
        cutoff: Reach of the neighbour list, Angstrom.
        dtype: `numpy.float32` or `numpy.float64`.
        reference_energies: eV by atomic number; None subtracts nothing.
    """

    def __init__(self, dataset: Frames, cutoff: float, *, dtype: Any = np.float32, reference_energies: Mapping[int, float] | None = None):
        self.dataset, self.cutoff, self.dtype, self.reference_energies = dataset, cutoff, np.dtype(dtype), reference_energies
        self._kept: list[Frame | None] = [None] * len(dataset)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Frame:
        frame = self._kept[index]
        if frame is None:
            frame = self._kept[index] = prepare(
                self.dataset[index], self.cutoff, dtype=self.dtype, reference_energies=self.reference_energies
            )
        return frame

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the frames underneath."""
        return self.dataset.fingerprint


def prepare(frame: Frame, cutoff: float, *, dtype: Any = np.float32, reference_energies: Mapping[int, float] | None = None) -> Frame:
    """One frame with `edge_index` and `edge_shift`, floats in `dtype`, and the energy above its references.

    Raises:
        DataError: If an element has no reference energy.
    """
    positions = np.asarray(frame["positions"], dtype=np.float64)
    edge_index, edge_shift = neighbour_list(positions, cutoff, frame.get("cell"), frame.get("pbc"))
    out = {"numbers": frame["numbers"].astype(np.int64), "edge_index": edge_index, "edge_shift": edge_shift.astype(dtype)}
    for key in ("positions", "cell", "forces", "stress"):
        if key in frame:
            out[key] = np.asarray(frame[key]).astype(dtype)
    if "pbc" in frame:
        out["pbc"] = np.asarray(frame["pbc"], dtype=bool)
    if "energy" in frame:
        reference = 0.0 if reference_energies is None else sum_of_references(out["numbers"], reference_energies)
        out["energy"] = np.asarray(np.float64(frame["energy"]) - reference).astype(dtype)
    return out


def collate(frames: Sequence[Frame], mask: np.ndarray | None = None, *, pad_to: Padding | Sequence[Padding] | None = None) -> AtomicBatch:
    """Join prepared frames into one batch.

    Args:
        frames: From `PreparedFrames` (or `prepare`), all with the same keys.
        mask: `(len(frames),)`: False for frames that only fill up. None means that all count.
        pad_to: Sizes to pad to; of several the first that fits is taken. None pads nothing: frames that only fill up stay, masked.

    Raises:
        DataError: If no size is large enough, or if frames differ in their keys.
    """
    mask = np.ones(len(frames), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    if pad_to is None:
        return _join(frames, mask, None)
    template = frames[0]
    real = [frame for frame, counts in zip(frames, mask, strict=True) if counts]
    choices = [pad_to] if isinstance(pad_to, Padding) else list(pad_to)
    needed = Padding(len(real), sum(_num_atoms(frame) for frame in real), sum(_num_edges(frame) for frame in real))
    for choice in choices:
        # a graph and two atoms more: padding edges run between two padding atoms, which belong to a padding graph
        if needed.graphs < choice.graphs and needed.atoms + 2 <= choice.atoms and needed.edges <= choice.edges:
            return _join(real, np.ones(len(real), dtype=bool), choice, template)
    raise DataError(
        f"a batch of {needed.graphs} graphs, {needed.atoms} atoms and {needed.edges} edges, with one graph and two atoms of padding, "
        f"fits none of {[tuple(choice) for choice in choices]}; plan the padding for this batch size and cutoff"
    )


def _num_atoms(frame: Frame) -> int:
    return len(frame["numbers"])


def _num_edges(frame: Frame) -> int:
    return frame["edge_index"].shape[1]


def _join(frames: Sequence[Frame], counts: np.ndarray, pad_to: Padding | None, template: Frame | None = None) -> AtomicBatch:
    template = frames[0] if template is None else template
    if odd := next((frame.keys() for frame in frames if frame.keys() != template.keys()), None):
        raise DataError(f"frames of one batch must carry the same keys, got {sorted(template)} and {sorted(odd)}")
    atoms = np.array([_num_atoms(frame) for frame in frames], dtype=np.int64)
    edges = np.array([_num_edges(frame) for frame in frames], dtype=np.int64)
    num_atoms, num_edges = int(atoms.sum()), int(edges.sum())
    size = pad_to or Padding(len(frames), num_atoms, num_edges)

    ptr = np.full(size.graphs + 1, num_atoms, dtype=np.int64)
    ptr[0] = 0
    np.cumsum(atoms, out=ptr[1 : len(frames) + 1])
    ptr[-1] = size.atoms  # all padding atoms belong to the last graph
    edge_index = np.empty((2, size.edges), dtype=np.int64)
    if frames:
        np.concatenate([frame["edge_index"] for frame in frames], axis=1, out=edge_index[:, :num_edges])
        edge_index[:, :num_edges] += np.repeat(ptr[: len(frames)], edges)
    edge_index[:, num_edges:] = _padding_edges(num_atoms, size.atoms, size.edges - num_edges)

    fields: dict[str, np.ndarray] = {
        "positions": _rows(frames, template, "positions", size.atoms),
        "numbers": _rows(frames, template, "numbers", size.atoms),
        "batch": np.repeat(np.arange(size.graphs), np.diff(ptr)),
        "ptr": ptr,
        "atom_mask": _mask(np.repeat(counts, atoms), size.atoms),
        "graph_mask": _mask(counts, size.graphs),
        "edge_index": edge_index,
        "edge_shift": _rows(frames, template, "edge_shift", size.edges),
        "edge_mask": _mask(np.repeat(counts, edges), size.edges),
    }
    # padding atoms stand further apart than any cutoff, on a line along no axis
    fields["positions"][num_atoms:] = 1e3 * np.arange(1, size.atoms - num_atoms + 1)[:, None] * np.array([1.0, 0.7, 0.4])
    if "forces" in template:
        fields["forces"] = _rows(frames, template, "forces", size.atoms)
    for key in ("cell", "pbc", "energy", "stress"):
        if key in template:
            fields[key] = _rows([{key: frame[key][None]} for frame in frames], {key: template[key][None]}, key, size.graphs)
    if "energy" in template:
        fields["energy"] = fields["energy"][:, None]
    return AtomicBatch(**{key: torch.from_numpy(value) for key, value in fields.items()})


def _rows(frames: Sequence[Frame], template: Frame, key: str, size: int) -> np.ndarray:
    """The rows of all frames under each other, zeros below."""
    like = template[key]
    out = np.empty((size, *like.shape[1:]), dtype=like.dtype)
    used = sum(len(frame[key]) for frame in frames)
    if frames:
        np.concatenate([frame[key] for frame in frames], out=out[:used])
    out[used:] = 0
    return out


def _mask(real: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, dtype=bool)
    out[: len(real)] = real
    return out


def _padding_edges(first: int, end: int, count: int) -> np.ndarray:
    """Edges between neighbouring padding atoms, spread over all of them; `end - first >= 2` where there are any."""
    sender = np.arange(count) % max(end - first - 1, 1) + first
    return np.stack([sender, sender + 1])


def plan_padding(dataset: PreparedFrames, batch_size: int, *, num_sizes: int = 2, num_epochs: int = 32) -> tuple[Padding, ...]:
    """Sizes that hold every batch of `batch_size` frames of a prepared data set, smallest first.

    The last size holds the `batch_size` largest frames, so nothing can overflow. The others hold what shuffled epochs really draw:
    with two sizes practically all batches take the first, which is much smaller. Each size costs one compilation.

    Args:
        dataset: Prepared frames.
        num_sizes: Number of sizes, at least 1.
        num_epochs: Epochs looked at to find the usual sizes.
    """
    atoms = np.array([_num_atoms(frame) for frame in dataset])
    edges = np.array([_num_edges(frame) for frame in dataset])
    graphs = batch_size + 1
    worst = [int(np.sort(counts)[-batch_size:].sum()) for counts in (atoms, edges)]
    usual: list[Padding] = []
    if num_sizes > 1 and len(dataset) > batch_size:
        whole = len(dataset) - len(dataset) % batch_size
        drawn = np.concatenate([permutation(0, epoch, len(dataset))[:whole].reshape(-1, batch_size) for epoch in range(num_epochs)])
        quantiles = np.linspace(0, 1, num_sizes)[1:]
        sizes = [np.quantile(counts[drawn].sum(axis=1), quantiles, method="higher") for counts in (atoms, edges)]
        usual = [Padding(graphs, _rounded(a + 2), _rounded(e)) for a, e in zip(*sizes, strict=True)]
    return tuple(dict.fromkeys([*usual, Padding(graphs, _rounded(worst[0] + 2), _rounded(worst[1]))]))


def _rounded(count: int) -> int:
    """Up to a multiple of 8, which vector units like."""
    return -(-int(count) // 8) * 8
