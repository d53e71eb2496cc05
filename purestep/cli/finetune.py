"""The group `purestep finetune`: training that starts from weights."""

from .program import Program

command = Program(
    {"init": "finetune_init"},
    name="finetune",
    short_help="Begin a spec that starts from weights.",
    help="Begin a spec that starts from weights.\n\n\b\n"
    "  purestep finetune init runs/first --dataset new.zarr --output-dir runs/second --out second.json",
)
