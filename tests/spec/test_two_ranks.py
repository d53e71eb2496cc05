"""Two ranks with 3 and 5 frames against one process with all 8: what agrees, what does not, and what cannot be compared."""

import re

import pytest
import torch

from purestep.core import tree
from purestep.core.loss import ComposedLoss, Sums, WholeTerm
from purestep.data import index_at
from purestep.spec.building import build
from purestep.spec.reading import check_text
from purestep.spec.rung import Failure, NotTried
from purestep.spec.two_ranks import try_two_ranks
from tests.spec.examples import changed, text_of

PARTS = "tests.spec.awkward_parts"
SGD = {"strategy/update": [{"kind": "sgd", "learning_rate": 0.01}], "strategy/schedule": None, "strategy/hooks": []}
BY_HAND = {**SGD, "strategy/loss": [{"kind": "ForceL2NormLoss"}, {"cls_path": f"{PARTS}.MeanOfRank", "weight": 2.0}]}


def spec_of(**values):
    spec, problems = check_text(text_of(changed(**values)))
    assert spec is not None, problems
    return spec


def tried(**values):
    return try_two_ranks(spec_of(**values), (PARTS,))


def model(name):
    return {"strategy/model_specs": {"main": {"cls_path": f"{PARTS}.{name}"}}}


@pytest.mark.distributed
@pytest.mark.parametrize(
    "values",
    [
        {"runtime/precision": "bf16", "runtime/microbatches": 2},
        {"dataset/padded_sizes": 1, "runtime/distributed": {"shard_state": "parameters"}},
        {"strategy/update": [{"kind": "skip_nonfinite"}, {"kind": "accumulate", "every": 2}, {"kind": "adamw"}]},
    ],
    ids=["warm-up", "in parts", "windows"],
)
def test_a_good_spec_gives_the_weights_of_one_process(values):
    words = tried(**values)
    found = re.fullmatch(
        r"3 and 5 frames on two ranks, in float64: weights and losses are those of one process to (\S+) after 2 updates", words
    )
    assert found is not None, words
    assert float(found[1]) <= 1e-10


@pytest.mark.distributed
def test_a_term_that_takes_a_mean_of_its_own_rank_is_found_and_named():
    with pytest.raises(Failure) as failure:
        tried(**BY_HAND)
    words = str(failure.value)
    assert "ranks with 3 and 5 frames do not come to what one process with 8 does" in words
    assert "MeanOfRank/unweighted differs before any update" in words
    assert "ps.Sums(numerator, denominator)" in words
    found = re.search(r"after 2 updates params\.(\S+) is off by (\S+), and", words)
    apart = distances_of_a_mean_of_means()
    assert found is not None, words
    assert float(found[2]) == pytest.approx(max(apart.values()), rel=0.05)  # two digits are shown
    assert apart[found[1]] == max(apart.values())


def distances_of_a_mean_of_means():
    """How far weights go astray by the term's mean of two means, worked in one process."""
    training, loader, _ = build(spec_of(**BY_HAND, **{"dataset/dtype": "float64"}), trust=(PARTS,))

    def term(predictions, batch):
        errors = (predictions["energy"] - batch.energy).square()
        return (errors[:3].mean() + errors[3:].mean()) / 2

    forces = training.loss.terms[0].term
    by_hand = WholeTerm(fn=lambda predictions, batch: Sums(term(predictions, batch), torch.ones((), dtype=torch.float64)), name="by_hand")
    astray = training.replace(loss=ComposedLoss([forces, by_hand], weights=[1.0, 2.0]))
    states = [training.init(3), training.init(3)]
    for number in range(2):
        frames = index_at(3, 0, torch.arange(8 * number, 8 * number + 8).numpy(), len(loader.dataset))
        batch = loader.collate([loader.dataset[frame] for frame in frames.tolist()], None)
        states = [one.step(state, batch)[0] for one, state in zip((training, astray), states, strict=True)]
    right, wrong = (dict(tree.items(state.params)) for state in states)
    return {name: float((wrong[name] - leaf).abs().max()) / max(float(leaf.abs().max()), 1.0) for name, leaf in right.items()}


@pytest.mark.distributed
def test_a_transform_that_sees_the_gradient_of_its_own_rank_is_found():
    update = [{"kind": "clip_by_global_norm", "max_norm": 0.01}, {"kind": "accumulate", "every": 2}, *SGD["strategy/update"]]
    with pytest.raises(Failure, match=r"losses before any update are alike, .* put transforms behind `accumulate`"):
        tried(**SGD | {"strategy/update": update})


@pytest.mark.distributed
def test_a_buffer_that_comes_apart_on_the_ranks_is_found():
    with pytest.raises(Failure, match=r"ranks 0 and 1 failed: DistributedError: after the update .*: buffers.frames differs"):
        tried(**model("Counting"))


@pytest.mark.distributed
def test_dropout_is_not_compared_with_one_process_and_says_so():
    words = tried(**model("Dropping"))
    assert "both have the same bits after 2 updates; not compared with one process" in words
    assert "dropout, noise" in words


@pytest.mark.distributed
def test_statistics_of_each_ranks_share_are_said_to_give_other_weights():
    words = tried(**model("Normalised"))
    assert "weights and losses are those of one process" in words
    assert "with local, which the run has" in words


@pytest.mark.distributed
def test_a_leaf_whose_gradient_is_nothing_but_rounding_is_left_out():
    words = tried(**model("Shifted") | {"strategy/update": [{"kind": "lion", "learning_rate": 0.01}], "strategy/schedule": None})
    assert "leaves left out, among them params.shift" in words


@pytest.mark.distributed
def test_a_rank_that_dies_is_named():
    with pytest.raises(Failure, match=r"do not come through: .*rank 1 ended with exit code 9"):
        tried(**model("Dying"))


def test_too_few_frames_are_not_tried(monkeypatch):
    monkeypatch.setattr("purestep.data.frames.PreparedFrames.__len__", lambda frames: 2)
    with pytest.raises(NotTried, match="two ranks need 3 frames to share unequally, and there are 2"):
        tried()


def test_a_model_that_knows_no_float64_is_not_tried():
    with pytest.raises(NotTried, match="does not take steps on 8 frames in float64"):
        tried(**model("Single"))
