"""The frame of the command line: commands that are imported when they are used, and one way for all of them to end."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from .exits import end

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Program(click.Group):
    """A group whose commands live in modules of their own, each as `command`.

    Args:
        modules: Module by name of the command, relative to this package.
    """

    def __init__(self, modules: Mapping[str, str], **settings: Any):
        super().__init__(context_settings=SETTINGS, **settings)
        self._modules = dict(modules)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return [*self._modules, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that is asked for."""
        module = self._modules.get(cmd_name)
        return super().get_command(ctx, cmd_name) if module is None else import_module(f".{module}", __package__).command

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run, and exit with the code that the outcome has; with `standalone_mode=False` as click does."""
        run: Callable[..., Any] = super().main
        if not settings.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **settings)
        try:
            outcome = run(*args, standalone_mode=False, **settings)
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(end(error))
        sys.exit(outcome if isinstance(outcome, int) else 0)
