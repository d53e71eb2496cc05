"""How a run looks in a terminal: layouts draw a `View` with rich.

A layout of one's own is a function and a flag; `preview` shows it without a run.
"""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from .pace import duration
from .view import View, example_view, sparkline

_MOST_METRICS, _MOST_CURVES, _MOST_MESSAGES = 12, 4, 4
_CURVE_WIDTH = 36


class Layout(NamedTuple):
    """A way to draw a run."""

    draw: Callable[[View], Any]
    """From a view to anything that rich can print."""
    holds_messages: bool = False
    """Whether it shows the messages itself; else they scroll by above it."""


def draw_line(view: View) -> Any:
    """One line: a bar, and the leading numbers."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_row(*([Text(view.title)] if view.title else []), _bar(view, 16), Text(view.line, no_wrap=True, overflow="ellipsis"))
    return row


def draw_dashboard(view: View) -> Any:
    """A panel: progress with the time to go, a table of metrics beside their curves, and the latest messages.

    Metrics that never change give way to those that do.
    """
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    head.add_row(Text(view.count, style="bold"), _bar(view, 24), Text(_pace_text(view)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("metric")
    table.add_column("now", justify="right")
    table.add_column("over the run", no_wrap=True)
    shown, rest = _rows(view)
    for name in shown:
        curve = sparkline(view.curves.get(name, ()), _CURVE_WIDTH) if shown.index(name) < _MOST_CURVES else ""
        table.add_row(Text(name), Text(f"{view.metrics[name]:.4g}"), Text(curve))
    if rest:
        table.add_row(Text(f"and {rest} more in the log", style="dim"), "", "")
    messages = [Text(message, style="dim", overflow="ellipsis", no_wrap=True) for message in view.messages[-_MOST_MESSAGES:]]
    return Panel(Group(head, Text(), table, *messages), title=Text(view.title) if view.title else None, title_align="left", expand=False)


def _rows(view: View) -> tuple[list[str], int]:
    """The metrics to show, those with a curve first; and how many others there are."""
    curves = [name for name in view.curves if name in view.metrics]
    moving = [name for name in view.metrics if name not in view.curves and name not in view.constants]
    shown = [*curves, *moving][:_MOST_METRICS]
    return shown, len(view.metrics) - len(shown)


LINE = Layout(draw_line)
DASHBOARD = Layout(draw_dashboard, holds_messages=True)


def preview(layout: Layout = DASHBOARD, view: View | None = None, *, width: int = 100) -> str:
    """What a layout looks like, as text without colours.

    Args:
        layout: To look at.
        view: What to draw; made-up numbers by default.
        width: Of the terminal, in columns.

    Example:
        >>> from purestep.reporting.layouts import LINE
        >>> "step 2000/5000" in preview(LINE)
        True
    """
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(layout.draw(view or example_view()))
    return file.getvalue()


def _bar(view: View, width: int) -> Any:
    from rich.progress_bar import ProgressBar

    progress = view.pace.progress
    return ProgressBar(total=progress.total, completed=progress.done, width=width, pulse=progress.total is None)


def _pace_text(view: View) -> str:
    pace = view.pace
    texts = [f"{pace.progress.done / pace.progress.total:.0%}" if pace.progress.total else None]
    texts += [None if value is None else f"{value:,.3g} {what}/s" for value, what in ((pace.steps_per_s, "steps"),)]
    texts += [None if pace.samples_per_s is None else f"{pace.samples_per_s:,.0f} {view.unit}/s"]
    texts += [None if pace.eta_s is None else f"eta {duration(pace.eta_s)}"]
    return "  ".join(text for text in texts if text is not None)
