"""Event files for TensorBoard: scalars, and histograms on request."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.event import Event
from ..core.hook import Stage
from .trackers import TrackerWriter, require


class TensorBoardWriter(TrackerWriter):
    """Listener that writes event files into a directory; a run that resumes hides what it makes anew.

    Args:
        directory: Of the event files; made if missing.
        every_n_batches: How often to write the metrics of a batch.
        histograms: Patterns of leaves of the state, such as `params.*`, whose values to write as histograms.
        histograms_every_n_batches: How often; they read whole tensors from the device.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        every_n_batches: int = 10,
        histograms: Sequence[str] = (),
        histograms_every_n_batches: int = 1000,
    ):
        super().__init__(every_n_batches=every_n_batches)
        require("tensorboard", "tensorboard")
        if histograms_every_n_batches < 1:
            raise ValueError(f"histograms_every_n_batches must be at least 1, got {histograms_every_n_batches}")
        self.directory = os.path.abspath(os.fspath(directory))
        self._patterns = (histograms,) if isinstance(histograms, str) else tuple(histograms)
        self._every = histograms_every_n_batches
        self._names: list[str] = []
        self._writer: Any = None

    def begin(self, event: Event) -> None:
        """Open an event file; what earlier ones hold past this batch is hidden."""
        from torch.utils.tensorboard import SummaryWriter  # loads tensorboard, which only those who want it should wait for

        names = [name for name, leaf in tree.items(event.state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        hits = tree.first_matches(self._patterns, names, "histogram pattern")
        self._names = [name for name, hit in zip(names, hits, strict=True) if hit is not None]
        self._writer = SummaryWriter(self.directory, purge_step=event.batch_count + 1)

    def write(self, values: Mapping[str, float], batch: int) -> None:
        """Write scalars, and let readers see them."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, batch)
        self._writer.flush()

    def look(self, event: Event) -> None:
        """Write histograms if it is time."""
        if event.stage is not Stage.AFTER_BATCH or not self._names or event.batch_count % self._every:
            return
        leaves = dict(tree.items(event.state))
        for name in self._names:
            values = leaves[name].detach().float().cpu()
            finite = values[torch.isfinite(values)]
            if finite.numel():  # a histogram of nothing is an error there
                self._writer.add_histogram(name, finite, event.batch_count)

    def end(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()
