"""The group `purestep debug`."""

from ..program import Program

command = Program(
    {"compile": "debug.capture", "replay": "debug.replay"},
    name="debug",
    short_help="Look into the compilation or one step of a run.",
    help="Look into the compilation of a step, or into one step of a run.\n\n\b\n  purestep debug compile train.json\n"
    "  purestep debug replay runs/my-model --step 1200",
)
