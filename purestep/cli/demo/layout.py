"""The run directory of the demo: what is where."""

import os

RUN = "run.json"
STATUS = "status.json"
RESULT = "result.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
PROOF_DIRECTORY = "proof"
KILLED = os.path.join(PROOF_DIRECTORY, "killed")
"""The state of the first process at the moment it was killed."""
KILLED_LOG = os.path.join(PROOF_DIRECTORY, "killed_log.json")
"""What it had logged by then."""
PROOF = os.path.join(PROOF_DIRECTORY, "proof.json")
WEIGHTS = "model.safetensors"
LEARNING_CURVE = "learning_curve.png"
PARITY = "predicted_against_true.png"


def has_checkpoint(run_dir: str) -> bool:
    """Whether there is a checkpoint to continue from; looks at names alone, so it is quick."""
    root = os.path.join(run_dir, CHECKPOINTS)
    return os.path.isdir(root) and any(os.path.exists(os.path.join(root, name, "COMMIT")) for name in os.listdir(root))
