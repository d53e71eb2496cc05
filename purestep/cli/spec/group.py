"""The group `purestep spec`."""

from ..program import Program

command = Program(
    {name: f"spec.{name}" for name in ("check", "report", "run", "resume", "diff", "merge", "upgrade")},
    name="spec",
    short_help="Check, describe, run, resume and compare specs.",
    help="Check, describe, run, resume and compare specs.\n\n\b\n  purestep spec check train.json\n  purestep spec report train.json\n"
    "  purestep spec run train.json\n  purestep spec resume runs/my-model",
)
