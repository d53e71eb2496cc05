"""Specs to begin with, as plain data: no store is opened and nothing heavy is imported."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

Preset = Literal["adamw", "adamw-wsd", "sgd"]
PRESETS = get_args(Preset)
_FALL = 0.2  # of a run is the fall of the preset adamw-wsd (Hägele et al., arXiv:2405.18392, figure 5)


def template(
    paths: Sequence[str],
    run_dir: str,
    *,
    learning_rate: float = 1e-3,
    num_steps: int | None = None,
    num_epochs: int | None = None,
    validation_paths: Sequence[str] = (),
    split: str | None = None,
    validation_split: str | None = None,
    batch_size: int = 32,
    model: str | None = None,
    preset: Preset = "adamw",
    device: str = "auto",
    name: str = "run",
) -> dict[str, Any]:
    """A spec for energies and forces, to be read and changed.

    Args:
        paths: Stores; they need not exist yet.
        run_dir: Where the run will write.
        learning_rate: Its peak.
        num_steps: Length of the run in updates, with a warm-up and a decay over it.
        num_epochs: Length in passes over the data, with a constant learning rate, since nobody has counted their batches.
        split: Part of the stores to train on; None: all of them.
        validation_split: Part to validate on: of `validation_paths`, or without them of `paths`.
        model: Dotted path of the model; without it `strategy.model_specs` is left empty, and has to be filled in.
        preset: Optimizer and shape of the decay: a cosine, or, with `wsd`, none for most of the run and then a short fall.

    Raises:
        ValueError: If the preset needs `num_steps`, and it is not given.
    """
    schedule = _schedule(preset, learning_rate, num_steps)
    optimizer = {"kind": "sgd", "momentum": 0.9} if preset == "sgd" else {"kind": "adamw", "weight_decay": 0.01}
    length = {"num_steps": num_steps} if num_steps is not None else {"num_epochs": num_epochs}
    dataset: dict[str, Any] = {"paths": list(paths), "batch_size": batch_size, "reference_energies": "store"}
    spec: dict[str, Any] = {"spec_version": 1, "name": name, "workflow": "train"}
    named = {"split": split, "validation_paths": list(validation_paths), "validation_split": validation_split}
    spec["dataset"] = dataset | {name: given for name, given in named.items() if given}
    if validation_paths or validation_split is not None:
        spec["validation"] = {"every_n_epochs": 1, "metrics": [{"kind": "EnergyErrors"}, {"kind": "ForceErrors"}]}
    spec["strategy"] = {
        "model_specs": {"main": {"cls_path": model}} if model is not None else {},
        "loss": [{"kind": "EnergyMAELoss", "weight": 1.0}, {"kind": "ForceL2NormLoss", "weight": 1.0}],
        "update": [{"kind": "skip_nonfinite"}, {"kind": "clip_by_global_norm", "max_norm": 10.0}, optimizer],
        "schedule": schedule,
        **length,
        "hooks": [{"kind": "ema", "decay": _decay(num_steps), "debias": True}],
    }
    spec["output"] = {"run_dir": run_dir, "checkpoints": {**_cadence(num_steps), "keep_last": 3}}
    spec["runtime"] = {"seed": 0, "device": device}
    return spec


def _schedule(preset: Preset, learning_rate: float, num_steps: int | None) -> Any:
    rise = {"init_value": 0.0, "peak_value": learning_rate, "warmup_steps": (num_steps or 0) // 20}
    if preset == "adamw-wsd":
        if num_steps is None:
            raise ValueError("the preset adamw-wsd needs the number of updates, since its learning rate falls at the end")
        fall = max(1, round(_FALL * num_steps))
        lengths = {"stable_steps": num_steps - rise["warmup_steps"] - fall, "decay_steps": fall}
        return {"kind": "warmup_stable_decay", **rise, **lengths, "shape": "sqrt"}
    return learning_rate if num_steps is None else {"kind": "warmup_cosine_decay", **rise, "decay_steps": num_steps}


def _decay(num_steps: int | None) -> float:
    """Of an average over about the last tenth of the run, and over no more than a thousand updates."""
    return 0.999 if num_steps is None else round(min(0.999, max(0.9, 1.0 - 10.0 / num_steps)), 3)


def _cadence(num_steps: int | None) -> dict[str, int]:
    """Some ten checkpoints in a short run, one in 500 updates in a long one; with each epoch where nobody has counted the updates."""
    return {"every_n_epochs": 1} if num_steps is None else {"every_n_steps": min(500, max(1, num_steps // 10))}


def finetune_template(
    checkpoint_path: str,
    recipe: Mapping[str, Any],
    paths: Sequence[str],
    run_dir: str,
    *,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
    patterns: Sequence[str] = (),
    **choices: Any,
) -> dict[str, Any]:
    """A spec that starts from weights, to be read and changed.

    Args:
        checkpoint_path: Where they are.
        recipe: What is known of their run: `model_specs`, `loss`, and fields of `dataset`.
        trainable: Patterns of the parameters that are trained; empty: all.
        frozen: Patterns of those that are not.
        patterns: Patterns of the weights that are loaded; empty: all.
        choices: Those of `template`.
    """
    spec = template(paths, run_dir, **choices)
    strategy = spec["strategy"] | {name: recipe[name] for name in ("model_specs", "loss") if name in recipe}
    strategy |= {name: list(given) for name, given in (("trainable", trainable), ("frozen", frozen)) if given}
    source: dict[str, Any] = {"checkpoint_path": checkpoint_path} | ({"patterns": list(patterns)} if patterns else {})
    begin = {name: spec[name] for name in ("spec_version", "name")} | {"workflow": "finetune", "source": source}
    return {**begin, **{key: value for key, value in spec.items() if key not in begin}} | {
        "dataset": {**spec["dataset"], **recipe.get("dataset", {})},
        "strategy": strategy,
    }


def relative_to(path: str, directory: str) -> str:
    """A path of the command line, as a spec in `directory` has to write it."""
    if os.path.isabs(path) or path.startswith("shipped:"):
        return path
    return os.path.relpath(path, directory or ".")
