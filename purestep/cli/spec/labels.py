"""Labels that the loss of a spec is about: a report counts the frames that have them, and a run begins only if there are some."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..data.sides import num_labelled, sides_of, stores_and_parts, targets_of
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

    for side, (paths, split) in stores_and_parts(spec).items():
        stores = [open_store(path) for path in paths]
        for key in targets_of(spec):
            if not any(_any_labelled(store, key, split) for store in stores):
                problem = _problem(spec, key, f"no frame of the {side} has {key!r} ({', '.join(paths)}); leave the term out, or give some")
                raise Refusal(problem.text(), ExitCode.GUARD, [command_line("purestep", "data", "inspect", "--spec", file)])


def _problem(spec: "Spec", key: str, message: str) -> "Problem":
    from ...spec.problems import Problem

    return Problem("PS306", f"/strategy/loss/{targets_of(spec)[key]}", message)


def _any_labelled(store: "AtomicStore", key: str, split: str | None) -> bool:
    import numpy as np

    if key not in store.levels:
        return False
    frames = np.arange(len(store)) if split is None else store.split(split).indices
    few = frames[:: max(1, len(frames) // _PROBES)]
    return any(np.isfinite(store[int(frame)][key]).all() for frame in few) or num_labelled(store, key, frames) > 0
