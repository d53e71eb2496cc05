"""The group `purestep ckpt`."""

from ..program import Program

command = Program(
    {"list": "ckpt.listing", "show": "ckpt.show", "verify": "ckpt.verify", "export": "ckpt.export"},
    name="ckpt",
    short_help="Look at checkpoints, export weights.",
    help="Look at checkpoints, and export weights. DIR is a checkpoint, a directory of checkpoints, or a run.\n\n\b\n"
    "  purestep ckpt list runs/my-model\n  purestep ckpt show runs/my-model --step best:validation/loss/total\n"
    "  purestep ckpt verify runs/my-model\n  purestep ckpt export runs/my-model --to exported --weights ema",
)
