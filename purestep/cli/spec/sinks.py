"""Writers of metrics besides the log, as a spec asks for them."""

import os
import uuid
from typing import TYPE_CHECKING, Any

from ..exits import ExitCode, Refusal
from . import record

if TYPE_CHECKING:
    from ...core.event import Event
    from ...spec.envelope import Spec

_EXTRAS = ("tensorboard", "wandb", "mlflow", "trackio")


def check_installed(spec: "Spec") -> None:
    """Refuse a run whose sinks cannot be written, before anything is made.

    Raises:
        Refusal: With the name of the extra that is missing.
    """
    from ...reporting.trackers import require

    for place, sink in enumerate(spec.output.sinks):
        pointer = f"/output/sinks/{place}"
        try:
            if sink.kind in _EXTRAS:
                require(sink.kind, sink.kind)
        except ModuleNotFoundError as error:
            raise Refusal(f"{pointer}: {error}", ExitCode.ENVIRONMENT, [f"pip install 'purestep[{sink.kind}]'"]) from error
        if sink.kind == "wandb" and sink.mode == "online" and not os.environ.get("WANDB_API_KEY"):
            raise Refusal(f"{pointer}/mode: online needs a key in WANDB_API_KEY", ExitCode.ENVIRONMENT)


def writers_of(spec: "Spec", run_dir: str) -> list[Any]:
    """The listeners, in the order of the spec; contexts, but for tables."""
    return [_MAKERS[sink.kind](sink, spec, run_dir) for sink in spec.output.sinks]


def _tensorboard(sink: Any, spec: "Spec", run_dir: str) -> Any:
    from ...reporting import TensorBoardWriter

    options = sink.model_dump(exclude={"kind"})
    return TensorBoardWriter(os.path.join(run_dir, "tensorboard"), every_n_batches=spec.output.report_every, **options)


def _csv(sink: Any, spec: "Spec", run_dir: str) -> Any:
    from ...reporting import CsvWriter

    return CsvWriter(os.path.join(run_dir, f"{sink.records}.csv"), kind=sink.records, every_n_batches=spec.output.report_every)


def _wandb(sink: Any, spec: "Spec", run_dir: str) -> Any:
    from ...reporting import WandbWriter
    from ...spec.reading import document_of

    run_id = _known(run_dir, "wandb")
    if run_id is None:
        _remember(run_dir, "wandb", run_id := uuid.uuid4().hex)
    options: dict[str, Any] = {
        "name": spec.name,
        "config": document_of(spec),
        "directory": run_dir,
        "every_n_batches": spec.output.report_every,
    }
    return WandbWriter(sink.project, run_id=run_id, mode=sink.mode, **options)


def _mlflow(sink: Any, spec: "Spec", run_dir: str) -> Any:
    from ...reporting import MlflowWriter

    class Remembered(MlflowWriter):
        """The writer, which writes down the id that MLflow gave the run."""

        def begin(self, event: "Event") -> None:
            super().begin(event)
            _remember(run_dir, "mlflow", str(self.run_id))

    every = spec.output.report_every
    return Remembered(sink.tracking_uri, sink.experiment, name=spec.name, run_id=_known(run_dir, "mlflow"), every_n_batches=every)


def _trackio(sink: Any, spec: "Spec", run_dir: str) -> Any:
    from ...reporting import TrackioWriter
    from ...spec.reading import document_of

    return TrackioWriter(sink.project, name=spec.name, config=document_of(spec), every_n_batches=spec.output.report_every)


_MAKERS = {"tensorboard": _tensorboard, "csv": _csv, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def _known(run_dir: str, tracker: str) -> str | None:
    """The id under which a tracker knows this run."""
    return record.read(run_dir).get("trackers", {}).get(tracker)


def _remember(run_dir: str, tracker: str, run_id: str) -> None:
    record.add(run_dir, trackers={**record.read(run_dir).get("trackers", {}), tracker: run_id})
