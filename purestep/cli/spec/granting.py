"""What a command line trusts: `--trust`, and `PURESTEP_TRUST` for programs that start others. Never the spec, never a file."""

import os
import sys
from collections.abc import Sequence

VARIABLE = "PURESTEP_TRUST"


def granted(options: Sequence[str]) -> tuple[str, ...]:
    """All grants; those of the environment are separated by colons."""
    return (*options, *filter(None, os.environ.get(VARIABLE, "").split(":")))


def words_of(trust: Sequence[str]) -> tuple[str, ...]:
    """Grants as words of a command line: trust is given anew to each command."""
    return tuple(word for grant in trust for word in ("--trust", grant))


def find_modules_here(trust: Sequence[str]) -> None:
    """Let trusted code be found in the working directory, after everything else, as `python -m` and an installed script differ in it."""
    here = os.getcwd()
    if trust and here not in sys.path and "" not in sys.path:
        sys.path.append(here)
