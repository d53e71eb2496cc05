"""What the demo trains, as plain numbers. They are written into the run directory, so every process of a run reads the same."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of one run; lengths in Angstrom, counts in batches."""

    num_steps: int
    kill_at: int
    """The batch after which the first process is killed."""
    checkpoint_every: int
    validate_every_n_epochs: int
    report_every: int = 5
    batch_size: int = 32
    num_members: int = 1
    hidden_size: int = 32
    num_layers: int = 3
    num_radial: int = 20
    cutoff: float = 5.0
    peak_learning_rate: float = 1e-2
    warmup_steps: int = 100
    weight_decay: float = 0.05
    spike_threshold: float = 20.0
    max_norm: float = 10.0
    ema_decay: float = 0.99
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.checkpoint_every <= self.kill_at < self.num_steps:
            raise ValueError(f"the kill must come after a checkpoint and before the end: {self}")


# An epoch has 50 batches. The kill comes 40 batches after a checkpoint, with the end of an epoch and a validation in between.
SHORT = Recipe(num_steps=800, kill_at=420, checkpoint_every=95, validate_every_n_epochs=4)
FULL = Recipe(num_steps=1200, kill_at=620, checkpoint_every=145, validate_every_n_epochs=4, num_members=4, hidden_size=40)
