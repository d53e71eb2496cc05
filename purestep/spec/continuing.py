"""Going on with a run under another spec: which changes leave it the same run, and which have to be allowed by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..checkpoint.resume import check_same, describe_run
from .differences import Difference, differences
from .envelope import Spec
from .reading import document_of

_LENGTHS = ("num_steps", "num_epochs", "num_batches")
_ENDS = ("early_stopping", "target_metric")
_SAFE = (
    *("/output", "/name", "/notes", "/$schema", "/runtime/device", "/runtime/threads", "/runtime/time_budget"),
    *(f"/runtime/distributed/{name}" for name in ("shard_state", "timeout_seconds", "collective_timeout_seconds")),
    *(f"/strategy/{name}" for name in _ENDS),
)
_SAFE_IF_MORE = tuple(f"/strategy/{name}" for name in _LENGTHS)


def changes(before: Spec, after: Spec) -> list[Difference]:
    """What the spec of a run and another one say differently."""
    return list(differences(document_of(before), document_of(after)))


def unsafe(found: Sequence[Difference], allowed: Sequence[str] = ()) -> Iterator[Difference]:
    """Those among the differences that make it another run, and are not allowed.

    Args:
        found: The differences.
        allowed: Paths such as `strategy.update`; what stands below one is allowed too.
    """
    pointers = [*_SAFE, *("/" + path.strip("/").replace(".", "/") for path in allowed)]
    for one in found:
        if any(one.pointer == pointer or one.pointer.startswith(f"{pointer}/") for pointer in pointers):
            continue
        if one.pointer in _SAFE_IF_MORE and isinstance(one.before, int) and isinstance(one.after, int) and one.after > one.before:
            continue
        yield one


def description_of(spec: Spec, batches: Any) -> dict[str, Any]:
    """What decides the course of a run besides its state, in plain JSON; it is kept in its checkpoints."""
    document = document_of(spec)
    strategy = {name: value for name, value in document["strategy"].items() if name not in (*_LENGTHS, *_ENDS)}
    runtime = {name: document["runtime"][name] for name in ("seed", "precision", "microbatches")}
    return describe_run(batches, spec={"strategy": strategy, "runtime": runtime})


def check_description(saved: Mapping[str, Any], spec: Spec, batches: Any, *, allowed: Sequence[str] = (), what: str = "the run") -> None:
    """Compare what a checkpoint says of its run with what is now.

    Args:
        saved: The `extra` of the checkpoint.
        allowed: Paths of the spec that may differ, such as `strategy.update`; `dataset` and what is below allow other data.
        what: What an error calls the run.

    Raises:
        StructureMismatchError: If a field differs that may not; all of them are listed.
    """
    now = description_of(spec, batches)
    paths = [path.strip("/").replace("/", ".") for path in allowed]
    patterns = [pattern for path in paths for pattern in (f"spec.{path}", f"spec.{path}.*")]
    patterns += ["data.*"] if any(path.startswith(("dataset", "runtime.seed")) for path in paths) else []
    # the batch of all ranks together is compared; how many share it is no other run
    check_same({name: saved.get(name) for name in now}, now, allow=[*patterns, "world_size"], what=what)
