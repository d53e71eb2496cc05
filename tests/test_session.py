"""The page with a session: its commands run from top to bottom in a terminal, and the screen shows what the page shows.

In the page `…` is any text within a line, and any lines where it is a line of its own. `# SIGTERM` is where the signal is sent: as soon as
the screen shows what stands above.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.terminal import play

PAGE = (Path(__file__).parents[1] / "docs/session.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SIGTERM = "# SIGTERM\n"
PROGRAMS = {"purestep": [sys.executable, "-m", "purestep"], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}


def commands():
    """The lines that are typed, each with what the page shows below it."""
    return [found for block in BLOCK.findall(PAGE) for found in COMMAND.findall(block)]


def pattern(shown):
    """The regular expression of lines of the page."""
    lines = shown.splitlines()
    return "".join("(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in lines)


def is_shown(shown, screen):
    """Whether a screen is what the page shows."""
    return re.fullmatch(pattern(shown), screen) is not None


def type_line(line, shown, cwd, code):
    """Run a line of the page; `code` is what `$?` is."""
    program, *words = shlex.split(line.replace("$?", str(code)))
    above, signal, _ = shown.partition(SIGTERM)
    when = re.compile(pattern(above)).match if signal else None
    return play([*PROGRAMS.get(program, [program]), *words], cwd, when=when)


@pytest.mark.slow
def test_the_session_of_the_page_runs_in_a_terminal_as_it_is_shown(tmp_path):
    lines, played, code = commands(), {}, 0
    for (line, shown), (following, _) in zip(lines, [*lines[1:], ("", "")], strict=True):
        code, screen, _ = played[line] = type_line(line, shown, tmp_path, code)
        as_shown, ended_well = is_shown(shown.replace(SIGTERM, ""), screen), code == 0 or following == "echo $?"
        assert (as_shown, ended_well) == (True, True), f"$ {line}\n{shown}--- but the screen shows, with exit code {code}\n{screen}"
    dashboard = "╭─ first"
    resumed = played["purestep spec resume runs/first"]
    assert resumed.stream.count(dashboard) > 5  # drawn anew at each report,
    assert resumed.screen.count(dashboard) == 1  # over the one before
    assert re.search(r"│ loss/total +\S+ +[▁-█]{10} +│", resumed.screen)  # a mark for each report, those before the stop too
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(lines) == 16


def test_what_differs_from_the_page_is_noticed():
    shown = "a … c\n…\nend\n"
    assert is_shown(shown, "a b c\nend\n")
    assert is_shown(shown, "a b c\nx\ny\nend\n")
    assert not is_shown(shown, "a b d\nend\n")
    assert not is_shown(shown, "a b c\nend\nmore\n")
