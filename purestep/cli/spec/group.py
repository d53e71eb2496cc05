"""The group `purestep spec`."""

from ..program import Program

command = Program(
    {"check": "spec.check", "report": "spec.report", "run": "spec.run", "resume": "spec.resume"},
    name="spec",
    short_help="Check, describe, run and resume specs.",
    help="Check, describe, run and resume specs.\n\n\b\n  purestep spec check train.json\n  purestep spec report train.json\n"
    "  purestep spec run train.json\n  purestep spec resume runs/my-model",
)
