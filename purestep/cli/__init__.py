"""The command line: words to actions. A command is a file with a click command named `command`, and a line in the table here.

stdout carries the result and nothing else, stderr everything else; `exits.py` has the exit codes. Neither torch nor pydantic is imported
before a command needs it.
"""

import click

from .. import __version__
from .program import Program

COMMANDS = {
    "ckpt": "ckpt.group",
    "data": "data.group",
    "debug": "debug.group",
    "demo": "demo.command",
    "doctor": "doctor",
    "explain": "explain",
    "finetune": "finetune",
    "lr": "lr",
    "runs": "runs.group",
    "schema": "schema",
    "spec": "spec.group",
    "train": "train",
}
"""Where each command lives, relative to this package."""

main = click.version_option(__version__, prog_name="purestep")(
    Program(
        COMMANDS,
        name="purestep",
        help="Train PyTorch models with pure functions.\n\n\b\n  purestep demo            the whole of it on real molecules, in minutes\n"
        "  purestep demo --help     what a command can do",
    )
)
"""The program; `purestep` and `python -m purestep` call it."""

__all__ = ["COMMANDS", "main"]
