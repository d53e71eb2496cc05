"""What can be wrong with a spec: codes, and a problem with its place."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple

CODES = {
    "PS100": "the text is not JSON",
    "PS101": "a field that does not exist",
    "PS102": "a kind that does not exist",
    "PS103": "a field is missing",
    "PS104": "a value of the wrong type",
    "PS105": "a value out of range, or not among the choices",
    "PS106": "a key that occurs twice",
    "PS107": "a number that is not finite",
    "PS108": "fields that contradict each other",
    "PS109": "a version of the spec that this purestep does not read",
    "PS110": "a kind that takes what JSON cannot hold",
    "PS111": "a key of another toolkit without a counterpart here",
    "PS301": "no validation data",
    "PS302": "no checkpoints",
    "PS303": "no model",
    "PS304": "a path that does not exist",
    "PS305": "a learning rate out of the expected range",
    "PS306": "frames without a target of the loss",
    "PS307": "a warm-up longer than the run",
    "PS308": "weight decay after the learning rate",
    "PS309": "half precision without clipping",
    "PS310": "a device that is not there",
    "PS311": "the run directory is taken",
    "PS312": "training and validation share frames",
    "PS313": "batches of different sizes for a compiled step",
    "PS314": "a store with parts, all of which are trained on",
    "PS315": "an average that is mostly the initial weights",
    "PS316": "a learning rate that is 0 before the end",
    "PS317": "a batch larger than the data",
    "PS501": "a target that is not trusted",
    "PS502": "a target that cannot be imported",
    "PS503": "a target of the wrong kind",
    "PS504": "arguments that the target does not take",
}
"""Every code, and what it means in general."""


class Problem(NamedTuple):
    """One thing that is wrong, or that looks so."""

    code: str
    pointer: str
    """JSON pointer to the value, `/strategy/update/0`; empty for the whole document."""
    message: str
    line: int = 0
    """Counted from 1; 0 where there is no text."""
    column: int = 0

    def text(self, file: str = "") -> str:
        """One line: `file:line:column: code pointer: message`."""
        place = ":".join([file, *(str(number) for number in (self.line, self.column) if number)]) if file else ""
        return f"{place + ': ' if place else ''}{self.code} {self.pointer or '/'}: {self.message}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what may have been meant, or what there is."""
    listed = sorted(known)
    begun = sorted((one for one in listed if len(name) > 2 and one.lower().startswith(name.lower())), key=len)
    close = begun or difflib.get_close_matches(name, listed, 1, 0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    shown = ", ".join(listed[:12]) + (", ..." if len(listed) > 12 else "")
    return f" (known: {shown})"
