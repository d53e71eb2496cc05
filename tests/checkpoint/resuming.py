"""The run that is interrupted in every way: 25 samples in batches of 4, dropout, batch norm, AdamW, averages, a plateau schedule, loss
scaling, windows of three batches, shuffling; two epochs.

    python -m tests.checkpoint.resuming DIRECTORY [WAIT_AT]

continues it in a directory, and waits for a signal after a batch.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import purestep as ps
from purestep.checkpoint import Checkpointer, list_checkpoints, load
from purestep.core.event import Stop
from purestep.core.hook import Stage
from purestep.data.loader import Loader
from purestep.reporting import JsonlWriter, StopOnSignal

NUM_EPOCHS, NUM_BATCHES = 2, 7


class Model(nn.Module):
    """Dropout and batch normalization between two linear layers."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 1)).double()

    def forward(self, batch):
        return {"y": self.body(batch["x"].flatten(0, 1)).unflatten(0, batch["x"].shape[:2])}


def mean_square(predictions, batch):
    return (predictions["y"] - batch["y"]).square().mean()


def make_run():
    optimizer = ps.chain(
        ps.dynamic_loss_scale(initial_scale=8.0, growth_interval=3),
        ps.accumulate(3),
        ps.clip_by_global_norm(1.0),
        ps.adamw(0.05, weight_decay=0.1),
        ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation"),
    )
    training = ps.Training(Model(), loss=mean_square, optimizer=optimizer, hooks=[ps.hooks.ema(0.8)])
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(25, 2, 3, generator=generator, dtype=torch.float64)
    data = [{"x": row, "y": row.sum(1, keepdim=True), "index": torch.tensor(index)} for index, row in enumerate(x)]
    batches = Loader(data, 4, seed=5, last="keep")
    return training, batches, ps.Validation([{"x": x[:6], "y": x[:6].sum(2, keepdim=True)}], every_n_steps=2)


class Log:
    """Sample numbers and losses of every batch, and the summaries of validations, by place."""

    def __init__(self):
        self.lines = []

    def __call__(self, event):
        if event.stage is Stage.AFTER_BATCH:
            numbers = {name: float(value).hex() for name, value in event.metrics.items()}
            self.lines.append(("batch", event.batch_count, event.batch["index"].tolist(), numbers, event.validation))


def stop_after(batch_count):
    def listener(event):
        return Stop("asked") if event.stage is Stage.AFTER_BATCH and event.batch_count == batch_count else None

    return listener


def run(root, *others, make=None, logs=(), **cadence):
    """Train from the newest checkpoint of a root, or from the beginning."""
    training, batches, validation = (make or make_run)()
    log = Log()
    with Checkpointer(root, keep_last=99, **cadence) as writer:
        begun = list_checkpoints(root)
        state = load(root, training.init(3)) if begun else None
        result = ps.fit(
            training, batches, state=state, num_epochs=NUM_EPOCHS, seed=3, validation=validation, listeners=[log, *logs, writer, *others]
        )
    return result.state, log.lines


# --- in processes that end before their time ----------------------------------------------------------------------


class SampleLog:
    """A file with the numbers of the samples of every batch, a line each; a run that continues cuts off what it will do again."""

    def __init__(self, path):
        self.path = path

    def __call__(self, event):
        if event.stage is Stage.BEFORE_TRAINING and self.path.exists():
            self.path.write_text("".join(self.path.read_text().splitlines(keepends=True)[: event.batch_count]))
        if event.stage is Stage.AFTER_BATCH:
            with open(self.path, "a", buffering=1) as file:
                file.write(f"{event.batch_count}: {event.batch['index'].tolist()}\n")


def run_in(directory, *others, **options):
    """Train in a directory that holds the checkpoints, the log of samples and the metrics; a checkpoint after every update."""
    logs = (SampleLog(directory / "samples.txt"), JsonlWriter(directory / "metrics.jsonl", every_n_batches=1))
    return run(directory / "checkpoints", *others, logs=logs, every_n_steps=1, **options)


def main(directory, wait_at=0):
    """Run to the end, or until a signal comes, which is waited for after a batch."""
    stop = StopOnSignal(signal.SIGTERM)

    def wait(event):
        if event.stage is Stage.AFTER_BATCH and event.batch_count == wait_at:
            print("waiting", flush=True)
            while stop.received is None:
                time.sleep(0.001)

    torch.set_num_threads(1)
    with stop:
        run_in(directory, wait, stop)
    return 0 if stop.received is None else os.EX_TEMPFAIL


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
