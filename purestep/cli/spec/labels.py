"""Labels that the loss of a spec is about: a report counts the frames that have them, and a run begins only if there are some."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..exits import ExitCode, Refusal
from ..run_directory import command_line

if TYPE_CHECKING:
    from ...data import AtomicStore
    from ...spec.envelope import Spec
    from ...spec.problems import Problem

_MOST_FRAMES = 1_000_000  # whose labels a report counts; to read more takes minutes
_PROBES = 16  # frames that are looked at before all are


def count_labels(spec: "Spec", num_frames: int | None) -> list[dict[str, Any]]:
    """Training and validation, as `purestep data inspect` has them; empty if their stores cannot be read, or are too large for a report.

    Args:
        num_frames: Of training, if known.
    """
    from ...errors import DataError
    from ..data.sides import sides_of

    if num_frames is None or num_frames > _MOST_FRAMES:
        return []
    try:
        return sides_of(spec)
    except DataError:
        return []


def missing_labels(spec: "Spec", sides: Sequence[dict[str, Any]]) -> Iterator["Problem"]:
    """A warning for each target of the loss that not all frames of a side have."""
    for side in sides:
        whole = side["num_frames"]
        for key, count in side["labelled"].items():
            if count == 0 < whole:
                yield _problem(spec, key, f"no frame of the {side['side']} has {key!r}, so the term says nothing there")
            elif count < whole:
                yield _problem(spec, key, f"{count:,} of {whole:,} frames of the {side['side']} have {key!r}; only these count in the term")


def check_labels(spec: "Spec", file: str) -> None:
    """Refuse a run if no frame that it trains on, or none that it validates on, has the target of a term.

    Args:
        spec: With absolute paths.
        file: Where it stands, for the advice.

    Raises:
        Refusal: With the pointer of the term.
        DataError: If a store cannot be read.
    """
    from ...spec.building import open_store

    data = spec.dataset
    sides = {"training": (data.paths, data.split)}
    if data.validation_paths or data.validation_split is not None:
        sides["validation"] = (data.validation_paths or data.paths, data.validation_split)
    for side, (paths, split) in sides.items():
        stores = [open_store(path) for path in paths]
        for key in _targets(spec):
            if not any(_any_labelled(store, key, split) for store in stores):
                problem = _problem(spec, key, f"no frame of the {side} has {key!r} ({', '.join(paths)}); leave the term out, or give some")
                raise Refusal(problem.text(), ExitCode.GUARD, [command_line("purestep", "data", "inspect", "--spec", file)])


def _targets(spec: "Spec") -> dict[str, int]:
    """The keys of the batch that the loss is about, and the place of the first term that is."""
    found: dict[str, int] = {}
    for place, part in enumerate(spec.strategy.loss):
        if hasattr(part, "target_key"):
            found.setdefault(part.target_key, place)
    return found


def _problem(spec: "Spec", key: str, message: str) -> "Problem":
    from ...spec.problems import Problem

    return Problem("PS306", f"/strategy/loss/{_targets(spec)[key]}", message)


def _any_labelled(store: "AtomicStore", key: str, split: str | None) -> bool:
    import numpy as np

    from ...data.layout import labelled

    if key not in store.levels:
        return False
    places = np.arange(len(store)) if split is None else store.split(split).indices
    few = places[:: max(1, len(places) // _PROBES)]
    if any(np.isfinite(store[int(place)][key]).all() for place in few):
        return True
    level = store.levels[key]
    return bool(labelled(store.pointers.get(level, store.ptr), store.column(key), level)[places].any())
