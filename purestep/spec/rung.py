"""One rung of a rehearsal: something that is tried, how it came out, and the ways in which it may not."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

Outcome = Literal["passed", "failed", "not needed", "not tried"]


class Rung(NamedTuple):
    """One thing that a rehearsal came to."""

    name: str
    outcome: Outcome
    words: str
    seconds: float


class Failure(Exception):
    """What a rung found, in words."""


class NotTried(Exception):
    """Why a rung could not be climbed, though the run will do what it is for; in words."""


def climb(name: str, attempt: Callable[[], str | None], *, unneeded: str = "") -> Rung:
    """Try one thing.

    Args:
        attempt: Says what it saw; None if the run does not do this.
        unneeded: Why the run does not do it, in words.
    """
    began = time.perf_counter()
    outcome: Outcome = "passed"
    try:
        words = attempt()
    except Failure as failure:
        outcome, words = "failed", str(failure)
    except NotTried as reason:
        outcome, words = "not tried", str(reason)
    if words is None:
        outcome, words = "not needed", unneeded
    return Rung(name, outcome, words, time.perf_counter() - began)
