"""Files that a command makes: never over one that is there, and refused before the work that fills them."""

import os

from .exits import ExitCode, Refusal


def check_new(path: str) -> str:
    """The path, if nothing is there and its directory exists.

    Raises:
        Refusal: Otherwise.
    """
    if os.path.lexists(path):
        raise _taken(path)
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise Refusal(f"{path}: there is no directory {directory}", ExitCode.PATH, [f"mkdir -p {directory}"])
    return path


def write_new(path: str, text: str) -> None:
    """Write a file that must not exist.

    Raises:
        Refusal: If it does.
    """
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _taken(path) from error


def _taken(path: str) -> Refusal:
    return Refusal(f"{path} exists, and nothing is written over it", ExitCode.PATH, ["choose another name, or delete it"])
