"""The group `purestep train`: training from scratch. `init` writes a spec to begin with."""

from .program import Program

command = Program(
    {"init": "train_init"},
    name="train",
    short_help="Begin a training run from scratch.",
    help="Begin a training run from scratch.\n\n\b\n  purestep train init --dataset data/train.zarr --output-dir runs/one --out train.json",
)
