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
    data = spec.dataset
    sides = [_side("training", data.paths, data.split, spec)]
    if data.validation_paths or data.validation_split is not None:
        sides.append(_side("validation", data.validation_paths or data.paths, data.validation_split, spec))
    return sides


def _side(name: str, paths: Sequence[str], split: str | None, spec: "Spec") -> dict[str, Any]:
    import numpy as np

    from ...spec.building import open_store

    stores = [open_store(path) for path in paths]
    chosen = [np.arange(len(store)) if split is None else store.split(split).indices for store in stores]
    targets = dict.fromkeys(part.target_key for part in spec.strategy.loss if hasattr(part, "target_key"))
    labelled = {key: sum(_labelled(store, key, places) for store, places in zip(stores, chosen, strict=True)) for key in targets}
    return {"side": name, "paths": list(paths), "split": split, "num_frames": sum(map(len, chosen)), "labelled": labelled}


def _labelled(store: "AtomicStore", key: str, places: Any) -> int:
    from ...data.layout import labelled

    if key not in store.levels:
        return 0
    level = store.levels[key]
    return int(labelled(store.pointers.get(level, store.ptr), store.column(key), level)[places].sum())


def text_of(side: dict[str, Any]) -> str:
    """A side for people."""
    part = "" if side["split"] is None else f" ({side['split']})"
    lines = [f"  {side['side']}: {side['num_frames']:,} frames of {', '.join(side['paths'])}{part}"]
    for key, count in side["labelled"].items():
        share = f"{100 * count / side['num_frames']:.1f} %" if side["num_frames"] else "none"
        warning = "" if count else "   no frame has it: a run with this term is refused"
        lines.append(f"    {key:12} {share:>7} have the label{warning}")
    return "\n".join(lines)
