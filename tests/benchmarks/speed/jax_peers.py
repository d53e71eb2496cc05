"""JAX with optax, and with equinox: the whole step jitted, its state donated. Written for the workloads without attention and atoms."""

import itertools
from collections.abc import Callable
from typing import Any

from .workloads import LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Run, Workload


def _multilayer(params: dict[str, Any], batch: tuple[Any, Any]) -> Any:
    import jax.numpy as jnp

    hidden = jnp.tanh(batch[0] @ params["0.weight"].T + params["0.bias"])
    return jnp.mean((hidden @ params["2.weight"].T + params["2.bias"] - batch[1]) ** 2)


def _sums_of_leaves(params: dict[str, Any], batch: tuple[Any]) -> Any:
    import jax.numpy as jnp

    return jnp.mean(jnp.stack([jnp.sum(leaf * batch[0]) for leaf in params.values()]) ** 2)


_LOSSES: dict[str, Callable[[Any, Any], Any]] = {"tiny": _multilayer, "accumulate": _multilayer, "leaves": _sums_of_leaves}


def _optimizer(accumulate: int) -> Any:
    import optax

    chain = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    return optax.MultiSteps(chain, accumulate) if accumulate > 1 else chain


def _arrays(workload: Workload) -> Any:
    import jax.numpy as jnp

    return itertools.cycle([tuple(jnp.asarray(x.numpy()) for x in batch) for batch in workload.batches()])


def jax_and_optax(workload: Workload) -> Run:
    """A dict of arrays, `jax.jit` and optax."""
    import jax
    import jax.numpy as jnp
    import optax

    if workload.name not in _LOSSES:
        raise NotImplementedError(f"not written for JAX (known: {', '.join(_LOSSES)})")
    loss, optimizer = _LOSSES[workload.name], _optimizer(workload.accumulate)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    params = {name: jnp.array(p.detach().numpy()) for name, p in workload.model().named_parameters()}
    state, batches = [params, optimizer.init(params)], _arrays(workload)

    def run(steps: int) -> float:
        value = None
        for _ in range(steps):
            state[0], state[1], value = compiled(state[0], state[1], next(batches))
        return float(value)

    return run


def equinox(workload: Workload) -> Run:
    """A module of equinox, `eqx.filter_jit` and optax."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    if workload.name not in ("tiny", "accumulate"):
        raise NotImplementedError("written for the small multilayer perceptron only")
    weights = {name: jnp.array(p.detach().numpy()) for name, p in workload.model().named_parameters()}
    empty = eqx.nn.MLP(8, 1, 16, 1, activation=jnp.tanh, key=jax.random.key(0))
    where = lambda net: [net.layers[0].weight, net.layers[0].bias, net.layers[1].weight, net.layers[1].bias]  # noqa: E731
    model = eqx.tree_at(where, empty, [weights[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")])
    optimizer = _optimizer(workload.accumulate)

    def loss(model: Any, batch: Any) -> Any:
        return jnp.mean((jax.vmap(model)(batch[0]) - batch[1]) ** 2)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Any, model: Any, opt_state: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, batch)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, value

    state, batches = [model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))], _arrays(workload)

    def run(steps: int) -> float:
        value = None
        for _ in range(steps):
            state[0], state[1], value = step(next(batches), state[0], state[1])
        return float(value)

    return run
