"""The page that tells of a run when it is over: `report.html` in its directory."""

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from ..exits import tell
from . import record

if TYPE_CHECKING:
    from ...reporting import CollectPredictions
    from ...spec.building import Pieces
    from ...spec.envelope import Spec

_LABELS = {"energy": "energy, eV", "forces": "forces, eV/Å"}


class Predictions:
    """Callback of a validation that keeps what `CollectPredictions` does; if that fails it goes without, since only the page needs it."""

    def __init__(self, collect: "CollectPredictions"):
        self.collect: CollectPredictions | None = collect

    def __call__(self, **seen: Any) -> None:
        """Keep one batch."""
        if self.collect is None:
            return
        try:
            self.collect(**seen)
        except Exception as error:
            self.collect = None
            tell(f"report.html will be without predictions: {type(error).__name__}: {error}")


def collecting(pieces: "Pieces") -> tuple["Pieces", Predictions | None]:
    """The pieces with a validation that keeps its predictions, of what the loss is about; None if there is no validation."""
    from ...reporting import CollectPredictions

    if pieces.validation is None:
        return pieces, None
    terms = [weighted.term for weighted in pieces.training.loss.terms]
    keys = {term.target_key: term.prediction_key for term in terms if term.target_key in _LABELS and term.prediction_key}
    kept = Predictions(CollectPredictions(keys))
    return pieces._replace(validation=dataclasses.replace(pieces.validation, batch_callback=kept)), kept


def write_page(spec: "Spec", run_dir: str, kept: Predictions | None) -> None:
    """Write the page. A run that is done stays so if that fails, which is told."""
    try:
        _write(spec, run_dir, kept.collect if kept is not None else None)
    except Exception as error:
        tell(f"report.html was not written: {type(error).__name__}: {error}")


def _write(spec: "Spec", run_dir: str, collect: "CollectPredictions | None") -> None:
    from ...reporting import read_metrics, sample_schedule, write_webpage
    from ...spec.parts import learning_rate_curve
    from ...spec.summary import steps_of

    log = os.path.join(run_dir, "metrics.jsonl")
    curve, steps = learning_rate_curve(spec), steps_of(spec)
    errors: dict[str, Any] = {}
    with contextlib.suppress(KeyError):  # the loss need not be about forces
        errors = collect.errors_by_element() if collect is not None else {}
    write_webpage(
        os.path.join(run_dir, "report.html"),
        read_metrics(log) if os.path.exists(log) else [],
        title=spec.name,
        facts=record.read(run_dir),
        schedule=sample_schedule(curve, steps) if curve is not None and steps is not None else None,
        parity_panels=collect.panels(_LABELS) if collect is not None else None,
        errors_by_element=errors,
        error_unit="eV/Å",
    )
