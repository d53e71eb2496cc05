"""From a spec to what trains: data, model, training, validation. The same spec gives the same pieces in every process."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..core import tree
from ..data import AtomicStore, Joined, Loader, PreparedFrames, collate, shipped
from ..data.frames import Frames
from ..data.padding import plan_padding
from ..data.store import not_a_store
from ..errors import DataError, SpecError
from ..training import Training
from ..validation import Validation
from .annotations import DTYPES
from .envelope import Dataset, Spec, Strategy, ValidationSettings
from .parts import make_hooks, make_loss, make_metrics, make_optimizer
from .paths import SHIPPED, whole
from .problems import Problem
from .trust import call_target, check_names

NO_MODEL = Problem("PS303", "/strategy/model_specs", 'there is no model, so a run is refused; {"main": {"cls_path": ...}} names one')


class Pieces(NamedTuple):
    """What a run is made of."""

    training: Training
    batches: Loader
    validation: Validation | None


def build(spec: Spec, *, trust: Sequence[str] = ()) -> Pieces:
    """Make the objects of a run. Paths are taken as they are; `absolute` makes them independent of the working directory.

    Args:
        trust: Packages, modules or classes that the spec may name besides purestep's own.

    Raises:
        TrustError: If a target is not trusted; nothing has been imported then.
        SpecError: If a target cannot be called.
        DataError: If a store cannot be read.
    """
    check_names(spec, trust)
    model = make_model(spec, trust)
    cutoff = _cutoff(spec, model)
    training = make_training(spec, model, trust)
    data, runtime = spec.dataset, spec.runtime
    frames = frames_of(data, data.paths, data.split, cutoff)
    if len(frames) < data.batch_size and data.last == "drop":
        raise SpecError(batch_too_large(len(frames), data).text())
    joined = _collate(data, frames)
    batches = Loader(frames, data.batch_size, seed=runtime.seed, shuffle=data.shuffle, collate=joined, last=data.last)
    return Pieces(training, batches, _validation(spec, cutoff, trust))


def make_model(spec: Spec, trust: Sequence[str] = ()) -> torch.nn.Module:
    """The model, with weights that the seed decides; the global generator is left as it was."""
    check_model(spec)
    (name, target), *_ = spec.strategy.model_specs.items()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.runtime.seed)
        model = call_target(target, f"/strategy/model_specs/{name}", trust)
    return model if spec.dataset.dtype == "float32" else model.to(DTYPES[spec.dataset.dtype])


def check_model(spec: Spec) -> None:
    """Refuse a spec that names no model.

    Raises:
        SpecError: If it does not.
    """
    if not spec.strategy.model_specs:
        raise SpecError(NO_MODEL.text())


def make_training(spec: Spec, model: torch.nn.Module, trust: Sequence[str] = ()) -> Training:
    """The model with its loss, optimizer and hooks."""
    strategy, runtime = spec.strategy, spec.runtime
    return Training(
        model,
        loss=make_loss(strategy, trust),
        optimizer=make_optimizer(strategy, trust),
        hooks=make_hooks(strategy, trust),
        trainable=_trainable(strategy, model),
        precision=runtime.precision,
        microbatches=runtime.microbatches,
    )


def _trainable(strategy: Strategy, model: torch.nn.Module) -> tuple[str, ...]:
    """The patterns, or the names that are left when those of `frozen` have gone."""
    if not strategy.frozen:
        return strategy.trainable
    names = [name for name, _ in model.named_parameters()]
    chosen = tree.first_matches(strategy.trainable, names, "strategy.trainable: pattern")
    frozen = tree.first_matches(strategy.frozen, names, "strategy.frozen: pattern")
    left = tuple(name for name, hit, cold in zip(names, chosen, frozen, strict=True) if hit is not None and cold is None)
    if not left:
        raise SpecError(Problem("PS108", "/strategy/frozen", "nothing is left to train").text())
    return left


def _cutoff(spec: Spec, model: torch.nn.Module) -> float:
    cutoff = spec.dataset.cutoff if spec.dataset.cutoff is not None else getattr(model, "cutoff", None)
    if isinstance(cutoff, bool) or not isinstance(cutoff, int | float):
        message = f"{type(model).__name__} has no attribute 'cutoff' that says how far neighbour lists must reach; give it here"
        raise SpecError(Problem("PS103", "/dataset/cutoff", message).text())
    return float(cutoff)


def open_store(path: str) -> AtomicStore:
    """A store by its path in a spec."""
    return shipped(path.removeprefix(SHIPPED)) if path.startswith(SHIPPED) else AtomicStore(path)


def frames_of(data: Dataset, paths: Sequence[str], split: str | None, cutoff: float) -> Any:
    """The frames of some stores, one after the other, prepared as `data` says."""
    parts = [_prepared(data, path, split, cutoff) for path in paths]
    return parts[0] if len(parts) == 1 else Joined(*parts)


def batch_too_large(num_frames: int, data: Dataset) -> Problem:
    """What is wrong where no batch is full, and those that are not full are dropped."""
    message = f'a batch of {data.batch_size} has more frames than there are, {num_frames}, and "last": "drop" leaves nothing'
    return Problem("PS317", "/dataset/batch_size", message)


def _prepared(data: Dataset, path: str, split: str | None, cutoff: float) -> PreparedFrames:
    store = open_store(path)
    frames: Frames = store if split is None else store.split(split)
    if len(frames) == 0:
        raise DataError(f"{path}: there are no frames{'' if split is None else f' in the part {split!r}'}")
    references = store.reference_energies if data.reference_energies == "store" else None
    return PreparedFrames(frames, cutoff, dtype=data.dtype, reference_energies=references)


def _collate(data: Dataset, frames: Any) -> Callable[..., Any]:
    """How frames become a batch."""
    if data.padded_sizes is None:
        return collate
    return functools.partial(collate, pad_to=plan_padding(frames, data.batch_size, num_sizes=data.padded_sizes))


def _validation(spec: Spec, cutoff: float, trust: Sequence[str]) -> Validation | None:
    data = spec.dataset
    if not data.validation_paths and data.validation_split is None:
        return None
    settings = spec.validation or ValidationSettings()
    frames = frames_of(data, data.validation_paths or data.paths, data.validation_split, cutoff)
    return Validation(
        Loader(frames, settings.batch_size, shuffle=False, collate=collate, last="keep"),
        every_n_steps=settings.every_n_steps,
        every_n_epochs=settings.every_n_epochs,
        use_ema=settings.use_ema,
        metrics=make_metrics(spec, trust),
    )


def absolute(spec: Spec, directory: str) -> Spec:
    """The spec with its paths made absolute: relative ones begin in the directory that holds it."""

    def here(path: str) -> str:
        return whole(path, directory)

    data, output, source = spec.dataset, spec.output, spec.source
    stores = {"paths": tuple(map(here, data.paths)), "validation_paths": tuple(map(here, data.validation_paths))}
    moved: dict[str, Any] = {
        "dataset": data.model_copy(update=stores),
        "output": output.model_copy(update={"run_dir": here(output.run_dir)}),
    }
    if source is not None:
        moved["source"] = source.model_copy(update={"checkpoint_path": here(source.checkpoint_path)})
    return spec.model_copy(update=moved)


def missing_paths(spec: Spec) -> list[Problem]:
    """Every store, and the first weights, that is not there."""
    data = spec.dataset
    named = [(f"/dataset/{field}/{i}", path) for field in ("paths", "validation_paths") for i, path in enumerate(getattr(data, field))]
    problems = [
        Problem("PS304", pointer, not_a_store(path) if os.path.isfile(path) else f"there is no {path}")
        for pointer, path in named
        if not path.startswith(SHIPPED) and not os.path.isdir(path)
    ]
    if spec.source is not None and not os.path.exists(spec.source.checkpoint_path):
        problems.append(Problem("PS304", "/source/checkpoint_path", f"there is no {spec.source.checkpoint_path}"))
    return problems
