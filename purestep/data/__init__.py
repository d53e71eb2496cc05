"""From stored structures to batches: stores, the order of samples, neighbour lists, padding, the loader."""

from .batch import AtomicBatch
from .collating import collate, collate_parts
from .convert import arrays_from_frames, store_from_npz
from .frames import PreparedFrames, prepare
from .loader import Loader, stack
from .neighbours import neighbour_list
from .order import batch_indices, index_at, num_batches, permutation
from .padding import Padding, plan_padding
from .references import fit_reference_energies
from .store import AtomicStore, Subset, shipped, write_store

__all__ = [
    "AtomicBatch",
    "AtomicStore",
    "Loader",
    "Padding",
    "PreparedFrames",
    "Subset",
    "arrays_from_frames",
    "batch_indices",
    "collate",
    "collate_parts",
    "fit_reference_energies",
    "index_at",
    "neighbour_list",
    "num_batches",
    "permutation",
    "plan_padding",
    "prepare",
    "shipped",
    "stack",
    "store_from_npz",
    "write_store",
]
