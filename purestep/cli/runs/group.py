"""The group `purestep runs`."""

from ..program import Program

command = Program(
    {"list": "runs.listing", "plot": "runs.plot"},
    name="runs",
    short_help="List runs, compare their curves.",
    help="List runs, and compare their curves. DIR is a run, or a directory of runs.\n\n\b\n"
    "  purestep runs list runs\n  purestep runs plot runs/one runs/two --out both.html",
)
