"""What a run tells: listeners that show its progress and write its log, and pictures drawn from the log. They cannot change training."""

from .console import ConsoleProgress
from .csv import CsvWriter
from .jsonl import JsonlWriter, read_metrics
from .mlflow import MlflowWriter
from .pictures import learning_curves, parity
from .record import Record, Recorder
from .scalars import read_scalars
from .signals import StopOnSignal
from .tensorboard import TensorBoardWriter
from .trackers import TrackerWriter
from .trackio import TrackioWriter
from .wandb import WandbWriter

__all__ = [
    "ConsoleProgress",
    "CsvWriter",
    "JsonlWriter",
    "MlflowWriter",
    "Record",
    "Recorder",
    "StopOnSignal",
    "TensorBoardWriter",
    "TrackerWriter",
    "TrackioWriter",
    "WandbWriter",
    "learning_curves",
    "parity",
    "read_metrics",
    "read_scalars",
]
