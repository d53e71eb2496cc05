"""Listeners that a run can do without: a screen, a table, a tracker. The log is none, because what is not in it is lost."""

from ..core.event import Event


class Dispensable:
    """Listener that is not called again once it has failed: the run goes on with one warning.

    A subclass says what it does with an event.
    """

    on_error = "warn"
    _failed = False

    def hear(self, event: Event) -> None:
        """Show or write what an event brings."""
        raise NotImplementedError

    def __call__(self, event: Event) -> None:
        """Hand an event on, unless one has failed before."""
        if self._failed:
            return
        try:
            self.hear(event)
        except Exception as error:
            self._failed = True
            error.add_note(f"{type(self).__name__} writes nothing more in this run")
            raise
