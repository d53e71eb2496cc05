"""The group `purestep schema`: what a spec may hold, for editors and to read."""

from .program import Program

command = Program(
    {"dump": "schema_dump", "template": "schema_template"},
    name="schema",
    short_help="Say what a spec may hold.",
    help="Say what a spec may hold.\n\n\b\n  purestep schema dump --out purestep.schema.json    for an editor\n"
    "  purestep schema template                           a spec to begin with",
)
