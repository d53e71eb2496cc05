"""Loading a state: choose a checkpoint, compare it with the target, and read it leaf by leaf into new memory."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import tree
from ..errors import CheckpointCorruptError, CheckpointError, CheckpointGoneError, NoCheckpointError
from . import layout
from .best import best_of, parse_best
from .manifest import Manifest
from .match import Match, PathMap, Tolerance, match
from .migrations import MIGRATIONS, Migration, migrate
from .read import Request, Verify, check_all, check_memory, new_tensor, read_all
from .store import (
    DAMAGE,
    Checkpoint,
    candidates,
    check_label,
    directory_name,
    is_checkpoint,
    label_from_name,
    no_checkpoint,
    open_checkpoint,
    patiently,
    scan,
    unless_replaced,
)

OnCorrupt = Literal["raise", "previous"]
_being_read: Counter[str] = Counter()
_guard = threading.Lock()
_log = logging.getLogger("purestep.checkpoint")


def load(
    path: str | os.PathLike,
    like: Any,
    *,
    step: int | str = "latest",
    verify: Verify = "crc",
    on_corrupt: OnCorrupt | None = None,
    allow_missing: Sequence[str] = (),
    allow_extra: Sequence[str] = (),
    cast: Sequence[str] = (),
    map: PathMap | None = None,
    device: torch.device | str | None = None,
    migrations: Mapping[tuple[str, int], Migration] = MIGRATIONS,
) -> Any:
    """Load a state, bit for bit as it was saved.

    Args:
        path: One checkpoint, or a root of checkpoints.
        like: State of the same structure; gives types, shapes, dtypes, devices and strides, and is left as it is. Its values do not
            matter, except those of leaves that `allow_missing` names.
        step: In a root, which one: `"latest"`, a label (`batch_count`), or `"best:<metric>"` (lowest; `"best:max:<metric>"` highest).
        verify: `"crc"` compares the header of each file byte by byte and the CRC-32C of each tensor; `"full"` also the SHA-256 of each
            file, which takes several times as long as reading and finds nothing more unless somebody meant it.
        on_corrupt: With `"previous"` a damaged checkpoint is passed over, with an error in the log, for the next older one. Default:
            so for `"latest"`, `"raise"` for an explicit choice.
        allow_missing: Path patterns of leaves that the checkpoint need not have; they keep the value of `like`.
        allow_extra: Path patterns of leaves that the checkpoint may have in excess.
        cast: Path patterns of leaves whose floating-point dtype may differ; they are converted to that of `like`.
        map: Function from checkpoint paths to target paths, or a mapping of prefixes.
        device: Where to put tensors instead of the devices of `like`. Leaves on the meta device go to the host.
        migrations: Steps between versions of a state's fields.

    Raises:
        NoCheckpointError: If there is none.
        StructureMismatchError: If it does not fit `like`; all differences are listed.
        CheckpointCorruptError: If its bytes are not those that were written. Other subclasses of `CheckpointError` likewise say
            what was found.
    """
    tolerance = Tolerance(allow_missing, allow_extra, cast)

    def read(checkpoint: Checkpoint) -> Any:
        return load_checkpoint(checkpoint, like, tolerance, verify=verify, path_map=map, device=device, migrations=migrations)

    return with_checkpoint(path, read, step=step, on_corrupt=on_corrupt)


def with_checkpoint(path: str | os.PathLike, read: Any, *, step: int | str = "latest", on_corrupt: OnCorrupt | None = None) -> Any:
    """Call `read` with the chosen checkpoint, with the one before if that is damaged, with a newer one if it was deleted meanwhile."""
    path = os.path.abspath(os.fspath(path))
    on_corrupt = on_corrupt or ("previous" if step == "latest" else "raise")
    if on_corrupt not in ("raise", "previous"):
        raise ValueError(f"on_corrupt must be 'raise' or 'previous', got {on_corrupt!r}")
    if is_checkpoint(path):
        if step not in ("latest", label_from_name(os.path.basename(path))):
            raise ValueError(f"{path} is one checkpoint; step={step!r} chooses among those of a root")
        return patiently(path, lambda: _opened(path, read))
    return patiently(path, lambda: _first_intact(path, _ordered(path, step), read, on_corrupt))


def _opened(path: str, read: Any, label: int | None = None) -> Any:
    """Call `read` with a checkpoint.

    Raises:
        CheckpointGoneError: If it looks damaged only because another was put in its place meanwhile.
    """

    def attempt() -> Any:
        checkpoint = open_checkpoint(path)
        if label is not None:
            check_label(checkpoint, label)
        return read(checkpoint)

    with reading(path):
        return unless_replaced(path, attempt)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Protect a checkpoint from the retention of this process, and turn errors of the file system into ours."""
    with _guard:
        _being_read[path] += 1
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointGoneError(f"{path} was deleted while it was being read; load the next one") from error
    except OSError as error:
        raise CheckpointCorruptError(f"{path}: could not be read: {error}") from error
    finally:
        with _guard:
            _being_read[path] -= 1


def being_read() -> set[str]:
    """Paths of the checkpoints that this process is reading."""
    with _guard:
        return set(+_being_read)


def _ordered(root: str, step: int | str) -> list[tuple[int, str]]:
    """Candidates of a root in the order in which they are to be tried."""
    found = candidates(root)
    if not found:
        raise no_checkpoint(root, [])
    if step == "latest":
        return found[::-1]
    if isinstance(step, str):
        metric, mode = parse_best(step)
        best = best_of(scan(root).checkpoints, metric, mode)
        if not best:
            raise NoCheckpointError(f"no checkpoint in {root} has a finite metric {metric!r}")
        return [(checkpoint.manifest.label, checkpoint.path) for checkpoint in best]
    upto = [(label, path) for label, path in found if label <= step]
    if not upto or upto[-1][0] != step:
        labels = [label for label, _ in found]
        raise NoCheckpointError(f"{root} has no {directory_name(step)}; there are the labels {labels[-20:]}")
    return upto[::-1]


def _first_intact(root: str, ordered: list[tuple[int, str]], read: Any, on_corrupt: OnCorrupt) -> Any:
    rejected: list[tuple[str, CheckpointError]] = []
    for label, path in ordered:
        try:
            result = _opened(path, read, label)
        except DAMAGE as error:
            if on_corrupt == "raise":
                intact = newest_intact(root)
                raise type(error)(f"{error}; newest intact checkpoint: {intact}") from error
            _log.error("checkpoint passed over: %s", error)
            rejected.append((path, error))
            continue
        if rejected:
            _log.error("loaded %s instead of %d newer damaged checkpoints", path, len(rejected))
        return result
    raise no_checkpoint(root, rejected)


def newest_intact(root: str) -> str | None:
    """Path of the newest checkpoint in a root whose every byte is as written; None if there is none."""
    for label, path in reversed(candidates(root)):
        try:
            _check_settled(path, label)
        except CheckpointError:
            continue
        return path
    return None


def _check_settled(path: str, label: int | None = None) -> Manifest:
    return patiently(path, lambda: _opened(path, _checked, label))


def _checked(checkpoint: Checkpoint) -> Manifest:
    check_all(checkpoint)
    return checkpoint.manifest


def load_checkpoint(
    checkpoint: Checkpoint,
    like: Any,
    tolerance: Tolerance,
    *,
    verify: Verify = "crc",
    path_map: PathMap | None = None,
    device: torch.device | str | None = None,
    migrations: Mapping[tuple[str, int], Migration] = MIGRATIONS,
) -> Any:
    """Read one open checkpoint into the structure of `like`."""
    manifest = migrate(checkpoint.manifest, layout.schema_of(like), migrations, checkpoint.path)
    matches = match(manifest, like, tolerance, path_map, checkpoint.path)
    return tree.unflatten(tree.structure(like), read_matches(checkpoint, matches, verify, device))


def read_matches(checkpoint: Checkpoint, matches: Sequence[Match], verify: Verify, device: torch.device | str | None) -> list[Any]:
    """The leaves for the target, in its order."""
    tensors = {m.path: m.leaf for m in matches if m.leaf is not None and m.leaf.kind == "tensor"}
    check_memory(checkpoint.manifest, sum(m.like.numel() * m.like.element_size() for m in matches if m.path in tensors), checkpoint.path)
    memory = {path: new_tensor(leaf, leaf.shape) for path, leaf in tensors.items()}
    read_all(checkpoint, [Request(leaf, layout.whole(leaf.shape), memory[path]) for path, leaf in tensors.items()], verify)
    return [_finish(m, memory, device) for m in matches]


def _finish(m: Match, memory: dict[str, Tensor], device: torch.device | str | None) -> Any:
    if m.leaf is None:
        return m.like
    if m.leaf.kind != "tensor":
        return layout.decode_scalar(m.leaf.kind, m.leaf.value)
    target = device or (m.like.device if m.like.device.type != "meta" else "cpu")
    tensor = memory.pop(m.path).to(device=target, dtype=m.like.dtype)
    if not m.like.is_contiguous():  # channels-last weights choose other kernels, so strides belong to a bitwise resume
        tensor = torch.empty_like(m.like, device=target).copy_(tensor)
    return tensor.requires_grad_(m.like.requires_grad)


def load_extra(path: str | os.PathLike, *, step: int | str = "latest", on_corrupt: OnCorrupt | None = None) -> dict[str, Any]:
    """What the caller gave to `save` as `extra`: data position, fingerprints, configuration.

    To be sure that it belongs to the state that `load` returns, give both the path of one checkpoint.
    """
    return load_manifest(path, step=step, on_corrupt=on_corrupt).extra


def load_manifest(path: str | os.PathLike, *, step: int | str = "latest", on_corrupt: OnCorrupt | None = None) -> Manifest:
    """Manifest of the checkpoint that `load` would choose, if no tensor of it is damaged."""
    return with_checkpoint(path, lambda checkpoint: checkpoint.manifest, step=step, on_corrupt=on_corrupt)


def verify(path: str | os.PathLike) -> Manifest:
    """Read every byte of one checkpoint and compare all checksums, in constant memory.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: Of the class that says what is wrong.
    """
    path = os.path.abspath(os.fspath(path))
    return _check_settled(path)
