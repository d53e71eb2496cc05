"""Write the golden checkpoint of the present format; run once for a new version of it, never again.

python -m tests.checkpoint.golden.make
"""

from pathlib import Path

import torch

import purestep
from purestep.checkpoint import save, write
from purestep.checkpoint.manifest import MAJOR, MINOR
from purestep.core.state import Counters, TrainState


def golden_state() -> TrainState:
    """A training state with every kind of leaf that one may have, of values that are plain to see."""
    params = {"layer.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "layer.bias": torch.tensor([0.5, -0.0]).bfloat16()}
    return TrainState(
        params=params,
        buffers={"norm.running_mean": torch.tensor([1.0, float("inf")], dtype=torch.float64)},
        opt_state={
            "adam": {"count": torch.tensor(3), "mu": {"layer.weight": torch.full((2, 3), 0.25)}},
            "accumulate": (torch.tensor(True),),
        },
        hook_state={"spectrum": torch.tensor([1 + 2j], dtype=torch.complex128)},
        counters=Counters(*map(torch.tensor, (12, 4, 8, 1, 2))),
        seed=torch.tensor(17),
        aliases=(("head.weight", "layer.weight"),),
    )


if __name__ == "__main__":
    # nothing about the machine that happened to write it
    write._writer = lambda: {"purestep": purestep.__version__, "torch": torch.__version__, "byteorder": "little"}
    target = Path(__file__).parent / f"format-{MAJOR}.{MINOR}"
    save(target, golden_state(), max_file_bytes=32, extra={"data": {"epoch": 1, "batch": 2}}, metrics={"loss": 0.1})
