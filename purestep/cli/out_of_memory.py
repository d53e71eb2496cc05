"""Where memory runs out: how to know it, what to do about it, and what was in it. Nothing here loads torch before it has to."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.event import Event

ADVICE = (
    "memory ran out; --set runtime.microbatches=2 (the same result from smaller pieces) or 4 needs less of it,",
    "as do a smaller dataset.batch_size and runtime.precision=bf16; a run with other values is another run",
)
_ON_THE_HOST = "DefaultCPUAllocator"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no more memory to give."""
    if any(kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in type(error).__mro__):
        return True
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _ON_THE_HOST in str(error))


class MemoryDump:
    """A listener that writes down what was in memory when there was no more of it, `crash/memory-rank0.txt` in the directory of a run.

    Args:
        run_dir: Of the run.
        rank: Of this process.
    """

    hears_errors = True
    on_every_rank = True

    def __init__(self, run_dir: str, rank: int):
        self.path = os.path.join(run_dir, "crash", f"memory-rank{rank}.txt")

    def __call__(self, event: "Event") -> None:
        """Write, if memory ran out; where to is added to the error."""
        if event.error is None or not is_out_of_memory(event.error):
            return
        import torch

        from ..reporting import memory_table

        tables = [f"{type(event.error).__name__} in batch {event.batch_count}: {event.error}", memory_table(event.state)]
        if torch.cuda.is_initialized():
            tables.append(torch.cuda.memory_summary())
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("\n\n".join(tables) + "\n")
        event.error.add_note(f"what was in memory is listed in {self.path}")
