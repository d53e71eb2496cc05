"""From prepared frames to batches: concatenation, and padding to fixed sizes that changes no number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import DataError
from .batch import AtomicBatch
from .frames import Frame
from .padding import Padding, sizes_of


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
    needed = sizes_of(real)
    for choice in choices:
        # a graph and two atoms more: padding edges run between two padding atoms, which belong to a padding graph
        if needed.graphs < choice.graphs and needed.atoms + 2 <= choice.atoms and needed.edges <= choice.edges:
            return _join(real, np.ones(len(real), dtype=bool), choice, template)
    raise DataError(
        f"a batch of {needed.graphs} graphs, {needed.atoms} atoms and {needed.edges} edges, with one graph and two atoms of padding, "
        f"fits none of {[tuple(choice) for choice in choices]}; plan the padding for this batch size and cutoff"
    )


def collate_parts(
    frames: Sequence[Frame], mask: np.ndarray | None = None, *, parts: int, pad_to: Padding | Sequence[Padding] | None = None
) -> tuple[AtomicBatch, ...]:
    """One batch cut into `parts` of nearly equal numbers of frames, as a step with `microbatches=parts` takes it.

    Args:
        pad_to: Sizes of a part.
    """
    mask = np.ones(len(frames), dtype=bool) if mask is None else mask
    cuts = np.array_split(np.arange(len(frames)), parts)
    return tuple(collate([frames[number] for number in cut], mask[cut], pad_to=pad_to) for cut in cuts)


def _join(frames: Sequence[Frame], counts: np.ndarray, pad_to: Padding | None, template: Frame | None = None) -> AtomicBatch:
    template = frames[0] if template is None else template
    if odd := next((frame.keys() for frame in frames if frame.keys() != template.keys()), None):
        raise DataError(f"frames of one batch must carry the same keys, got {sorted(template)} and {sorted(odd)}")
    atoms = np.array([len(frame["numbers"]) for frame in frames], dtype=np.int64)
    edges = np.array([frame["edge_index"].shape[1] for frame in frames], dtype=np.int64)
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
    tensors: dict[str, Any] = {key: torch.from_numpy(value) for key, value in fields.items()}
    for level, count in (("per_atom", size.atoms), ("per_graph", size.graphs), ("per_edge", size.edges)):
        tensors[level] = _others(frames, template, level, count)
    return AtomicBatch(**tensors)


def _others(frames: Sequence[Frame], template: Frame, level: str, rows: int) -> dict[str, torch.Tensor] | None:
    """Arrays of the user, padded like the others."""
    prefix = level + "/"
    found = {}
    for name in [key for key in template if key.startswith(prefix)]:
        like, *whole = [{name: frame[name][None] if level == "per_graph" else frame[name]} for frame in (template, *frames)]
        found[name.removeprefix(prefix)] = torch.from_numpy(_rows(whole, like, name, rows))
    return found or None


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
