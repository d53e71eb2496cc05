"""Checkpoints of a run: at the right moments, in the background, the old ones deleted."""

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, Self

from torch import Tensor

from ..core.cadence import Cadence, Moment, is_due, reason_at_end
from ..core.event import Event
from ..core.hook import Stage
from ..core.saved_parts import RankReport
from ..errors import CheckpointError, CheckpointSaveError
from . import layout, snapshot
from .best import parse_best
from .hashing import Hash
from .layout import Placed
from .lock import lock_root, unlock_root
from .manifest import Reason
from .retention import Best, Policy
from .root import apply_retention, make_way, refresh_links, refuse_to_go_back
from .shards import join_reports
from .splitting import MAX_FILE_BYTES, check_limit
from .staging import clean, commit, make_root, staging
from .store import directory_name, scan
from .write import About, about_state, encode_checked, make_manifest, saving, write_checkpoint

OnBusy = Literal["wait", "skip"]
_log = logging.getLogger("purestep.checkpoint")


class Checkpointer:
    """Writer of the checkpoints of one run in one root.

    It is a listener on the events of the loop, and can be called by hand. An exception (not KeyboardInterrupt) that ends a run of one
    process makes it save the last whole state, with the reason `exception`. With `async_` the state is copied to host buffers before
    `save` returns, and written by a background thread; at most one save is in flight, and its failure is raised by the next call. From
    the construction to `close` no other process can write to the root.

    Args:
        root: Directory of the checkpoints; created if missing.
        every_n_steps: Save when `step_count` reaches a multiple; never again while it stands still.
        every_n_epochs: Save when `epoch_count` reaches a multiple.
        every_seconds: Save when this much time has passed since the last save.
        keep_last: How many of the newest to keep; at least 1.
        keep_best: Also keep the best by a metric of the step or of validation: `"validation/loss/total"` (lowest),
            `"max:validation/accuracy"`, a `Best`, or several.
        keep_every: Also keep those whose `step_count` is a multiple of this.
        keep_every_hours: Also keep the first that was written in each interval of so many hours, counted in UTC.
        async_: Write in the background.
        on_busy: What `save` does while the previous one is being written: wait for it, or skip this one.
        hash: As for `save`; default `"sha256"` in the background, where nobody waits for it, else `"crc32c"`. `save_parts` takes neither
            this nor the next: a rank's files are its own affair.
        max_file_bytes: As for `save`.
        extra: Plain JSON to keep in every checkpoint.
        run_id: UUID of the run; default that of the newest checkpoint in the root, else a new one.

    Raises:
        CheckpointSaveError: If another writer has the root.
    """

    hears_errors = True

    def __init__(
        self,
        root: str | os.PathLike,
        *,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        every_seconds: float | None = None,
        keep_last: int = 3,
        keep_best: str | Best | Sequence[str | Best] | None = None,
        keep_every: int | None = None,
        keep_every_hours: float | None = None,
        async_: bool = True,
        on_busy: OnBusy = "wait",
        hash: Hash | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        extra: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        if on_busy not in ("wait", "skip"):
            raise ValueError(f"on_busy must be 'wait' or 'skip', got {on_busy!r}")
        self.cadence = Cadence(every_n_steps, every_n_epochs, every_seconds)
        self.policy = Policy(keep_last, _best_rules(keep_best), keep_every, keep_every_hours)
        check_limit(max_file_bytes)
        self.on_busy = on_busy
        self.max_file_bytes = max_file_bytes
        self.hash: Hash = hash or ("sha256" if async_ else "crc32c")
        self.extra = dict(extra or {})
        self.root = os.path.abspath(os.fspath(root))
        with saving(self.root):
            make_root(self.root)
            self._lock = lock_root(self.root)
            try:
                clean(self.root)
                newest = next((found.manifest for found in reversed(scan(self.root).checkpoints)), None)
            except BaseException:
                unlock_root(self._lock)
                raise
        self.run_id = run_id or (newest.run_id if newest else str(uuid.uuid4()))
        self._parent_id = newest.checkpoint_id if newest else None
        self._newest_label: int | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="purestep-checkpoint") if async_ else None
        self._pending: Future[str] | None = None
        self._buffers: list[Tensor | None] = []
        self._last: Moment | None = None
        self._begun: tuple[int, int] | None = None
        self._saved: tuple[int, int] | None = None
        self._closed = False

    # --- by hand ---------------------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        step: int | None = None,
        *,
        reason: Reason = "periodic",
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bool:
        """Save a state under a label.

        Args:
            step: The label, which grows with the run; default the state's `batch_count`.
            reason: Why; those of reason `final` or `manual` are never deleted.
            metrics: By which it may be the best.
            extra: Plain JSON to keep beside the state, on top of that of the constructor.

        Returns:
            Whether it was, or will be, written; False only if the previous one is still being written and `on_busy` is `"skip"`.

        Raises:
            CheckpointSaveError: If this save, or the previous one in the background, failed. What was there is untouched.
        """
        self._check_usable()
        if self._pending is not None and not self._pending.done() and self.on_busy == "skip":
            _log.warning("checkpoint skipped: the previous one is still being written")
            return False
        self.wait()
        placed = layout.place(state)
        about = self._about(state, step, reason, metrics, extra)
        self._newest_label = about.label
        if self._worker is None:
            self._parent_id = self._write(placed, about)
            return True
        self._buffers = snapshot.buffers_for(placed, self._buffers)
        self._pending = self._worker.submit(self._write, snapshot.copy_into(self._buffers, placed), about)
        return True

    def save_parts(
        self,
        state: Any,
        step: int | None = None,
        *,
        write: Callable[[str], Sequence[RankReport]],
        reason: Reason = "periodic",
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a state of which several ranks write their parts; it returns when the checkpoint is safe.

        Args:
            state: What this process has of it; gives the counters and the structure.
            step: As for `save`, like the rest.
            write: `write(directory)`, called once: has all ranks write into the directory, by `write_rank`, and returns their reports. If
                it raises, nothing is left of the attempt.

        Raises:
            CheckpointSaveError: If it could not be written, or the parts do not make up the state.
        """
        self._check_usable()
        self.wait()
        about = self._about(state, step, reason, metrics, extra)
        path = os.path.join(self.root, directory_name(about.label))
        with saving(path):
            make_way(path, self.run_id)
            with staging(path) as stage:
                reports = write(stage.path)
                about = replace(about, world_size=len(reports), finite=all(report.finite for report in reports))
                manifest = make_manifest(*join_reports(reports), about)
                commit(stage, encode_checked(manifest))
        self._parent_id, self._newest_label = manifest.checkpoint_id, about.label
        self._tidy_up(path)

    def check_start(self, label: int) -> None:
        """Refuse to begin at a label below those that are there: that run would end at its first save.

        Raises:
            CheckpointSaveError: Saying what is there.
        """
        with saving(self.root):
            refuse_to_go_back(self.root, label)

    def prepare(self, state: Any) -> None:
        """Allocate the host buffers before the first save, so that it blocks no longer than the others."""
        if self._worker is not None and self._pending is None:
            self._buffers = snapshot.buffers_for(layout.place(state), self._buffers)

    def wait(self) -> None:
        """Wait until the save in flight is safe.

        Raises:
            CheckpointSaveError: If it failed; each failure is raised once.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                self._parent_id = pending.result()
            except BaseException:
                self._saved = None
                raise

    def close(self) -> None:
        """Wait for the save in flight and give up the root; calling it twice is fine.

        Raises:
            CheckpointSaveError: If that save failed.
        """
        self._closed = True
        try:
            self.wait()
        finally:
            if self._worker is not None:
                self._worker.shutdown()
            unlock_root(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(f"besides, the last checkpoint was not written: {failure}")

    def _about(
        self, state: Any, step: int | None, reason: Reason, metrics: Mapping[str, float] | None, extra: Mapping[str, Any] | None
    ) -> About:
        """What the manifest will say of a state, if its label may be the next one."""
        about = about_state(
            state,
            step,
            extra={**self.extra, **(extra or {})},
            run_id=self.run_id,
            parent_id=self._parent_id,
            reason=reason,
            metrics=_plain_numbers(metrics or {}),
        )
        directory_name(about.label)  # a label out of range is the caller's error, not the background's
        if self._newest_label is None or about.label < self._newest_label:
            self.check_start(about.label)
        return about

    def _check_usable(self) -> None:
        if self._closed:
            raise CheckpointSaveError(f"the Checkpointer of {self.root} is closed; make a new one")
        if not os.path.isdir(self.root):
            raise CheckpointSaveError(f"{self.root} was deleted, and with it the lock on it; make a new Checkpointer")

    def _write(self, placed: Sequence[Placed], about: About) -> str:
        """Write one checkpoint, then tidy up; the id of the checkpoint. Runs in the background if there is one."""
        try:
            path = os.path.join(self.root, directory_name(about.label))
            if about.reason == "exception" or (about.metrics and self.policy.keep_best):
                about = replace(about, finite=layout.has_finite_weights(placed))
            with saving(path):
                make_way(path, self.run_id)
                checkpoint_id = write_checkpoint(path, placed, about, hash=self.hash, max_file_bytes=self.max_file_bytes)
        except Exception as error:
            _log.error("checkpoint %d was not written: %s", about.label, error)  # now, in case nobody ever calls again
            raise
        _log.info("checkpoint %d was written, for %s", about.label, about.reason)
        self._tidy_up(path)
        return checkpoint_id

    def _tidy_up(self, path: str) -> None:
        try:
            refresh_links(self.root, path, self.policy)
            apply_retention(self.root, self.policy, self.run_id)
        except OSError as error:
            _log.warning("%s is safe, but tidying up after it failed: %s", path, error)

    # --- as a listener ----------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Save if one is due after this event: at the end of a batch or an epoch, which the loop reports after the validation there."""
        if event.error is not None:
            self._hear_error(event)
            return
        if self._pending is not None and self._pending.done():
            self.wait()
        if event.stage in (Stage.SETUP, Stage.BEFORE_TRAINING) and self._last is None:
            self.check_start(event.batch_count)
            self.prepare(event.state)
            self._last, self._begun = _moment_of(event), _place_of(event)
        elif event.stage in (Stage.AFTER_BATCH, Stage.AFTER_EPOCH):
            due = self._due(event)
            if due and self._save_event(event, "periodic"):
                self._last = due
        elif event.stage is Stage.AFTER_TRAINING:
            self.wait()
            if not self._has(event):
                self._save_event(event, reason_at_end(event))
            self.wait()

    def _hear_error(self, event: Event) -> None:
        """Save the last whole state of a run that failed; the loop adds to the run's error what goes wrong here."""
        with suppress(CheckpointSaveError):  # logged when it happened, and perhaps what failed the run
            self.wait()
        if event.batch_count > 0 and not self._has(event):
            self._save_event(event, "exception")
        self.wait()

    def _has(self, event: Event) -> bool:
        """Whether the state of this moment is on disk: saved by us, or there since before the run, which has got no further."""
        place = _place_of(event)
        if place == self._begun:
            return any(found.manifest.label == event.batch_count for found in scan(self.root).checkpoints)
        return place == self._saved

    def _due(self, event: Event) -> Moment | None:
        """The present moment if a save is due."""
        if self._last is None:  # the run began before we could hear it, so only the latest batch can be new
            first = _moment_of(event)
            self._last = first._replace(step=max(first.step - 1, 0))
        # updates never exceed batches, so most of the time it is clear without asking the device that nothing is due
        if not is_due(self.cadence, self._last, _moment_of(event, event.step_bound)):
            return None
        now = _moment_of(event)
        return now if is_due(self.cadence, self._last, now) else None

    def _save_event(self, event: Event, reason: Reason) -> bool:
        validation = {f"validation/{name}": value for name, value in (event.validation or {}).items()}
        written = self.save(event.state, event.batch_count, reason=reason, metrics={**event.metrics, **validation})
        if written:
            self._saved = _place_of(event)
        return written


def _moment_of(event: Event, step: int | None = None) -> Moment:
    return Moment(event.step_count if step is None else step, event.epoch_count, time.monotonic())


def _place_of(event: Event) -> tuple[int, int]:
    return event.batch_count, event.epoch_count


def _best_rules(rules: str | Best | Sequence[str | Best] | None) -> tuple[Best, ...]:
    listed = [] if rules is None else [rules] if isinstance(rules, str | Best) else list(rules)
    return tuple(rule if isinstance(rule, Best) else _best_rule(rule) for rule in listed)


def _best_rule(text: str) -> Best:
    metric, mode = parse_best(text if text.startswith("best:") else f"best:{text}")
    return Best(metric, mode)


def _plain_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Scalars as floats; what is no scalar cannot rank checkpoints and is left out."""
    scalars = {name: value for name, value in metrics.items() if isinstance(value, int | float) or getattr(value, "ndim", None) == 0}
    return {name: float(value) for name, value in scalars.items()}
