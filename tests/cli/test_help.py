"""Laws of the help of every command there is, however deep."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from purestep.cli import main
from purestep.cli.program import Program


def invocations(group, words=()):
    """The words of every command below a group, of groups too."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield [*words, name]
        if isinstance(command, Program):
            yield from invocations(command, (*words, name))


ALL = list(invocations(main))
LOAD_ALL = """
import sys
from purestep.cli import main
def visit(group):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            visit(command)
visit(main)
print(*sys.modules)
"""


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_is_on_one_screen_and_begins_with_examples(words):
    long, short = (CliRunner().invoke(main, [*words, flag]) for flag in ("--help", "-h"))
    assert (long.exit_code, long.stdout) == (0, short.stdout)
    lines = long.stdout.splitlines()
    assert len(lines) <= 40
    assert f"purestep {' '.join(words)}" in " ".join(lines[1:])


def test_no_command_loads_anything_heavy_before_it_runs():
    done = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "pydantic", "zarr", "matplotlib", "rich"}.isdisjoint(done.stdout.split())
