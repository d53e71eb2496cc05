"""How fast a run is and how long it will take: arithmetic on counts and a clock."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Goal:
    """How far a run is, in batches; the end is unknown where the length of an epoch is."""

    done: int
    total: int | None


def goal(batch_count: int, step_count: int, target: Mapping[str, int], num_batches: int | None) -> Goal:
    """Batches done, and to do in all if no further update is vetoed.

    Args:
        target: `{"num_steps": n}`, `{"num_batches": n}` or `{"num_epochs": n}`; empty where only the clock ends the run.
        num_batches: Batches of an epoch, where known.

    Example:
        >>> goal(batch_count=120, step_count=100, target={"num_steps": 1000}, num_batches=None)
        Goal(done=120, total=1020)
    """
    if "num_steps" in target:
        return Goal(batch_count, batch_count + max(target["num_steps"] - step_count, 0))
    if "num_batches" in target:
        return Goal(batch_count, target["num_batches"])
    if num_batches is None or "num_epochs" not in target:
        return Goal(batch_count, None)
    return Goal(batch_count, num_batches * target["num_epochs"])


def remaining_seconds(progress: Goal, done_here: int, seconds: float) -> float | None:
    """Time to go at the pace of `done_here` batches in `seconds`; None if there is no pace or no end.

    Example:
        >>> remaining_seconds(Goal(done=50, total=100), done_here=10, seconds=2.0)
        10.0
    """
    if progress.total is None or done_here <= 0 or seconds <= 0:
        return None
    return (progress.total - progress.done) * seconds / done_here


def duration(seconds: float) -> str:
    """A time to read.

    Example:
        >>> duration(7.2), duration(252), duration(3725)
        ('7s', '4m12s', '1h02m')
    """
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
