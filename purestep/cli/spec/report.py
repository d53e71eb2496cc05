"""The command `purestep spec report`: what a spec will do, and what looks wrong with it."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..exits import ExitCode, tell

if TYPE_CHECKING:
    from ...spec.envelope import Spec
    from ...spec.summary import Summary


@click.command(
    "report",
    short_help="Say what a spec will do.",
    help="""Say what a spec will do: models, order of the updates, learning rate, data, output; and warn of what looks wrong.

    \b
      purestep spec report train.json
      purestep spec report train.json --strict                      exit code 3 if there is a warning
      purestep spec report train.json --deep --trust my.package     make the model, and say how large it is

    Nothing that the spec names is imported, unless --deep asks for it.""",
)
@click.argument("path", metavar="SPEC")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="What the run will be given.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--strict", is_flag=True, help="A warning is a failure.")
@click.option("--deep", is_flag=True, help="Import and make the model too, with --trust where it is not purestep's; say how large it is.")
@click.option("--width", type=click.IntRange(8, 400), default=64, show_default=True, help="Of the learning-rate curve.")
def command(path: str, overrides: tuple[str, ...], trust: tuple[str, ...], as_json: bool, strict: bool, deep: bool, width: int) -> int:
    """Describe it."""
    from ...spec.building import absolute
    from ...spec.reading import read_spec
    from ...spec.summary import summarize
    from .granting import granted

    spec = absolute(read_spec(path, overrides), os.path.dirname(path))
    grants = granted(trust)
    summary = _with_labels(summarize(spec, grants, width), spec)
    if deep:
        summary = _with_sizes(summary, spec, grants)
    if as_json:
        warnings = [{"code": w.code, "pointer": w.pointer, "message": w.message} for w in summary.warnings]
        documents.emit({"schema": "purestep.spec-report/1", **summary.facts, "warnings": warnings})
    else:
        click.echo(_text(summary))
    count = len(summary.warnings)
    tell(f"0 errors, {count} warning{'' if count == 1 else 's'}")
    return int(ExitCode.SPEC if strict and count else ExitCode.DONE)


def _with_labels(summary: "Summary", spec: "Spec") -> "Summary":
    """How many frames have what the loss is about, with warnings where some lack it."""
    from .labels import count_labels, missing_labels

    facts, sides = dict(summary.facts), count_labels(spec, summary.facts["data"]["frames"])
    for name, side in zip(("data", "validation"), sides, strict=False):  # none, or no validation
        facts[name] = {**facts[name], "frames": side["num_frames"], "labelled": side["labelled"]}
    return summary._replace(facts=facts, warnings=(*summary.warnings, *missing_labels(spec, sides)))


def _with_sizes(summary: "Summary", spec: "Spec", grants: Sequence[str]) -> "Summary":
    """How large the model and the state are, for which the model is imported and made."""
    from .sizes import sizes_of

    models = {name: f"{target.cls_path} (imported)" for name, target in spec.strategy.model_specs.items()}
    return summary._replace(facts={**summary.facts, "models": models, "sizes": sizes_of(spec, grants)})


def _text(summary: "Summary") -> str:
    from .sizes import text_of

    facts, runtime = summary.facts, summary.facts["runtime"]
    compiled = "compiled" if runtime["compile"] else "not compiled"
    lines = [f"{facts['name']} · {facts['workflow']} · {facts['length']} · {runtime['precision']} · {compiled} · seed {runtime['seed']}"]
    models = facts["models"].items()
    rows: list[tuple[str, Any]] = [
        ("model", "; ".join(f"{name} = {text}" for name, text in models) or "none"),
        *([("size", text_of(facts["sizes"]))] if "sizes" in facts else []),
        *([("weights", facts["source"])] if facts["source"] is not None else []),
        ("loss", " + ".join(facts["loss"])),
        ("update", " → ".join(facts["update"])),
        ("hooks", ", ".join(facts["hooks"]) or "none"),
        ("data", _data(facts["data"])),
        ("validation", _data(facts["validation"]) if facts["validation"] else "none"),
        *([("metrics", ", ".join(facts["validation"]["metrics"]))] if facts["validation"] and facts["validation"]["metrics"] else []),
        *([("schedule", facts["schedule"])] if facts["schedule"] is not None else []),
        *([("ends", " or ".join(facts["ends_earlier"]))] if facts["ends_earlier"] else []),
        ("output", f"{facts['output']['run_dir']}   checkpoints {_checkpoints(facts['output']['checkpoints'])}"),
    ]
    rows += [("sinks", ", ".join(facts["output"]["sinks"]))] if facts["output"]["sinks"] else []
    lines += [f"  {name:<11}{text}" for name, text in rows]
    if summary.curve is not None:
        lines += ["  lr", *(f"  {line}" for line in summary.curve.split("\n"))]
    return "\n".join([*lines, *(f"warning {warning.text()}" for warning in summary.warnings)])


def _data(data: dict[str, Any]) -> str:
    frames = "" if data.get("frames") is None else f"  {data['frames']:,} frames"
    batch = f", {data['batch_size']} in a batch" if frames and "batch_size" in data else ""
    part = "" if data["split"] is None else f" ({data['split']})"
    labels = "".join(f"  {key} {100 * count / data['frames']:.3g} %" for key, count in data.get("labelled", {}).items() if data["frames"])
    return f"{', '.join(data['paths'])}{part}{frames}{batch}{labels}"


def _checkpoints(settings: dict[str, Any] | None) -> str:
    if settings is None:
        return "off"
    periods = [f"every {settings[f'every_n_{unit}']} {unit}" for unit in ("steps", "epochs") if settings[f"every_n_{unit}"] is not None]
    periods += [f"every {settings['every_seconds']:g} s"] if settings["every_seconds"] is not None else []
    return f"{' and '.join(periods) or 'at the end'}, keep {settings['keep_last']}"
