"""The run directory of the demo: what is where."""

import os

RUN = "run.json"
STATUS = "status.json"
RESULT = "result.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
KILLED = os.path.join("proof", "killed")
"""The state of the first process at the moment it was killed."""
PROOF = os.path.join("proof", "proof.json")
WEIGHTS = "model.safetensors"
LEARNING_CURVE = "learning_curve.png"
PARITY = "predicted_against_true.png"


def has_checkpoint(run_dir: str) -> bool:
    """Whether there is a checkpoint to continue from; looks at names alone, so it is quick."""
    root = os.path.join(run_dir, CHECKPOINTS)
    return os.path.isdir(root) and any(os.path.exists(os.path.join(root, name, "COMMIT")) for name in os.listdir(root))
