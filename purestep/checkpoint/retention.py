"""Which checkpoints may be deleted: a pure function of what there is.

A checkpoint stays if any rule wants it. Nothing here touches a file; the deleting is done after a newer checkpoint is safe.
"""

import datetime
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .best import Mode, best_of
from .manifest import Manifest, Reason
from .store import Checkpoint

LASTING: frozenset[Reason] = frozenset({"final", "manual"})


@dataclass(frozen=True)
class Best:
    """Keep the `count` best by a metric."""

    metric: str
    mode: Mode = "min"
    count: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {self.mode!r}")
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")


@dataclass(frozen=True)
class Policy:
    """What to keep: the union of these rules.

    Of checkpoints whose weights are not finite the newest `keep_last` are kept like others, but do not take the place of sound ones.
    `keep_every` keeps those whose `step_count` (label, for trees without counters) is a positive multiple of it. `keep_every_hours`
    divides time since 1970, in UTC, into intervals of that length, and keeps the first of each by label. What counts is when a
    checkpoint was written, as its manifest says: no clock is read here, so the answer never changes.
    """

    keep_last: int = 3
    keep_best: tuple[Best, ...] = ()
    keep_every: int | None = None
    keep_every_hours: float | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {self.keep_last}; the newest checkpoint is never deleted")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"keep_every must be at least 1, got {self.keep_every}")
        if self.keep_every_hours is not None and not self.keep_every_hours > 0:  # `not >` rather than `<=`: also rejects nan
            raise ValueError(f"keep_every_hours must be positive, got {self.keep_every_hours}")


class Plan(NamedTuple):
    """Checkpoints by what shall become of them, each oldest first."""

    keep: list[Checkpoint]
    delete: list[Checkpoint]


def plan(checkpoints: Sequence[Checkpoint], policy: Policy, *, run_id: str, protected: Collection[str] = ()) -> Plan:
    """Decide what to delete.

    Args:
        checkpoints: The committed checkpoints of a root, in any order.
        run_id: Only checkpoints of this run are ever deleted, or counted.
        protected: Paths that stay in any case.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.manifest.label)
    own = [checkpoint for checkpoint in ordered if checkpoint.manifest.run_id == run_id]
    # of a run that blew up, what was there before stays too
    sound = [checkpoint for checkpoint in own if checkpoint.manifest.finite is not False]
    wanted = {checkpoint.path for newest in (own, sound) for checkpoint in newest[-policy.keep_last :]} | set(protected)
    for rule in policy.keep_best:
        wanted |= {checkpoint.path for checkpoint in best_of(own, rule.metric, rule.mode)[: rule.count]}
    wanted |= {checkpoint.path for checkpoint in own if _lasts(checkpoint.manifest, policy.keep_every)}
    if policy.keep_every_hours is not None:
        wanted |= {checkpoint.path for checkpoint in _first_of_each(policy.keep_every_hours, own)}
    wanted |= {checkpoint.path for checkpoint in ordered if checkpoint.manifest.run_id != run_id}
    return Plan([c for c in ordered if c.path in wanted], [c for c in ordered if c.path not in wanted])


def _lasts(manifest: Manifest, keep_every: int | None) -> bool:
    step = manifest.counters.get("step_count", manifest.label)
    return manifest.reason in LASTING or (keep_every is not None and step > 0 and step % keep_every == 0)


def _first_of_each(hours: float, ordered: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The first checkpoint of each interval of time; labels, which never go back, say which is first."""
    first: dict[float, Checkpoint] = {}
    for checkpoint in ordered:
        written = datetime.datetime.fromisoformat(checkpoint.manifest.created).timestamp()
        first.setdefault(written // (3600 * hours), checkpoint)
    return list(first.values())
