"""Where else a run writes its metrics: one model for each writer. The log of a run, `metrics.jsonl`, is written in any case.

How often is `output.report_every`; files and directories are within that of the run.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, StringConstraints

from .families import Model

Name = Annotated[str, StringConstraints(min_length=1)]


class TensorBoard(Model):
    """Event files in `tensorboard/`."""

    kind: Literal["tensorboard"]
    """Event files for TensorBoard, in `tensorboard/`."""
    histograms: tuple[Name, ...] = ()
    """Patterns of leaves of the state whose values are written too, such as `params.*`."""
    histograms_every_n_batches: PositiveInt = 1000
    """How often; whole tensors are read from the device."""


class Csv(Model):
    """A table, `train.csv` or `validation.csv`."""

    kind: Literal["csv"]
    """A table of one kind of record, `train.csv` or `validation.csv`."""
    records: Literal["train", "validation"] = "train"
    """Which records."""


class Wandb(Model):
    """A run at Weights & Biases; a resumed run goes on with its curves."""

    kind: Literal["wandb"]
    """A run at Weights & Biases, its files in `wandb/`."""
    project: Name
    """Of the run."""
    mode: Literal["offline", "online"] = "offline"
    """offline: `wandb sync` uploads it later; online needs a key in the environment variable WANDB_API_KEY."""


class Mlflow(Model):
    """A run of MLflow; a resumed run goes on with its curves."""

    kind: Literal["mlflow"]
    """A run of MLflow, in a local store or on a server."""
    tracking_uri: Name
    """Where runs are kept: `sqlite:///mlflow.db`, relative to the working directory, or `http://...`."""
    experiment: Name
    """Name of the experiment; made if missing."""


class Trackio(Model):
    """A run of trackio, on this machine; a resumed run goes on under its name."""

    kind: Literal["trackio"]
    """A run of trackio, on this machine."""
    project: Name
    """Of the run."""


Sink = Annotated[TensorBoard | Csv | Wandb | Mlflow | Trackio, Field(discriminator="kind")]
