"""Documents of the toolkit whose envelope this one resembles, brought into our form: other names, other places, the same run.

Keys are looked at one by one, so that a document may hold both forms. Every change makes a note; a key that has no counterpart stays
where it is and is a problem. Version 0 of the table in `versions.py` is that toolkit's form. `reference_parts.py` has the parts.
"""

import copy
from collections.abc import Callable
from typing import Any

from . import reference_parts as parts
from .problems import Problem
from .reference_parts import Notes, hook_of, loss_of, section_of, update_of

_IGNORED: dict[str, dict[str, tuple[Any, ...]]] = {  # what has no meaning here, as long as it says what we do anyway: values that do
    "source": {"model": ("custom", "checkpoint", None), "compile_model": (False, None), "use_original_loss": (False, None)}
    | {"use_original_opt_class": (False, None), "model_id": (None,), "mace": ({}, None), "optimizer_lr": (None,)},
    "strategy": {"epoch_step_modifier": (1, None), "single_model_input": (True, None), "module_patches": ({}, None)}
    | {"freeze_mode": ("requires_grad", None), "training_fn": ("nvalchemi.training.strategy.default_training_fn", None)},
    "dataset": {"format": ("alchemi-zarr", "zarr", "auto", None)},
    "output": {"report_path": (None,)},
}


def is_reference(document: Any) -> bool:
    """Whether a document is of version 0: it has a key that only that form has, and says no other version than that of `from_reference`."""
    return isinstance(document, dict) and document.get("spec_version", 1) == 1 and bool(from_reference(document)[1].lines)


def from_reference(document: Any) -> tuple[Any, Notes]:
    """The document in our form, and what was done to it; a document without such keys is the same document."""
    document, notes = copy.deepcopy(document), Notes([], [], [])
    if isinstance(document, dict):
        for convert in (_dataset, _hooks, _source, _optimizer, _loss, _trainable, _device, _output, _ignored):
            convert(document, notes)
        if notes.lines:
            _rest(document, notes)
    return document, notes


def _rest(document: dict[str, Any], notes: Notes) -> None:
    """What only a document of that form needs: nulls that say nothing, lists of notes, a version."""
    for name in ("source", "validation", "notes"):
        if name in document and document[name] in (None, []):
            del document[name]
    if isinstance(document.get("notes"), list):
        document["notes"] = "\n".join(map(str, document["notes"]))
    data = _section(document, "dataset")
    if data.get("batch_size", 1) is None:
        del data["batch_size"]
    if "spec_version" not in document:
        document["spec_version"] = 1
        notes.lines.append("spec_version: 1")


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _dataset(document: dict[str, Any], notes: Notes) -> None:
    data = _section(document, "dataset")
    for old, new in (("path", "paths"), ("validation_path", "validation_paths")):
        if old in data and new not in data:
            value = data.pop(old)
            if value is not None:
                data[new] = value if isinstance(value, list) else [value]
                notes.moved(f"/dataset/{old}", f"/dataset/{new}")


def _hooks(document: dict[str, Any], notes: Notes) -> None:
    """`source.hooks` is `strategy.hooks`; what is no hook here becomes a setting."""
    source, strategy = _section(document, "source"), _section(document, "strategy")
    entries = strategy.get("hooks")
    if "hooks" in source:
        entries = [*_listed(entries), *_listed(source.pop("hooks"))]
        notes.moved("/source/hooks", "/strategy/hooks")
    if not isinstance(entries, list):
        return
    kept = [hook for i, entry in enumerate(entries) if (hook := hook_of(entry, i, document, notes)) is not None]
    if kept or "hooks" in strategy:
        section_of(document, "strategy")["hooks"] = kept


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _source(document: dict[str, Any], notes: Notes) -> None:
    source = _section(document, "source")
    index = source.pop("checkpoint_index", None)
    if isinstance(index, int) and index >= 0:
        source["step"] = index
        notes.lines.append("source.checkpoint_index: source.step")
    elif index is not None:
        notes.lines.append("source.checkpoint_index: left out, the newest is the default")
    if source.get("checkpoint_path", "") is None:
        del source["checkpoint_path"]


def _optimizer(document: dict[str, Any], notes: Notes) -> None:
    strategy = _section(document, "strategy")
    if "optimizer_configs" not in strategy:
        return
    update, schedule, problem = update_of(strategy["optimizer_configs"], strategy.get("num_steps"))
    if problem is not None:
        notes.problems.append(problem)
        return
    del strategy["optimizer_configs"]
    strategy["update"] = [*_listed(strategy.get("update")), *update]
    strategy["schedule"] = schedule
    notes.moved("/strategy/optimizer_configs", "/strategy/update", "strategy.update and strategy.schedule")


def _loss(document: dict[str, Any], notes: Notes) -> None:
    strategy = _section(document, "strategy")
    if "loss_fn_spec" not in strategy:
        return
    terms, normalize, problem = loss_of(strategy["loss_fn_spec"])
    if problem is not None:
        notes.problems.append(problem)
        return
    del strategy["loss_fn_spec"]
    strategy["loss"], strategy["normalize_weights"] = terms, normalize
    notes.moved("/strategy/loss_fn_spec", "/strategy/loss", "strategy.loss and strategy.normalize_weights")


def _trainable(document: dict[str, Any], notes: Notes) -> None:
    """Patterns are of names of the model; the name of the model in front of them has gone, since there is one."""
    strategy = _section(document, "strategy")
    models = _section(strategy, "model_specs") or {"main": {}}
    for old, new in (("trainable_patterns", "trainable"), ("freeze_patterns", "frozen")):
        if old in strategy:
            patterns = strategy.pop(old)
            if patterns:
                strategy[new] = [parts.without_model(one, models) for one in patterns] if isinstance(patterns, list) else patterns
                notes.moved(f"/strategy/{old}", f"/strategy/{new}")
    for name, model in models.items():
        if isinstance(model, dict) and model.pop("timestamp", None) is not None:
            notes.lines.append(f"strategy.model_specs.{name}.timestamp: left out")


def _device(document: dict[str, Any], notes: Notes) -> None:
    strategy = _section(document, "strategy")
    devices = strategy.get("devices")
    if devices is None and "devices" not in strategy:
        return
    names = {str(device).partition(":")[0] for device in _listed(devices)}
    if len(names) == 1 and names <= {"cpu", "cuda"}:
        del strategy["devices"]
        section_of(document, "runtime")["device"] = names.pop()
        notes.moved("/strategy/devices", "/runtime/device")


def _output(document: dict[str, Any], notes: Notes) -> None:
    output = _section(document, "output")
    if "checkpoint_dir" in output:
        del output["checkpoint_dir"]
        notes.lines.append("output.checkpoint_dir: left out, checkpoints are written into output.run_dir")


def _ignored(document: dict[str, Any], notes: Notes) -> None:
    for name, keys in _IGNORED.items():
        section = _section(document, name)
        for key, values in keys.items():
            if key in section and section[key] in values:
                del section[key]
                notes.lines.append(f"{name}.{key}: left out, it says what is done anyway")
            elif key in section and key not in ("model",):
                notes.problems.append(Problem("PS111", f"/{name}/{key}", parts.NO_COUNTERPART))
    if notes.lines and document.get("source") == {}:
        del document["source"]
    models = _section(document, "strategy").get("model_specs")
    source: Callable[[str], Any] = _section(document, "source").get
    if source("model") is not None:
        notes.problems.append(
            Problem("PS111", "/source/model", f"{source('model')!r} cannot be fetched; name a checkpoint_path, and a model")
        )
    elif models is None and isinstance(document.get("strategy"), dict) and notes.lines:
        document["strategy"]["model_specs"] = {}
