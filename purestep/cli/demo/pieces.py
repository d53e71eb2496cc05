"""From a recipe to what trains: data, model, training. The same recipe gives the same pieces in every process."""

from typing import Any, NamedTuple

import torch

from ...core.transform import chain
from ...data import Loader, PreparedFrames, collate, shipped
from ...hooks import ema
from ...metrics import EnergyErrors, ForceErrors
from ...optimizers import adamw
from ...schedules import warmup_cosine_decay
from ...training import Training
from ...transforms import clip_by_global_norm, skip_nonfinite, skip_spikes
from ...validation import Validation
from .committee import Committee, committee_loss
from .recipe import Recipe

EVALUATION_BATCH = 64


class Pieces(NamedTuple):
    """What a run is made of."""

    training: Training
    batches: Loader
    validation: Validation


def model_settings(recipe: Recipe) -> dict[str, Any]:
    """Arguments of each potential in training, which sees energies above those of the free atoms."""
    sizes = {"hidden_size": recipe.hidden_size, "num_layers": recipe.num_layers, "num_radial": recipe.num_radial}
    return {**sizes, "cutoff": recipe.cutoff}


def make_model(recipe: Recipe) -> Committee:
    """The potentials, with weights that the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Committee(recipe.num_members, model_settings(recipe))


def make_training(recipe: Recipe, model: Committee) -> Training:
    """Model, loss, optimizer and average as one training."""
    rate = warmup_cosine_decay(0.0, recipe.peak_learning_rate, recipe.warmup_steps, recipe.num_steps, 0.01 * recipe.peak_learning_rate)
    return Training(
        model,
        loss=committee_loss(recipe.num_members),
        optimizer=chain(
            skip_nonfinite(),
            # at this learning rate a strained frame may once in a while get an energy from another world
            skip_spikes(threshold=recipe.spike_threshold),
            clip_by_global_norm(recipe.max_norm),
            adamw(rate, weight_decay=recipe.weight_decay),
        ),
        hooks=(ema(recipe.ema_decay),),
    )


def frames(recipe: Recipe, split: str) -> PreparedFrames:
    """One part of the shipped molecules, energies above the references that were fitted to the training part."""
    store = shipped("g2")
    return PreparedFrames(store.split(split), recipe.cutoff, reference_energies=store.reference_energies)


def make_pieces(recipe: Recipe) -> Pieces:
    """All of it."""
    batches = Loader(frames(recipe, "train"), recipe.batch_size, seed=recipe.seed, collate=collate, last="drop")
    held_back = Loader(frames(recipe, "validation"), EVALUATION_BATCH, shuffle=False, collate=collate, last="keep")
    validation = Validation(list(held_back), every_n_epochs=recipe.validate_every_n_epochs, metrics=(EnergyErrors(), ForceErrors()))
    return Pieces(make_training(recipe, make_model(recipe)), batches, validation)
