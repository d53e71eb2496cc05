"""What a run tells: listeners that show its progress and write its log, and pictures drawn from the log. They cannot change training."""

from .console import ConsoleProgress
from .csv import CsvWriter
from .jsonl import JsonlWriter, read_metrics
from .layouts import DASHBOARD, LINE, Layout, preview
from .memory import memory_report, memory_table
from .mlflow import MlflowWriter
from .pictures import error_histograms, learning_curves, parity, sample_schedule, schedule_preview
from .predictions import CollectPredictions
from .profiling import Profile
from .record import Record, Recorder
from .scalars import read_scalars
from .signals import StopOnSignal
from .tensorboard import TensorBoardWriter
from .trackers import TrackerWriter
from .trackio import TrackioWriter
from .view import View
from .wandb import WandbWriter
from .webpage import write_webpage

__all__ = [
    "CollectPredictions",
    "ConsoleProgress",
    "CsvWriter",
    "DASHBOARD",
    "JsonlWriter",
    "LINE",
    "Layout",
    "MlflowWriter",
    "Profile",
    "Record",
    "Recorder",
    "StopOnSignal",
    "TensorBoardWriter",
    "TrackerWriter",
    "TrackioWriter",
    "View",
    "WandbWriter",
    "error_histograms",
    "learning_curves",
    "memory_report",
    "memory_table",
    "parity",
    "preview",
    "read_metrics",
    "read_scalars",
    "sample_schedule",
    "schedule_preview",
    "write_webpage",
]
