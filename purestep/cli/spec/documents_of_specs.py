"""Specs as commands are given them: a file, or the directory of a run; and what is said about how they were read."""

import os
from typing import TYPE_CHECKING, Any

from ..exits import tell

if TYPE_CHECKING:
    from ...spec.envelope import Spec


def file_of(path: str) -> str:
    """The file that a path means: of the directory of a run, the spec in it."""
    return os.path.join(path, "spec.json") if os.path.isdir(path) else path


def text_of(path: str) -> str:
    """The text of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read(path: str, overrides: tuple[str, ...] = ()) -> "Spec":
    """Read a spec, say what was read under another name, and make its paths absolute."""
    from ...spec.building import absolute
    from ...spec.reading import notes_of, read_spec

    file = file_of(path)
    spec = read_spec(file, overrides)
    if notes := notes_of(text_of(file)):
        tell(f"{file} is in the form of another toolkit; read as (purestep spec upgrade writes it down):", *(f"  {note}" for note in notes))
    return absolute(spec, os.path.dirname(file))


def refuse_bad(document: Any, file: str) -> None:
    """Check a document that a command made.

    Raises:
        InvalidSpecError: If anything is wrong with it.
    """
    from ...spec.reading import InvalidSpecError, check_text
    from ..documents import dump

    problems = check_text(dump(document)).problems
    if problems:
        # lines are those of a text that nobody has
        raise InvalidSpecError([problem._replace(line=0, column=0) for problem in problems], file)
