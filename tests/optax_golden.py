"""Interpreter of golden files: JSON specs of optimizers, schedules and losses in optax's names, with trajectories in an .npz beside.

`build` turns a spec into one of ours. A name is looked up among our transforms, optimizers and schedules; where a wrapper's contract
differs from optax's, TRANSLATED says how ours expresses it.
"""

import inspect
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import purestep as ps
from purestep import optimizers, schedules, transforms
from purestep.core import tree
from purestep.core.transform import apply_updates, chain, set_hyperparams

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16}
NAMED_DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")} | DTYPES
# What optax calls a probe, and how our states call it.
PROBES = {
    "mini_step": ("micro_step",),
    "gradient_step": ("windows",),
    "notfinite_count": ("consecutive",),
    "total_notfinite": ("by_loss", "by_updates"),
}


class Golden(NamedTuple):
    """A golden file: specs, and arrays by path."""

    specs: dict
    arrays: np.lib.npyio.NpzFile

    def tree(self, prefix: str, dtype: torch.dtype = torch.float64) -> dict:
        """The arrays below a prefix as a nested dict."""
        nested: dict = {}
        for path in self.specs["shapes"]:
            node, (*parents, name) = nested, path.split("/")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = torch.from_numpy(self.arrays[f"{prefix}{path}"]).to(dtype)
        return nested


def read(path: Path) -> Golden:
    return Golden(json.loads(path.read_text()), np.load(path.with_suffix(".npz")))


# --- specs --------------------------------------------------------------------------------------------------------


def build(spec):
    """Turn a spec, or a value in one, into ours."""
    if isinstance(spec, list):
        return [build(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    for key, read_value in VALUES.items():
        if key in spec:
            return read_value(spec)
    if "op" in spec:
        return build_transform(spec)
    return {key: build(value) for key, value in spec.items()}


def build_schedule(spec):
    name = spec["$schedule"].removesuffix("_schedule")
    arguments = {key: build(value) for key, value in spec.get("kwargs", {}).items()}
    if "boundaries_and_scales" in arguments:
        arguments["boundaries_and_scales"] = {int(count): value for count, value in arguments["boundaries_and_scales"].items()}
    return getattr(schedules, name)(*map(build, spec.get("args", ())), **arguments)


def build_join(spec):
    return schedules.join([build(part) for part in spec["$join"]], spec["boundaries"])


def build_mask(spec):
    assert spec["$mask"] == "ndim>=2", f"unknown mask {spec['$mask']!r}"
    return lambda params: tree.map(lambda leaf: leaf.ndim >= 2, params)


def build_steps(spec):
    """Piecewise constant window lengths: `{first gradient step: k}`, or pairs of the two."""
    given = spec["$steps"]
    pairs = given.items() if isinstance(given, dict) else given
    pairs = sorted((int(start), int(k)) for start, k in pairs)

    def every(count):
        k = torch.full_like(count, pairs[0][1])
        for start, value in pairs[1:]:
            k = torch.where(count >= start, value, k)
        return k

    return every


VALUES = {
    "$schedule": build_schedule,
    "$join": build_join,
    "$mask": build_mask,
    "$tree": lambda spec: spec["$tree"],
    "$dtype": lambda spec: NAMED_DTYPES[spec["$dtype"]],
    "$fn": lambda spec: spec,
    "$every": lambda spec: lambda step, **extra: step % spec["$every"] == 0,
    "$steps": build_steps,
}


# --- transforms ---------------------------------------------------------------------------------------------------


def build_transform(spec):
    name = spec["op"].rpartition(".")[2]
    if name in TRANSLATED:
        return TRANSLATED[name](spec)
    make = find(name)
    arguments = {key: build(value) for key, value in spec.get("kwargs", {}).items()}
    if "layout" in inspect.signature(make).parameters:
        arguments.setdefault("layout", "in_out")
    return make(*map(build, spec.get("args", ())), **arguments)


def find(name: str):
    for family in (optimizers, transforms):
        if name in family.__all__:
            return getattr(family, name)
    raise AssertionError(f"no transform or optimizer is called {name!r}")


def build_multi_steps(spec):
    given = spec["kwargs"]
    gates = [build_gate(given["should_skip_update_fn"])] if given.get("should_skip_update_fn") else []
    reduction = "mean" if given.get("use_grad_mean", True) else "sum"
    window = transforms.accumulate(build(given["every_k_schedule"]), reduction=reduction)
    return chain(*gates, window, build(given["opt"]))


def build_gate(spec):
    given = spec if isinstance(spec, dict) else {"$fn": spec}
    gates = {"skip_not_finite": transforms.skip_nonfinite, "skip_large_updates": transforms.skip_large_updates}
    return gates[given["$fn"].rpartition(".")[2]](**given.get("kwargs", {}))


def build_apply_if_finite(spec):
    given = spec["kwargs"]
    return chain(transforms.skip_nonfinite(given.get("max_consecutive_errors", 10)), build(given["inner"]))


def build_named_chain(spec):
    return transforms.named_chain(*((name, build(part)) for name, part in spec["args"]))


def build_injected(spec):
    factory = find(spec["inner_factory"].rpartition(".")[2])
    return transforms.inject_hyperparams(factory)(**{key: build(value) for key, value in spec["kwargs"].items()})


TRANSLATED = {
    "MultiSteps": build_multi_steps,
    "apply_if_finite": build_apply_if_finite,
    "named_chain": build_named_chain,
    "inject_hyperparams": build_injected,
    "inject_stateful_hyperparams": build_injected,
    "multi_transform": lambda spec: build_transform({**spec, "op": "partition"}),
    "adaptive_grad_clip": lambda spec: transforms.adaptive_grad_clip(**spec["kwargs"], layout="in_out"),
}


# --- trajectories -------------------------------------------------------------------------------------------------


def trajectory(golden: Golden, case: dict, dtype: torch.dtype):
    """Parameters and state after each step of a case."""
    transform = build(case["spec"])
    params, target = golden.tree("inputs/params/", dtype), golden.tree("inputs/target/", dtype)
    inputs = golden.tree(f"inputs/grads/{case['grads']}/", dtype)
    state, edit = transform.init(params), case["spec"].get("edit", {})
    for step in range(golden.specs["steps"]):
        grads = tree.map(lambda leaf, step=step: leaf[step], inputs)
        if case["grads"] == "quad":
            grads = tree.map(lambda g, p, t: (p - t) + g, grads, params, target)
        if edit.get("step") == step:
            state = set_hyperparams(state, **edit["set"])
        extra = {"value": torch.from_numpy(golden.arrays["inputs/extra/value"])[step]} if "value" in case["extra"] else {}
        updates, state = transform.update(grads, state, params, **extra)
        params = apply_updates(params, updates)
        yield params, state


def probe(state, name: str) -> float:
    """The value of a probe in one of our states; several leaves of one meaning are added."""
    wanted = PROBES.get(name, (name,))
    hits = [leaf for path, leaf in tree.items(state) if path.removesuffix(".value").rpartition(".")[2] in wanted]
    assert hits, f"the state has no leaf for probe {name!r}: {tree.paths(state)}"
    return float(sum(hits) if len(wanted) > 1 else hits[0])


def tolerance(golden: Golden, case: dict, dtype: str) -> dict:
    """The tolerance that the file states for a case; schedules and float32 accumulators carry float32 rounding in the file."""
    if "tolerance" in case:
        return case["tolerance"]
    text = json.dumps(case)
    exact, rounded = list(golden.specs["tolerances"].values())[:2]
    if dtype != "f64":
        return {"rtol": 2e-2, "atol": 2e-2} if dtype == "bf16" else {"rtol": 2e-5, "atol": 2e-6}
    return rounded if any(word in text for word in ("$schedule", "$join", "warmup", "MultiSteps")) else exact


def loss_value_and_grad(golden: Golden, case: dict):
    arguments = [torch.from_numpy(golden.arrays[f"inputs/loss/{name}"]) for name in case["args"]]
    leaf = arguments[0].clone().requires_grad_()
    value = getattr(ps.losses, case["fn"])(leaf, *arguments[1:], **case["kwargs"])
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad
