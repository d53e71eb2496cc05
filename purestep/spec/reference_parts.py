"""Optimizers, losses and hooks of the toolkit whose envelope ours resembles, as the parts that do the same here."""

from typing import Any, NamedTuple

from .families import FAMILIES
from .problems import Problem

NO_COUNTERPART = "this has no counterpart here; leave it out, or write this run in Python"
_HOME = "nvalchemi."


class Notes(NamedTuple):
    """What was done to a document: a line each, values that moved as `(old, new)` pointers, and what could not be done."""

    lines: list[str]
    moves: list[tuple[str, str]]
    problems: list[Problem]

    def moved(self, old: str, new: str, words: str | None = None) -> None:
        """Note that a value has another place."""
        self.moves.append((old, new))
        self.lines.append(f"{_dotted(old)}: {words or _dotted(new)}")


def section_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A section to write into, made if it is missing; of what is no object, one that nobody will see."""
    section = document.setdefault(name, {})
    return section if isinstance(section, dict) else {}


def _dotted(pointer: str) -> str:
    return pointer.lstrip("/").replace("/", ".")


def without_model(pattern: Any, models: dict[str, Any]) -> Any:
    """A pattern of qualified names as one of the names within the model."""
    prefixes = [f"{name}.{inner}" for name in models for inner in ("model.", "")]
    return next((pattern.removeprefix(one) for one in prefixes if isinstance(pattern, str) and pattern.startswith(one)), pattern)


def _class(path: Any) -> str:
    return path.rpartition(".")[2] if isinstance(path, str) else ""


# --- optimizer ----------------------------------------------------------------------------------------------------


def update_of(configs: Any, num_steps: Any) -> tuple[list[dict[str, Any]], Any, Problem | None]:
    """The parts of `update`, the schedule, and why there are none."""
    pointer, entries = "/strategy/optimizer_configs", configs
    if isinstance(configs, dict) and "optimizer_cls" not in configs:
        pointer = f"{pointer}/{next(iter(configs))}" if len(configs) == 1 else pointer
        entries = [entry for listed in configs.values() for entry in (listed if isinstance(listed, list) else [listed])]
        entries = entries if len(configs) == 1 else []
    entries = entries if isinstance(entries, list) else [entries]
    if len(entries) != 1 or not isinstance(entries[0], dict):
        return (
            [],
            None,
            Problem("PS111", pointer, "one optimizer of one model has a counterpart here; strategy.update can hold a partition"),
        )
    config = entries[0]
    kind, settings = _class(config.get("optimizer_cls")), _object(config.get("optimizer_kwargs"))
    rest = {key: value for key, value in settings.items() if key not in ("lr", "foreach", "fused", "capturable", "maximize", "amsgrad")}
    makers: dict[str, Any] = {"AdamW": _adamw, "Adam": _adam, "SGD": _sgd}
    part = makers[kind](rest) if kind in makers and not (settings.get("amsgrad") or settings.get("maximize")) else None
    if part is None or rest:
        found = f"{kind or 'nothing'} with {', '.join(sorted(settings)) or 'no arguments'}"
        return [], None, Problem("PS111", pointer, f"AdamW, Adam and SGD are understood, got {found}; write strategy.update instead")
    schedule, problem = _schedule_of(config, settings.get("lr", 1e-3), num_steps, pointer)
    return [part], schedule, problem


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _betas(rest: dict[str, Any]) -> dict[str, Any]:
    betas = rest.get("betas", [0.9, 0.999])
    if isinstance(betas, list) and len(betas) == 2:
        rest.pop("betas", None)
    return {"b1": betas[0], "b2": betas[-1], "eps": rest.pop("eps", 1e-8)} if isinstance(betas, list) and betas else {}


def _adamw(rest: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "adamw", **_betas(rest), "weight_decay": rest.pop("weight_decay", 0.01)}


def _adam(rest: dict[str, Any]) -> dict[str, Any] | None:
    return {"kind": "adam", **_betas(rest)} if not rest.pop("weight_decay", 0) else None


def _sgd(rest: dict[str, Any]) -> dict[str, Any] | None:
    momentum = rest.pop("momentum", 0) or None
    part = {"kind": "sgd", "momentum": momentum, "nesterov": rest.pop("nesterov", False), "dampening": rest.pop("dampening", 0.0)}
    return part if not rest.pop("weight_decay", 0) else None


def _schedule_of(config: dict[str, Any], rate: Any, num_steps: Any, pointer: str) -> tuple[Any, Problem | None]:
    kind, settings = _class(config.get("scheduler_cls")), _object(config.get("scheduler_kwargs"))
    if not kind:
        return rate, None
    length, end = settings.get("T_max"), settings.get("eta_min", 0)
    numbers = all(isinstance(one, int | float) for one in (num_steps, length, end, rate)) and rate
    if kind == "CosineAnnealingLR" and numbers and num_steps <= length:  # it rises again after that
        return {"kind": "cosine_decay", "init_value": rate, "decay_steps": length, "alpha": end / rate}, None
    decay = {"kind": "exponential_decay", "init_value": rate, "decay_rate": settings.get("gamma", 0.1)}
    if kind == "ExponentialLR" and "gamma" in settings:
        return {**decay, "transition_steps": 1}, None
    if kind == "StepLR" and "step_size" in settings:
        return {**decay, "transition_steps": settings["step_size"], "staircase": True}, None
    message = f"{kind} has no counterpart that is sure to be the same; write strategy.update and strategy.schedule instead"
    return None, Problem("PS111", pointer, message)


# --- loss ---------------------------------------------------------------------------------------------------------


def loss_of(spec: Any) -> tuple[list[dict[str, Any]], bool, Problem | None]:
    """The terms with their weights, whether these are normalised, and why there are none."""
    pointer = "/strategy/loss_fn_spec"
    if not isinstance(spec, dict):
        return [], False, Problem("PS111", pointer, "expected an object with a cls_path")
    composed = "components" in spec
    components = spec.get("components") if composed else [spec]
    weights = spec.get("weights") if composed else None
    terms = []
    for i, component in enumerate(components if isinstance(components, list) else []):
        kind = _class(component.get("cls_path")) if isinstance(component, dict) else ""
        if kind not in FAMILIES["loss"]:
            return [], False, Problem("PS111", pointer, f"component {i} is {kind or 'nothing'}; write strategy.loss instead")
        weight = weights[i] if isinstance(weights, list) and i < len(weights) else 1.0
        terms.append({"kind": kind, **_ours(component), "weight": _weight(weight)})
    if not terms:
        return [], False, Problem("PS111", pointer, "there are no components; write strategy.loss instead")
    return terms, bool(spec.get("normalize_weights", True)), None


def _ours(spec: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are given; keys of predictions have no prefix here."""
    given = {key: value for key, value in spec.items() if key not in ("cls_path", "timestamp") and value is not None}
    if isinstance(given.get("prediction_key"), str):
        given["prediction_key"] = given["prediction_key"].removeprefix("predicted_")
    return given


def _weight(weight: Any) -> Any:
    return {"kind": _class(weight.get("cls_path")), **_ours(weight)} if isinstance(weight, dict) and "cls_path" in weight else weight


# --- hooks --------------------------------------------------------------------------------------------------------


def hook_of(entry: Any, index: int, document: dict[str, Any], notes: Notes) -> Any:
    """The hook that does the same here; None if it is a setting, which is then in the document."""
    place = f"strategy.hooks.{index}"
    if not isinstance(entry, dict):
        return entry
    if isinstance(entry.get("spec"), dict):
        if entry.get("stages"):
            notes.lines.append(f"{place}.stages: left out, a hook names its own stages")
        entry = entry["spec"]
        notes.lines.append(f"{place}.spec: {place}")
    if entry.pop("timestamp", None) is not None:
        notes.lines.append(f"{place}.timestamp: left out")
    path = entry.get("cls_path")
    if not (isinstance(path, str) and path.startswith(_HOME)):
        return entry
    maker = _HOOKS.get(_class(path))
    if maker is None:
        notes.problems.append(Problem("PS111", f"/strategy/hooks/{index}", f"{_class(path)}: {NO_COUNTERPART}"))
        return entry
    return maker(entry, document, notes)


def _neighbours(entry: dict[str, Any], document: dict[str, Any], notes: Notes) -> None:
    config = entry["config"] if isinstance(entry.get("config"), dict) else entry
    if config.get("cutoff") is not None:
        section_of(document, "dataset")["cutoff"] = config["cutoff"]
    notes.lines.append("NeighborListHook: dataset.cutoff")


def _checkpoints(entry: dict[str, Any], document: dict[str, Any], notes: Notes) -> None:
    periods = {"every_n_steps": entry.get("step_interval"), "every_n_epochs": entry.get("epoch_interval")}
    output = section_of(document, "output")
    output["checkpoints"] = _object(output.get("checkpoints")) | {name: value for name, value in periods.items() if value is not None}
    notes.lines.append("CheckpointHook: output.checkpoints, written into output.run_dir")


def _average(entry: dict[str, Any], document: dict[str, Any], notes: Notes) -> dict[str, Any]:
    notes.lines.append("EMAHook: the hook ema")
    return {"kind": "ema"} | {name: entry[name] for name in ("decay", "update_every", "start_step") if entry.get(name) is not None}


def _precision(entry: dict[str, Any], document: dict[str, Any], notes: Notes) -> None:
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    precision = names.get(str(entry.get("precision")).removeprefix("torch."), entry.get("precision"))
    section_of(document, "runtime")["precision"] = precision
    if precision == "fp16":
        strategy = section_of(document, "strategy")
        update = strategy.get("update")
        strategy["update"] = [{"kind": "dynamic_loss_scale"}, *(update if isinstance(update, list) else [])]
    notes.lines.append("MixedPrecisionHook: runtime.precision")


_HOOKS: dict[str, Any] = {
    "NeighborListHook": _neighbours,
    "CheckpointHook": _checkpoints,
    "EMAHook": _average,
    "MixedPrecisionHook": _precision,
}
