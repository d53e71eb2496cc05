"""From stored structures to batches: stores, the order of samples, neighbour lists, padding, the loader."""

from .batch import AtomicBatch
from .collate import Padding, PreparedFrames, collate, plan_padding, prepare
from .loader import Loader, stack
from .neighbours import neighbour_list
from .order import batch_indices, index_at, num_batches, permutation

__all__ = [
    "AtomicBatch",
    "Loader",
    "Padding",
    "PreparedFrames",
    "batch_indices",
    "collate",
    "index_at",
    "neighbour_list",
    "num_batches",
    "permutation",
    "plan_padding",
    "prepare",
    "stack",
]
