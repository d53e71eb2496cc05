"""Checkpoints: a state on disk that survives anything, and comes back bit for bit.

A checkpoint is a directory: the weights as plain safetensors, the rest of the state likewise, a manifest with a checksum of every
leaf, and COMMIT. Nothing here pickles. `docs/checkpoint-format.md` has the layout and the protocol.
"""

from .checkpointer import Checkpointer
from .exporting import export
from .manifest import Manifest
from .restore import load, load_extra, load_manifest, verify
from .retention import Best
from .saving import save
from .store import Checkpoint, list_checkpoints, read_manifest
from .weights import from_pretrained, load_params, load_weights

__all__ = [
    "save",
    "load",
    "Checkpointer",
    "Best",
    "Checkpoint",
    "Manifest",
    "list_checkpoints",
    "load_extra",
    "load_manifest",
    "read_manifest",
    "verify",
    "export",
    "from_pretrained",
    "load_params",
    "load_weights",
]
