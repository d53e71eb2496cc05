"""Gradient transforms, one idea per file; `TRANSFORMS` is the table that the laws run over and that a spec chooses from by name.

What a transform is, `chain`, and the selection of leaves live in `core`; finished optimizers in `optimizers`.
"""

from ..core.selection import freeze, masked, partition
from ..core.transform import chain, stateless
from .accumulation import accumulate
from .adam_moments import scale_by_adam
from .adam_variants import scale_by_amsgrad, scale_by_nadam, scale_by_radam
from .averaging import ema
from .belief import scale_by_belief
from .block_clipping import adaptive_grad_clip, clip_by_block_rms, clip_by_leaf_norm, unitwise_clip, unitwise_norm
from .block_norms import centralize, normalize_by_update_norm, scale_by_param_block_norm, scale_by_param_block_rms, scale_by_trust_ratio
from .clipped_newton import hutchinson_estimator_diag_hessian, scale_by_sophia
from .clipping import clip, clip_by_global_norm
from .coin_betting import scale_by_cocob
from .conditional import conditionally_mask, conditionally_transform
from .constraints import keep_params_nonnegative, zero_nans
from .controlled_growth import scale_by_yogi
from .covers import scale_by_sm3
from .decay import add_decayed_weights, at_least_2d
from .delayed_squares import scale_by_acprop, scale_by_adopt
from .dimensions import MuonDimensionNumbers
from .distance_over_gradients import scale_by_distance_over_gradients, scale_by_dog, scale_by_dowg
from .dual_averaging import scale_by_madgrad
from .every_kth import apply_every
from .factored import scale_by_factored_rms, scale_by_relative_step
from .freezing import selective_transform
from .gradient_differences import scale_by_adan, scale_by_optimistic_gradient
from .infinity_norm import scale_by_adamax
from .injection import inject_hyperparams
from .iterate_averaging import schedule_free, schedule_free_eval_params
from .kronecker import scale_by_shampoo, scale_by_soap
from .layer_moments import scale_by_novograd
from .layerwise import layerwise_decay
from .layouts import flatten, split_real_and_imaginary
from .line_search import scale_by_backtracking_linesearch
from .loss_scaling import dynamic_loss_scale
from .low_rank import scale_by_galore
from .momentum import trace
from .monitoring import measure_with_ema, monitor, snapshot
from .naming import named, named_chain
from .noise import add_noise
from .nonfinite import skip_nonfinite
from .norm_preserving import step_and_shrink
from .orthogonal import orthogonalize_via_newton_schulz, scale_by_muon, scale_by_shape
from .pass_through import identity, set_to_zero
from .per_example import per_example_global_norm_clip, per_example_layer_norm_clip
from .per_example_statistics import add_mean_variance_to_opt, average_per_element_updates, get_unbiased_mean_and_variance_ema
from .percentile_clipping import clip_by_percentile
from .plateau import reduce_on_plateau
from .polyak_step import scale_by_polyak
from .precision import kahan_summation, master_weights, stochastic_rounding
from .privacy import differentially_private_aggregate
from .quasi_newton import scale_by_lbfgs
from .resilient import scale_by_rprop
from .root_mean_square import scale_by_rms, scale_by_rss, scale_by_stddev
from .scaling import scale, scale_by_learning_rate, scale_by_schedule
from .sharpness import normalize, sam
from .sign_momentum import scale_by_lion, scale_by_sign
from .slow_weights import lookahead
from .spikes import skip_large_updates, skip_spikes
from .target_networks import incremental_update, periodic_update
from .tuned_scale import mechanize
from .two_means import scale_by_ademamix, scale_by_simplified_ademamix
from .unit_correction import scale_by_adadelta
from .zoom_search import scale_by_zoom_linesearch

TRANSFORMS = {
    # as they are
    "identity": identity,
    "set_to_zero": set_to_zero,
    # gates
    "accumulate": accumulate,
    "dynamic_loss_scale": dynamic_loss_scale,
    "skip_large_updates": skip_large_updates,
    "skip_nonfinite": skip_nonfinite,
    "skip_spikes": skip_spikes,
    # bounds
    "adaptive_grad_clip": adaptive_grad_clip,
    "clip": clip,
    "clip_by_block_rms": clip_by_block_rms,
    "clip_by_global_norm": clip_by_global_norm,
    "clip_by_leaf_norm": clip_by_leaf_norm,
    "clip_by_percentile": clip_by_percentile,
    "keep_params_nonnegative": keep_params_nonnegative,
    "zero_nans": zero_nans,
    # scaling
    "normalize": normalize,
    "normalize_by_update_norm": normalize_by_update_norm,
    "scale": scale,
    "scale_by_learning_rate": scale_by_learning_rate,
    "scale_by_relative_step": scale_by_relative_step,
    "scale_by_schedule": scale_by_schedule,
    "scale_by_sign": scale_by_sign,
    "step_and_shrink": step_and_shrink,
    # scaling by the loss, the distance gone, a search along the line
    "reduce_on_plateau": reduce_on_plateau,
    "scale_by_backtracking_linesearch": scale_by_backtracking_linesearch,
    "scale_by_cocob": scale_by_cocob,
    "scale_by_distance_over_gradients": scale_by_distance_over_gradients,
    "scale_by_dog": scale_by_dog,
    "scale_by_dowg": scale_by_dowg,
    "scale_by_madgrad": scale_by_madgrad,
    "scale_by_polyak": scale_by_polyak,
    "scale_by_rprop": scale_by_rprop,
    "scale_by_zoom_linesearch": scale_by_zoom_linesearch,
    # running moments
    "scale_by_acprop": scale_by_acprop,
    "scale_by_adadelta": scale_by_adadelta,
    "scale_by_adam": scale_by_adam,
    "scale_by_adamax": scale_by_adamax,
    "scale_by_adan": scale_by_adan,
    "scale_by_ademamix": scale_by_ademamix,
    "scale_by_adopt": scale_by_adopt,
    "scale_by_amsgrad": scale_by_amsgrad,
    "scale_by_belief": scale_by_belief,
    "scale_by_factored_rms": scale_by_factored_rms,
    "scale_by_lion": scale_by_lion,
    "scale_by_nadam": scale_by_nadam,
    "scale_by_novograd": scale_by_novograd,
    "scale_by_optimistic_gradient": scale_by_optimistic_gradient,
    "scale_by_radam": scale_by_radam,
    "scale_by_rms": scale_by_rms,
    "scale_by_rss": scale_by_rss,
    "scale_by_simplified_ademamix": scale_by_simplified_ademamix,
    "scale_by_sm3": scale_by_sm3,
    "scale_by_stddev": scale_by_stddev,
    "scale_by_yogi": scale_by_yogi,
    # matrices and curvature
    "hutchinson_estimator_diag_hessian": hutchinson_estimator_diag_hessian,
    "scale_by_galore": scale_by_galore,
    "scale_by_lbfgs": scale_by_lbfgs,
    "scale_by_muon": scale_by_muon,
    "scale_by_shampoo": scale_by_shampoo,
    "scale_by_shape": scale_by_shape,
    "scale_by_soap": scale_by_soap,
    "scale_by_sophia": scale_by_sophia,
    # relative to the parameters
    "add_decayed_weights": add_decayed_weights,
    "layerwise_decay": layerwise_decay,
    "scale_by_param_block_norm": scale_by_param_block_norm,
    "scale_by_param_block_rms": scale_by_param_block_rms,
    "scale_by_trust_ratio": scale_by_trust_ratio,
    # momentum and sums
    "apply_every": apply_every,
    "ema": ema,
    "trace": trace,
    # shape of the updates
    "add_noise": add_noise,
    "average_per_element_updates": average_per_element_updates,
    "centralize": centralize,
    "differentially_private_aggregate": differentially_private_aggregate,
    # around other transforms
    "add_mean_variance_to_opt": add_mean_variance_to_opt,
    "conditionally_mask": conditionally_mask,
    "conditionally_transform": conditionally_transform,
    "flatten": flatten,
    "inject_hyperparams": inject_hyperparams,
    "lookahead": lookahead,
    "master_weights": master_weights,
    "mechanize": mechanize,
    "named": named,
    "named_chain": named_chain,
    "sam": sam,
    "schedule_free": schedule_free,
    "selective_transform": selective_transform,
    "split_real_and_imaginary": split_real_and_imaginary,
    # measurements
    "monitor": monitor,
    "snapshot": snapshot,
    # rounding, last in a chain
    "kahan_summation": kahan_summation,
    "stochastic_rounding": stochastic_rounding,
}

__all__ = [
    "TRANSFORMS",
    "MuonDimensionNumbers",
    "at_least_2d",
    "chain",
    "freeze",
    "get_unbiased_mean_and_variance_ema",
    "incremental_update",
    "masked",
    "measure_with_ema",
    "orthogonalize_via_newton_schulz",
    "partition",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "periodic_update",
    "schedule_free_eval_params",
    "stateless",
    "unitwise_clip",
    "unitwise_norm",
    *TRANSFORMS,
]
