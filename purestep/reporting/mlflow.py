"""Runs of MLflow, in a local store or on a server that is named."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..core.event import Event
from .trackers import TrackerWriter, require, unless_said

_LONGEST_PARAM = 6000  # characters; MLflow refuses longer ones


class MlflowWriter(TrackerWriter):
    """Listener that logs to a run of MLflow, through a client of its own: MLflow's active run is not touched.

    Args:
        tracking_uri: Where runs are kept: `sqlite:///mlflow.db`, or `http://...`; MLflow 3 refuses plain directories.
        experiment: Name of the experiment; made if missing.
        name: Of the run.
        run_id: A run to go on with, after a resume.
        params: Plain values to keep with it.
        every_n_batches: How often to write the metrics of a batch.
        clock: Seconds since 1970.

    Raises:
        ModuleNotFoundError: If MLflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        *,
        name: str | None = None,
        run_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        every_n_batches: int = 10,
        clock: Callable[[], float] = time.time,
    ):
        super().__init__(every_n_batches=every_n_batches)
        require("mlflow", "mlflow")
        self._uri, self._experiment, self._name, self.run_id = tracking_uri, experiment, name, run_id
        self._params, self._clock = dict(params or {}), clock
        self._client: Any = None

    def begin(self, event: Event) -> None:
        """Begin a run, or go on with the one given."""
        with unless_said(MLFLOW_DISABLE_TELEMETRY="true"):  # when it is loaded it decides whether to tell its makers of what is called
            from mlflow.entities import Param
            from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        if self.run_id is not None:
            return
        found = self._client.get_experiment_by_name(self._experiment)
        experiment_id = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(experiment_id, run_name=self._name).info.run_id
        params = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in self._params.items()]
        self._client.log_batch(self.run_id, params=params)

    def write(self, values: Mapping[str, float], batch: int) -> None:
        """Log one row in one call."""
        from mlflow.entities import Metric

        now = int(self._clock() * 1000)
        self._client.log_batch(self.run_id, metrics=[Metric(name, value, now, batch) for name, value in values.items()])

    def end(self, *, failed: bool) -> None:
        """Mark the run as finished, or failed."""
        self._client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")
