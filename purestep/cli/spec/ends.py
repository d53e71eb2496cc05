"""What may end a run before its length is over: listeners to validation, which know of validations before a resume."""

import math
import os
from typing import TYPE_CHECKING

from ..exits import ExitCode, Refusal

if TYPE_CHECKING:
    from ...core.event import Listener
    from ...spec.building import Pieces
    from ...spec.envelope import Spec, Strategy


def check_metrics(spec: "Spec", pieces: "Pieces") -> None:
    """Refuse metrics that the validation will not have, before the run.

    Raises:
        Refusal: With the name that is nearest.
    """
    from ...spec.problems import nearest

    validation = pieces.validation
    if validation is None:
        return
    terms = (f"loss/{name}/{what}" for name in pieces.training.loss.names for what in ("unweighted", "weight"))
    measured = (name for metric in validation.metrics for name in metric.result(metric.empty()))
    known = {"loss/total", *terms, *measured}
    for field in ("early_stopping", "target_metric"):
        chosen = getattr(spec.strategy, field)
        name = None if chosen is None else chosen.metric.removeprefix("validation/")
        if name is not None and name not in known:
            message = f"/strategy/{field}/metric: validation has no '{name}'{nearest(name, known)}"
            raise Refusal(message, ExitCode.SPEC)


def ends_of(strategy: "Strategy", log: str) -> list["Listener"]:
    """The listeners that a strategy asks for.

    Args:
        log: The log of the run; need not be there yet.
    """
    from ...loop import EarlyStopping, StopAtMetric

    found: list[Listener] = []
    if (early := strategy.early_stopping) is not None:
        found.append(EarlyStopping(**early.model_dump(), past=_past(early.metric, log)))
    if (target := strategy.target_metric) is not None:
        found.append(StopAtMetric(**target.model_dump()))
    return found


def _past(metric: str, log: str) -> list[float]:
    """Values of the validations that stand; a final pass is made anew when a run goes on."""
    from ...reporting import read_metrics

    if not os.path.exists(log):
        return []
    name = f"validation/{metric.removeprefix('validation/')}"
    records = [record for record in read_metrics(log) if record["kind"] == "validation" and not record.get("final") and name in record]
    # the log writes null for what is not finite
    return [math.nan if record[name] is None else record[name] for record in records]
