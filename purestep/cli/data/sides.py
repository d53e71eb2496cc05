"""What a spec would train and validate on: how many frames, and how many of them have what the loss is about."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...data import AtomicStore
    from ...spec.envelope import Spec


def stores_of(spec: "Spec") -> tuple[str, ...]:
    """The paths of a spec, each once."""
    return tuple(dict.fromkeys([*spec.dataset.paths, *spec.dataset.validation_paths]))


def sides_of(spec: "Spec") -> list[dict[str, Any]]:
    """Training and validation, as plain JSON: frames, and labelled ones by target of the loss.

    Raises:
        DataError: If a store cannot be read.
    """
    return [_side(name, paths, split, spec) for name, (paths, split) in stores_and_parts(spec).items()]


def stores_and_parts(spec: "Spec") -> dict[str, tuple[Sequence[str], str | None]]:
    """Of training, and of validation where there is one: the stores, and which part of them."""
    data = spec.dataset
    found: dict[str, tuple[Sequence[str], str | None]] = {"training": (data.paths, data.split)}
    if data.validation_paths or data.validation_split is not None:
        found["validation"] = (data.validation_paths or data.paths, data.validation_split)
    return found


def targets_of(spec: "Spec") -> dict[str, int]:
    """The keys of the batch that the loss is about, and the place of the first term that is."""
    found: dict[str, int] = {}
    for place, part in enumerate(spec.strategy.loss):
        if hasattr(part, "target_key"):
            found.setdefault(part.target_key, place)
    return found


def _side(name: str, paths: Sequence[str], split: str | None, spec: "Spec") -> dict[str, Any]:
    import numpy as np

    from ...spec.building import open_store

    stores = [open_store(path) for path in paths]
    chosen = [np.arange(len(store)) if split is None else store.split(split).indices for store in stores]
    pairs = list(zip(stores, chosen, strict=True))
    labelled = {key: sum(num_labelled(store, key, frames) for store, frames in pairs) for key in targets_of(spec)}
    return {"side": name, "paths": list(paths), "split": split, "num_frames": sum(map(len, chosen)), "labelled": labelled}


def num_labelled(store: "AtomicStore", key: str, frames: Any) -> int:
    """How many of these frames, given by their numbers, have a label."""
    from ...data.layout import labelled

    if key not in store.levels:
        return 0
    level = store.levels[key]
    return int(labelled(store.pointers.get(level, store.ptr), store.column(key), level)[frames].sum())


def text_of(side: dict[str, Any]) -> str:
    """A side for people."""
    part = "" if side["split"] is None else f" ({side['split']})"
    lines = [f"  {side['side']}: {side['num_frames']:,} frames of {', '.join(side['paths'])}{part}"]
    for key, count in side["labelled"].items():
        share = f"{100 * count / side['num_frames']:.1f} %" if side["num_frames"] else "none"
        warning = "" if count else "   no frame has it: a run with this term is refused"
        lines.append(f"    {key:12} {share:>7} have the label{warning}")
    return "\n".join(lines)
