"""Eight networks that differ in weights, seeds and learning rates: trained by eight calls of one captured step, or by one mapped call."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import purestep as ps

from .workloads import LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Run, Workload, endless, on_device

MEMBERS = 8


def _training(workload: Workload) -> ps.Training:
    return ps.Training(
        workload.model(),
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": workload.loss(model, batch)},
        optimizer=ps.chain(ps.clip_by_global_norm(MAX_NORM), ps.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)),
    )


def _members(training: ps.Training) -> list[ps.TrainState]:
    """States with a seed, a learning rate, and slightly other weights each."""
    found = []
    for number in range(MEMBERS):
        state, gen = training.init(number), torch.Generator().manual_seed(number)
        params = ps.tree.map(lambda leaf, gen=gen: leaf + 0.01 * torch.randn(leaf.shape, generator=gen), state.params)
        rate = ps.set_hyperparams(state.opt_state, learning_rate=LEARNING_RATE * 1.2**number)
        found.append(dataclasses.replace(state, params=params, opt_state=rate))
    return found


def apart(workload: Workload) -> Run:
    """One captured and donated call a member."""
    training = _training(workload)
    states, batches = _members(training), endless(workload)
    step = ps.compile(training.step, donate=True, on_recompile="error")

    def run(steps: int) -> float:
        total = 0.0
        for left in reversed(range(steps)):
            batch = on_device(next(batches))
            for number, state in enumerate(states):
                states[number], metrics = step(state, batch)
                total += float(metrics["loss/total"]) if left == 0 else 0.0
        return total / MEMBERS

    return run


def together(workload: Workload) -> Run:
    """One captured and donated call for all: `vmap` over the states."""
    training = _training(workload)
    state = ps.tree.map(lambda *leaves: torch.stack(leaves), *_members(training))
    batches = endless(workload)
    step = ps.compile(torch.func.vmap(training.step, in_dims=(0, None)), donate=True, on_recompile="error")

    def run(steps: int) -> float:
        nonlocal state
        metrics: dict[str, Any] = {}
        for _ in range(steps):
            state, metrics = step(state, on_device(next(batches)))
        return float(metrics["loss/total"].mean())

    return run


ENSEMBLES: dict[str, Callable[[Workload], Run]] = {"apart": apart, "together": together}
"""Variants that do the work of eight; their loss is the mean over the members."""
