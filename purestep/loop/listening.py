"""Listeners: refusing what is none, asking all of them, and what happens when one fails."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from ..core.event import Event, Listener, Stop
from ..core.ranks import Ranks

Span = Callable[[str], contextlib.AbstractContextManager[Any]]
OnListenerError = Literal["raise", "warn", "ignore"]


def check_listeners(listeners: Any, policy: Any) -> tuple[Listener, ...]:
    """The listeners as a tuple.

    Raises:
        TypeError: If it is one listener rather than several, or one of them cannot be called.
        ValueError: For an unknown policy, of the run or of a listener.
    """
    if callable(listeners) or not isinstance(listeners, Sequence) or isinstance(listeners, str):
        raise TypeError(f"fit: listeners must be a list, got {type(listeners).__name__}; write listeners=[...]")
    for place, listener in enumerate(listeners):
        if not callable(listener) or isinstance(listener, type):
            advice = f"make one: {listener.__name__}(...)" if isinstance(listener, type) else "give a function of an Event"
            raise TypeError(f"fit: listeners[{place}] is not a listener: got {listener!r}; {advice}")
    for name, value in [("on_listener_error", policy), *((name_of(one), one.on_error) for one in listeners if hasattr(one, "on_error"))]:
        if value not in get_args(OnListenerError):
            raise ValueError(f"fit: {name}: unknown policy {value!r} (known: {', '.join(get_args(OnListenerError))})")
    return tuple(listeners)


def ask_together(
    ranks: Ranks, listeners: Sequence[Listener], event: Event, policy: OnListenerError, span: Span = contextlib.nullcontext
) -> str | None:
    """Why the run should end here, if a listener of any rank wants it to; the same answer, or an error, on every rank."""
    heard = [listener for listener in listeners if ranks.rank == 0 or getattr(listener, "on_every_rank", False)]
    try:
        answers = [_ask(listener, event, policy, span) for listener in heard]
    except Exception as error:
        ranks.settle(error=error)
        raise
    return ranks.settle(next((answer.reason for answer in answers if isinstance(answer, Stop)), None))


def _ask(listener: Listener, event: Event, policy: OnListenerError, span: Span) -> Stop | None:
    """The answer of one listener; none if it fails and may."""
    chosen = getattr(listener, "on_error", policy)
    try:
        with span(f"listener {name_of(listener)}"):
            return listener(event)
    except Exception as error:
        if chosen == "raise":
            raise
        if chosen == "warn":
            place = f"at {event.stage.name} of batch {event.batch_count}"
            text = f"listener {name_of(listener)} failed {place}, training goes on: {type(error).__name__}: {error}"
            warnings.warn("; ".join([text, *getattr(error, "__notes__", ())]), RuntimeWarning, stacklevel=2)
        return None


def tell_of_error(listeners: Sequence[Listener], event: Event) -> None:
    """Let those who asked know that the run has failed; what goes wrong meanwhile becomes a note on the error."""
    assert event.error is not None
    for listener in listeners:
        if getattr(listener, "hears_errors", False):
            try:
                listener(event)
            except Exception as failure:
                event.error.add_note(f"besides, {name_of(listener)} failed when told of this: {type(failure).__name__}: {failure}")


def name_of(listener: Any) -> str:
    """What to call a listener in a message."""
    return getattr(listener, "__qualname__", type(listener).__name__)
