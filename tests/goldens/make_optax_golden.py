"""Make a golden file with optax itself: `pip install optax==0.2.8`, then `python make_optax_golden.py optax_more.json [case ...]`.

The JSON holds specs (see `tests/optax_golden.py`); the .npz of inputs and trajectories is written beside it. float64 throughout.
With names of cases only those are made anew.
"""

import functools
import json
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)


def inputs(specs):
    """Parameters, targets and gradient sequences of every kind, as arrays by path."""
    rng = np.random.default_rng(specs["seed"])
    steps, arrays = specs["steps"], {}
    for path, shape in specs["shapes"].items():
        arrays[f"inputs/params/{path}"] = rng.normal(size=shape)
        arrays[f"inputs/target/{path}"] = rng.normal(size=shape)
        normal = rng.normal(size=(steps, *shape))
        sizes = np.array([(30.0, 0.01, 1.0)[step % 3] for step in range(steps)]).reshape(-1, *[1] * len(shape))
        sparse = np.where(rng.random(normal.shape) < 0.6, 0.0, normal)
        sparse[5] = 0.0
        bad = normal.copy()
        for step in (3, 8, 9, 10, 11, 14):
            bad[step].flat[0] = np.nan if step % 2 else np.inf
        kinds = {"normal": normal, "spiky": normal * sizes, "sparse": sparse, "nan": bad, "quad": 0.1 * rng.normal(size=normal.shape)}
        arrays |= {f"inputs/grads/{kind}/{path}": values for kind, values in kinds.items()}
    arrays["inputs/extra/value"] = np.linspace(2.0, 0.5, steps) + 0.2 * rng.normal(size=steps)
    return arrays


def tree_of(specs, arrays, prefix):
    nested = {}
    for path in specs["shapes"]:
        node, (*parents, name) = nested, path.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jnp.asarray(arrays[f"{prefix}{path}"])
    return nested


def paths_of(tree):
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def build(spec):
    if isinstance(spec, list):
        return [build(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    if "$schedule" in spec:
        given = {key: build(value) for key, value in spec.get("kwargs", {}).items()}
        if "boundaries_and_scales" in given:
            given["boundaries_and_scales"] = {int(count): scale for count, scale in given["boundaries_and_scales"].items()}
        return getattr(optax, spec["$schedule"])(*map(build, spec.get("args", ())), **given)
    if "$join" in spec:
        return optax.join_schedules([build(part) for part in spec["$join"]], spec["boundaries"])
    if "$mask" in spec:
        return lambda params: jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
    if "$tree" in spec:
        return spec["$tree"]
    if "$dtype" in spec:
        return jnp.dtype(spec["$dtype"])
    if "$fn" in spec:
        fn = getattr(optax, spec["$fn"])
        return functools.partial(fn, **spec["kwargs"]) if "kwargs" in spec else fn
    if "$every" in spec:
        return lambda step, **extra: step % spec["$every"] == 0
    if "$steps" in spec:
        pairs = sorted((int(start), k) for start, k in spec["$steps"].items())
        return lambda count: jnp.select([count >= start for start, _ in reversed(pairs)], [k for _, k in reversed(pairs)])
    if "op" in spec:
        return build_transform(spec)
    return {key: build(value) for key, value in spec.items()}


def find(name):
    for home in (optax, optax.contrib, optax.transforms):
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(name)


def build_transform(spec):
    name = spec["op"].rpartition(".")[2]
    given = {key: build(value) for key, value in spec.get("kwargs", {}).items()}
    if name == "inject_hyperparams":
        return optax.inject_hyperparams(find(spec["inner_factory"].rpartition(".")[2]))(**given)
    if name == "named_chain":
        return optax.named_chain(*((key, build(part)) for key, part in spec["args"]))
    return find(name)(*map(build, spec.get("args", ())), **given)


def run(specs, arrays, case):
    optimizer = optax.with_extra_args_support(build(case["spec"])) if case["spec"]["op"] != "MultiSteps" else build(case["spec"])
    params, target = tree_of(specs, arrays, "inputs/params/"), tree_of(specs, arrays, "inputs/target/")
    grads = tree_of(specs, arrays, f"inputs/grads/{case['grads']}/")
    ahead = case["spec"]["op"] == "lookahead"
    held = optax.LookaheadParams.init_synced(params) if ahead else params
    state, edit, rows = optimizer.init(held), case["spec"].get("edit", {}), {}
    at = f"opt/{case['name']}/f64/"
    for step in range(specs["steps"]):
        params = held.fast if ahead else held
        grad = jax.tree.map(lambda leaf, step=step: leaf[step], grads)
        if case["grads"] == "quad":
            grad = jax.tree.map(lambda g, p, t: (p - t) + g, grad, params, target)
        if edit.get("step") == step:
            for name, value in edit["set"].items():
                state.hyperparams[name] = jnp.asarray(value)
        extra = {"value": jnp.asarray(arrays["inputs/extra/value"])[step]} if "value" in case["extra"] else {}
        if ahead:
            updates, state = build(case["spec"]).update(grad, state, held)
        else:
            updates, state = optimizer.update(grad, state, held, **extra)
        held = optax.apply_updates(held, updates)
        found = {at + path: leaf for path, leaf in paths_of(held.fast if ahead else held).items()}
        if "schedule_free" in case["spec"]["op"]:
            evaluated = optax.contrib.schedule_free_eval_params(state, held)
            found |= {f"{at}eval:{path}": leaf for path, leaf in paths_of(evaluated).items()}
        found |= {f"{at}probe:{name}": optax.tree.get(state, name) for name in case["probes"]}
        for path, leaf in found.items():
            rows.setdefault(path, []).append(np.asarray(leaf))
    return {path: np.stack(values) for path, values in rows.items()}


def main(path: Path, names: list[str]) -> None:
    specs = json.loads(path.read_text())
    arrays = dict(np.load(path.with_suffix(".npz"))) if names else {}
    arrays |= inputs(specs)
    for case in specs["optimizers"]:
        if names and case["name"] not in names:
            continue
        arrays |= run(specs, arrays, case)
    for case in specs["schedules"]:
        schedule = build(case["spec"])
        arrays[f"schedule/{case['name']}/f64"] = np.stack([np.asarray(schedule(count), float) for count in range(specs["schedule_counts"])])
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    print(f"{len(arrays)} arrays, checksum {zlib.crc32(path.with_suffix('.npz').read_bytes()):08x}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
