"""Refusing to continue a run under other conditions: a description that is saved beside the state, compared with that of now."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StructureMismatchError
from .match import covered

_ABSENT = "absent"


def describe_run(batches: Any, *, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What decides the course of a run besides its state, in plain JSON, for the `extra` of a checkpoint.

    Args:
        batches: A `Loader`, or a `Prefetched` one.
        spec: Whatever else must not change unnoticed: widths, rates, a whole configuration.

    Example:
        >>> from purestep.data import Loader
        >>> describe_run(Loader([1, 2, 3], 2, seed=5))["data"]["global_batch_size"]
        2
    """
    loader = getattr(batches, "loader", batches)
    data = {
        "dataset": getattr(loader.dataset, "fingerprint", type(loader.dataset).__qualname__),
        "num_samples": len(loader.dataset),
        "order": {"seed": loader.seed, "shuffle": loader.shuffle, "last": loader.last},
    }
    if isinstance(loader.batch_size, int):  # of all ranks together, so that another number of ranks can share the same batches
        data["global_batch_size"] = loader.batch_size * loader.world
    else:
        data["batches"] = loader.plan.fingerprint
    return {"data": data, "world_size": loader.world, "spec": dict(spec or {})}


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any], *, allow: Sequence[str] = (), what: str = "the run") -> None:
    """Compare two plain descriptions, field by field.

    Args:
        saved: As it was, from `load_extra`.
        now: As it is, such as `describe_run` gives it.
        allow: Patterns of dotted fields that may differ, such as `data.*`.
        what: What an error calls the thing described.

    Raises:
        StructureMismatchError: If a field differs that is not allowed to; all of them are listed.

    Example:
        >>> check_same({"data": {"batch_size": 4}}, {"data": {"batch_size": 8}}, allow=["data.batch_size"])
    """
    old, new = _fields(saved), _fields(now)
    different = sorted(name for name in old.keys() | new.keys() if old.get(name, _ABSENT) != new.get(name, _ABSENT))
    allowed = covered(allow, different)
    lines = [f"{name}: saved {old.get(name, _ABSENT)}, now {new.get(name, _ABSENT)}" for name in different if name not in allowed]
    if lines:
        raise StructureMismatchError(
            f"{what} is not the one that was saved; {len(lines)} fields differ:\n  "
            + "\n  ".join(lines[:50])
            + "\nput them back, or allow the change by name"
        )


def _fields(value: Any, prefix: str = "") -> dict[str, str]:
    """Text of every value by dotted name; texts tell 1 from True and from 1.0."""
    if isinstance(value, Mapping) and value:
        return {name: text for key, inner in value.items() for name, text in _fields(inner, f"{prefix}{key}.").items()}
    if isinstance(value, list | tuple) and value:
        return {name: text for index, inner in enumerate(value) for name, text in _fields(inner, f"{prefix}{index}.").items()}
    return {prefix.removesuffix("."): repr(value)}
