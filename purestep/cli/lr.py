"""The group `purestep lr`: learning rates."""

from .program import Program

command = Program(
    {"find": "lr_find"},
    name="lr",
    short_help="Find a learning rate.",
    help="Find a learning rate.\n\n\b\n  purestep lr find train.json --png rates.png",
)
