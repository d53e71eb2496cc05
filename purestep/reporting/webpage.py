"""One HTML file that tells of a run: curves, errors, facts. It holds its pictures, runs no script and refers to nothing outside."""

import base64
import html
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .pictures import error_histograms, learning_curves, parity, schedule_preview

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #333; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
img { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.15rem 1rem 0.15rem 0; vertical-align: top; } td + td { overflow-wrap: anywhere; }
th { font-weight: 600; } tr + tr { border-top: 1px solid #eee; } td.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; }
nav a { margin-right: 1rem; }
"""
_MOST_ROWS = 50

Section = tuple[str, str]
"""A heading, plain text, and the HTML below it."""


def write_webpage(
    path: str | os.PathLike,
    records: Sequence[Mapping[str, Any]],
    *,
    title: str,
    facts: Mapping[str, Any] | None = None,
    schedule: tuple[np.ndarray, np.ndarray] | None = None,
    parity_panels: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    errors_by_element: Mapping[str, np.ndarray] | None = None,
    error_unit: str = "",
) -> str:
    """Write the report of a run.

    Args:
        path: The file to write; its directory is there.
        records: Lines of the log, as `read_metrics` gives them.
        title: Of the page.
        facts: What else to say of the run, plain JSON: the spec, versions, seeds.
        schedule: Counts and values of the planned learning rate, see `sample_schedule`.
        parity_panels: `(true, predicted)` by quantity, see `parity`.
        errors_by_element: See `error_histograms`.
        error_unit: Of these errors.

    Returns:
        The absolute path.
    """
    with tempfile.TemporaryDirectory() as folder:
        sections = _pictures(folder, records, schedule, parity_panels, errors_by_element, error_unit)
    sections += [*_last_values(records), *_validations(records)]
    if facts:
        sections.append(("Facts", table(("fact", "value"), list(_flat(facts)))))
    return write_page(path, title, sections)


def write_page(path: str | os.PathLike, title: str, sections: Sequence[Section]) -> str:
    """Write a page of sections, with links to them at its top; the absolute path.

    Args:
        path: The file to write; its directory is there.
        title: Of the page, plain text.
        sections: From `image`, `table` and plain headings.
    """
    links = "\n".join(f'<a href="#section-{place}">{html.escape(heading)}</a>' for place, (heading, _) in enumerate(sections))
    body = [f"<h1>{html.escape(title)}</h1>", *([f"<nav>{links}</nav>"] if len(sections) > 1 else [])]
    for place, (heading, content) in enumerate(sections):
        body += [f'<h2 id="section-{place}">{html.escape(heading)}</h2>', content]
    whole = os.path.abspath(os.fspath(path))
    with open(whole, "w", encoding="utf-8") as file:
        file.write(_page(title, body))
    return whole


def _pictures(
    folder: str,
    records: Sequence[Mapping[str, Any]],
    schedule: tuple[np.ndarray, np.ndarray] | None,
    parity_panels: Mapping[str, tuple[np.ndarray, np.ndarray]] | None,
    errors_by_element: Mapping[str, np.ndarray] | None,
    error_unit: str,
) -> list[Section]:
    """The sections of which there is something to draw; the files are in a folder that need not stay."""
    sections = []
    if any(record["kind"] == "train" and record.get("loss/total") is not None for record in records):
        picture = learning_curves(records, os.path.join(folder, "curves.png"), title="")
        sections.append(("Learning curves", image(picture, "Loss, validated loss and learning rate against the batches")))
    if schedule is not None:
        picture = schedule_preview(schedule, os.path.join(folder, "schedule.png"), title="")
        sections.append(("Planned learning rate", image(picture, "Planned learning rate against the steps")))
    if parity_panels:
        picture = parity(parity_panels, os.path.join(folder, "parity.png"), title="")
        sections.append(("Predicted against true", image(picture, f"Predictions against the truth: {', '.join(parity_panels)}")))
    if errors_by_element:
        picture = error_histograms(errors_by_element, os.path.join(folder, "errors.png"), unit=error_unit, title="")
        sections.append(("Errors by element", image(picture, f"Histograms of errors: {', '.join(errors_by_element)}")))
    return sections


def _page(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
    # the policy makes sure of it: nothing is fetched, nothing runs
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def image(path: str, text: str) -> str:
    """A PNG, in the page itself.

    Args:
        path: The file.
        text: What is said in the place of the picture.
    """
    with open(path, "rb") as file:
        content = base64.b64encode(file.read()).decode()
    return f'<img src="data:image/png;base64,{content}" alt="{html.escape(text, quote=True)}">'


def _last_values(records: Sequence[Mapping[str, Any]]) -> list[Section]:
    last = next((record for record in reversed(records) if record["kind"] == "train"), None)
    if last is None:
        return []
    rows = [(name, value) for name, value in last.items() if name not in ("kind", "nonfinite")]
    return [("Last report of training", table(("metric", "value"), rows))]


def _validations(records: Sequence[Mapping[str, Any]]) -> list[Section]:
    found = [record for record in records if record["kind"] == "validation"]
    if not found:
        return []
    names = [name for name in found[-1] if name.startswith("validation/")]
    chosen = found if len(found) <= _MOST_ROWS else [found[round(place)] for place in np.linspace(0, len(found) - 1, _MOST_ROWS)]
    columns = ("batch", "step", "epoch", *names)
    heading = "Validation" if len(chosen) == len(found) else f"Validation ({len(chosen)} of {len(found)})"
    return [(heading, table(columns, [tuple(record.get(name) for name in columns) for record in chosen]))]


def _flat(facts: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names and values."""
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Values under headings; numbers stand to the right, None is an empty cell."""
    head = "".join(f"<th>{html.escape(str(column))}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{'' if value is None else html.escape(str(value))}</td>"
    return f'<td class="number">{value if isinstance(value, int) else format(value, ".6g")}</td>'
