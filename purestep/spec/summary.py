"""What a spec will do, before it does it: a plain description, and warnings. No target is imported, no model is made."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import DataError
from ..schedules import plot
from .building import NO_MODEL, batch_too_large, missing_paths, open_store
from .doubts import doubts
from .envelope import Spec, Strategy
from .failed_starts import is_failed_start
from .families import Model
from .parts import learning_rate_curve
from .paths import SHIPPED
from .problems import Problem
from .target import Target
from .trust import is_trusted

_LEAST, _MOST = 1e-8, {"train": 1.0, "finetune": 1e-4}  # usual learning rates
_WORDS = {"train": "any training", "finetune": "weights that are to be kept"}


class Summary(NamedTuple):
    """What a report says."""

    facts: dict[str, Any]
    """Plain JSON."""
    curve: str | None
    """The learning rate as a picture."""
    warnings: tuple[Problem, ...]


def summarize(spec: Spec, trust: Sequence[str] = (), width: int = 64) -> Summary:
    """Describe a run, and find what looks wrong with it.

    Args:
        spec: With absolute paths.
        trust: What will be trusted, to say what else is needed.
        width: Of the picture, in characters.
    """
    strategy, data = spec.strategy, spec.dataset
    num_frames = _count(data.paths, data.split)
    steps = strategy.num_steps or strategy.num_batches or _steps(spec, num_frames)
    rate = learning_rate_curve(spec)
    facts = {
        "name": spec.name,
        "workflow": spec.workflow,
        "length": _length(spec),
        "num_steps": steps,
        "source": spec.source.checkpoint_path if spec.source is not None else None,
        "models": {name: _model(target.cls_path, trust) for name, target in strategy.model_specs.items()},
        "update": [text_of(part) for part in strategy.update],
        "loss": _loss(strategy),
        "schedule": _plain(strategy.schedule) if strategy.schedule is not None else None,
        "hooks": [text_of(part) for part in strategy.hooks],
        "trainable": list(strategy.trainable),
        "frozen": list(strategy.frozen),
        "data": {"paths": list(data.paths), "split": data.split, "frames": num_frames, "batch_size": data.batch_size},
        "validation": _validation(spec) if _validates(spec) else None,
        "ends_earlier": _ends(spec),
        "output": {
            "run_dir": spec.output.run_dir,
            "checkpoints": _checkpoints(spec),
            "sinks": [sink.kind for sink in spec.output.sinks],
        },
        "runtime": spec.runtime.model_dump(mode="json"),
    }
    curve = plot(rate, steps, width=width) if rate is not None and steps else None
    return Summary(facts, curve, tuple([*_warnings(spec, steps), *_does_not_fit(spec, num_frames)]))


def _length(spec: Spec) -> str:
    lengths = {"updates": spec.strategy.num_steps, "epochs": spec.strategy.num_epochs, "batches": spec.strategy.num_batches}
    said = [f"{length:,} {unit}" for unit, length in lengths.items() if length is not None]
    budget = spec.runtime.time_budget
    return ", at most ".join([*said, *([] if budget is None else [f"{budget:g} s"])])


def _ends(spec: Spec) -> list[str]:
    """What may end the run before its length is over."""
    early, target = spec.strategy.early_stopping, spec.strategy.target_metric
    found = [] if early is None else [f"after {early.patience} validations without a better {early.metric}"]
    return found + ([] if target is None else [f"when {target.metric} is {target.target:g}"])


def text_of(part: Model | Target, leave_out: Sequence[str] = ()) -> str:
    """A part as it would be called, without what is left at its default."""
    if isinstance(part, Target):
        return f"{part.cls_path}({', '.join(f'{name}={value!r}' for name, value in part.arguments.items())}) (not imported)"
    shown = []
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if name != "kind" and name not in leave_out and (info.is_required() or value != info.default):
            shown.append(f"{info.alias or name}={_plain(value)}")
    return f"{part.kind}({', '.join(shown)})"  # type: ignore[attr-defined]


def _plain(value: Any) -> str:
    if isinstance(value, Model | Target):
        return text_of(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_plain(inner)}' for key, inner in value.items())}}}"
    return repr(value)


def _loss(strategy: Strategy) -> list[str]:
    """The terms with the weights that they have in the sum: divided by the sum of all, unless one of them changes along the run."""
    weights = [part.weight for part in strategy.loss]
    fixed = not any(isinstance(weight, Model) for weight in weights)
    total = sum(weights) if strategy.normalize_weights and fixed else 1.0
    pairs = zip(weights, strategy.loss, strict=True)
    terms = [f"{_weight(weight, total)} * {text_of(part, leave_out=('weight',))}" for weight, part in pairs]
    if strategy.normalize_weights and not fixed:
        terms[-1] += ", each weight divided by the sum of all"
    return terms


def _weight(weight: Any, total: float) -> str:
    return text_of(weight) if isinstance(weight, Model) else f"{weight / total if total else weight:.4g}"


def _model(cls_path: str, trust: Sequence[str]) -> str:
    need = "" if is_trusted(cls_path, trust) else f"; run needs --trust {cls_path.rpartition('.')[0]}"
    return f"{cls_path} (not imported{need})"


def _validates(spec: Spec) -> bool:
    return bool(spec.dataset.validation_paths) or spec.dataset.validation_split is not None


def _validation(spec: Spec) -> dict[str, Any]:
    data, metrics = spec.dataset, spec.validation.metrics if spec.validation is not None else ()
    return {
        "paths": list(data.validation_paths or data.paths),
        "split": data.validation_split,
        "metrics": [text_of(metric) for metric in metrics],
    }


def _checkpoints(spec: Spec) -> dict[str, Any] | None:
    return spec.output.checkpoints.model_dump(mode="json") if spec.output.checkpoints is not None else None


def _count(paths: Sequence[str], split: str | None) -> int | None:
    """Frames of all stores together; None if one of them cannot be read, which the run will say."""
    try:
        stores = [open_store(path) for path in paths]
        return sum(len(store) if split is None else len(store.split(split)) for store in stores)
    except (DataError, OSError):
        return None


def steps_of(spec: Spec) -> int | None:
    """How many updates a run has at most; None if its time or its epochs say, and its stores cannot be read."""
    return spec.strategy.num_steps or spec.strategy.num_batches or _steps(spec, _count(spec.dataset.paths, spec.dataset.split))


def _steps(spec: Spec, num_frames: int | None) -> int | None:
    """Updates of a run that is as long as its epochs."""
    if num_frames is None or spec.strategy.num_epochs is None:
        return None
    whole, rest = divmod(num_frames, spec.dataset.batch_size)
    return spec.strategy.num_epochs * (whole + (1 if rest and spec.dataset.last != "drop" else 0)) or None


def _shares_frames(spec: Spec) -> bool:
    """Whether a store stands on both sides, and the parts do not keep them apart."""
    data = spec.dataset
    same_store = _validates(spec) and not set(data.paths).isdisjoint(data.validation_paths or data.paths)
    return same_store and (data.split is None or data.validation_split in (None, data.split))


def _peak(spec: Spec, steps: int | None) -> float | None:
    """The largest learning rate of the run, where it has one; looked for at a few hundred places."""
    rate = learning_rate_curve(spec)
    if rate is None or steps is None:
        return None
    return float(rate(torch.linspace(0, steps - 1, min(steps, 500), dtype=torch.float64).round()).max())


def _does_not_fit(spec: Spec, num_frames: int | None) -> Iterator[Problem]:
    """What a run would be refused for here: its batches, its device."""
    data = spec.dataset
    if num_frames is not None and num_frames < data.batch_size and data.last == "drop":
        yield batch_too_large(num_frames, data)
    if spec.runtime.device == "cuda" and not torch.cuda.is_available():
        yield Problem("PS310", "/runtime/device", "this torch sees no CUDA device; the run will be refused on this machine")


def _warnings(spec: Spec, steps: int | None) -> Iterator[Problem]:
    strategy = spec.strategy
    if not strategy.model_specs:
        yield NO_MODEL
    yield from missing_paths(spec)
    if not _validates(spec):
        yield Problem(
            "PS301",
            "/dataset/validation_paths",
            "no validation data: neither dataset.validation_paths nor dataset.validation_split; nobody will know how good the model is",
        )
    if _shares_frames(spec):
        message = "training and validation share frames, so the validation says nothing; give dataset.split and dataset.validation_split"
        yield Problem("PS312", "/dataset", message)
    if spec.output.checkpoints is None:
        yield Problem("PS302", "/output/checkpoints", "no checkpoints; a run that is interrupted is lost")
    warmup = getattr(strategy.schedule, "warmup_steps", None) if isinstance(strategy.schedule, Model) else None
    if warmup is not None and steps is not None and warmup >= steps:
        yield Problem(
            "PS307", "/strategy/schedule/warmup_steps", f"the warm-up of {warmup:g} updates is not over when the run ends, at {steps}"
        )
    low, high = _LEAST, _MOST[spec.workflow]
    if (peak := _peak(spec, steps)) is not None and not low <= peak <= high:
        words = f"above {high:g}, which is much for {_WORDS[spec.workflow]}" if peak > high else f"below {low:g}, with which little moves"
        yield Problem("PS305", "/strategy/schedule", f"the learning rate reaches {peak:g}, {words}")
    if spec.runtime.precision != "fp32" and not any(isinstance(part, Target) or "clip" in text_of(part) for part in strategy.update):
        yield Problem("PS309", "/strategy/update", f"{spec.runtime.precision} without clipping: one bad batch can spoil the weights")
    if spec.runtime.compile is not None and spec.dataset.padded_sizes is None:
        yield Problem(
            "PS313",
            "/runtime/compile",
            "batches are of different sizes, and each new one may be compiled anew; dataset.padded_sizes gives them a few",
        )
    yield from doubts(spec, steps)
    run_dir = spec.output.run_dir
    if not run_dir.startswith(SHIPPED) and os.path.isdir(run_dir) and os.listdir(run_dir) and not is_failed_start(run_dir):
        yield Problem("PS311", "/output/run_dir", f"{run_dir} is not empty, and a run is never written over another")
