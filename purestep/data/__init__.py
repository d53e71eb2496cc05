"""From stored structures to batches: conversion, stores, the order of samples, neighbour lists, padding, the loader."""

from .batch import AtomicBatch
from .buckets import BucketPlan, BudgetBatches, plan_buckets
from .collating import collate, collate_parts
from .conversion import Conversion, Report, append_converted, convert
from .flat_arrays import arrays_from_frames
from .frames import PreparedFrames, prepare
from .inspection import Histogram, Inspection, inspect
from .inspection_picture import draw_inspection
from .loader import Loader, stack
from .mixture import Joined, MixedBatches, balanced
from .neighbour_operator import with_neighbours
from .neighbours import neighbour_list
from .order import BatchPlan, EvenBatches, batch_indices, index_at, num_batches, permutation
from .padded_form import from_padded, padded_mask, to_padded
from .padding import Padding, plan_padding
from .prefetch import Prefetched
from .references import fit_reference_energies
from .skin import SkinList, reuse
from .splitting import HashSplit
from .store import AtomicStore, Subset, shipped
from .units import Units
from .writing import append_frames, write_store

__all__ = [
    "AtomicBatch",
    "AtomicStore",
    "BatchPlan",
    "BucketPlan",
    "BudgetBatches",
    "Conversion",
    "EvenBatches",
    "HashSplit",
    "Histogram",
    "Inspection",
    "Joined",
    "Loader",
    "MixedBatches",
    "Padding",
    "Prefetched",
    "PreparedFrames",
    "Report",
    "SkinList",
    "Subset",
    "Units",
    "append_converted",
    "append_frames",
    "arrays_from_frames",
    "balanced",
    "batch_indices",
    "collate",
    "collate_parts",
    "convert",
    "draw_inspection",
    "fit_reference_energies",
    "from_padded",
    "index_at",
    "inspect",
    "neighbour_list",
    "num_batches",
    "padded_mask",
    "permutation",
    "plan_buckets",
    "plan_padding",
    "prepare",
    "reuse",
    "shipped",
    "stack",
    "to_padded",
    "with_neighbours",
    "write_store",
]
