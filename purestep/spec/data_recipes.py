"""Data as recipes, and back: a loader over stores is the section `dataset` of a spec, with the seed of its order."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..data import AtomicStore, Joined, Loader, PreparedFrames, collate
from ..data.layout import SPLITS
from ..data.order import EvenBatches
from ..data.store import Subset
from ..errors import DataError, SpecError
from .building import frames_of
from .envelope import Dataset


def loader_to_spec(loader: Loader) -> dict[str, Any]:
    """The sections `dataset` and `runtime` that make these batches.

    Raises:
        SpecError: If they are made of something that a spec does not hold.
    """
    if not isinstance(loader.plan, EvenBatches) or loader.collate is not collate:
        raise SpecError("a spec holds batches of one size, collated by purestep.data.collate; make these in Python")
    parts = loader.dataset.datasets if isinstance(loader.dataset, Joined) else (loader.dataset,)
    if not all(isinstance(part, PreparedFrames) for part in parts):
        raise SpecError(f"a spec holds PreparedFrames of stores, got {', '.join(sorted({type(part).__name__ for part in parts}))}")
    described = [_described(part) for part in parts]
    shared = {name: _one(name, (one[name] for one in described)) for name in ("split", "cutoff", "dtype", "reference_energies")}
    order = {"batch_size": loader.plan.batch_size, "last": loader.plan.last, "shuffle": loader.plan.shuffle}
    return {"dataset": {"paths": [one["path"] for one in described], **shared, **order}, "runtime": {"seed": loader.plan.seed}}


def loader_from_spec(sections: dict[str, Any]) -> Loader:
    """The batches that `loader_to_spec` described.

    Raises:
        DataError: If a store cannot be read.
    """
    data = Dataset.model_validate({**sections["dataset"], "paths": tuple(sections["dataset"]["paths"])})
    if data.cutoff is None:
        raise SpecError("dataset.cutoff: there is no model that says how far neighbour lists must reach; give it here")
    frames = frames_of(data, data.paths, data.split, data.cutoff)
    return Loader(frames, data.batch_size, seed=sections["runtime"]["seed"], shuffle=data.shuffle, collate=collate, last=data.last)


def _described(frames: Any) -> dict[str, Any]:
    store = frames.dataset.store if isinstance(frames.dataset, Subset) else frames.dataset
    if not isinstance(store, AtomicStore):
        raise SpecError(f"a spec holds stores, got {type(store).__name__}")
    given = frames.reference_energies
    if given is not None and given != _references(store):
        raise SpecError(f"{store.path}: the reference energies are not those of the store, which are all that a spec can name")
    return {
        "path": str(store.path.resolve()),
        "split": _split(store, frames.dataset),
        "cutoff": float(frames.cutoff),
        "dtype": frames.dtype.name,
        "reference_energies": None if given is None else "store",
    }


def _references(store: AtomicStore) -> dict[int, float] | None:
    try:
        return store.reference_energies
    except DataError:
        return None


def _split(store: AtomicStore, frames: Any) -> str | None:
    if not isinstance(frames, Subset):
        return None
    named = [name for name in SPLITS if "split" in store.levels and np.array_equal(store.split(name).indices, frames.indices)]
    if not named:
        raise SpecError(f"{store.path}: these frames are no part that the store names ({', '.join(SPLITS)})")
    return named[0]


def _one(name: str, values: Iterable[Any]) -> Any:
    found = list(dict.fromkeys(values))
    if len(found) > 1:
        raise SpecError(f"a spec has one {name} for all stores, got {', '.join(map(str, found))}")
    return found[0]
