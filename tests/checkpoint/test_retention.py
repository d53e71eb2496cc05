"""The pure part: what to keep, which is best, what has changed."""

import datetime
import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purestep.checkpoint.best import best_of, parse_best
from purestep.checkpoint.manifest import Manifest, Schema, Version
from purestep.checkpoint.resume import check_same
from purestep.checkpoint.retention import Best, Policy, plan
from purestep.checkpoint.store import Checkpoint
from purestep.core.cadence import Cadence, Moment, is_due
from purestep.errors import StructureMismatchError

NOON = datetime.datetime(2025, 7, 1, 12, tzinfo=datetime.UTC)
RUN, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


def checkpoint(label, *, loss=None, run_id=RUN, reason="periodic", finite=None, step=None, minutes=0):
    manifest = Manifest(
        format="purestep.checkpoint",
        format_version=Version(major=1, minor=0),
        min_reader=1,
        checkpoint_id=RUN,
        parent_id=None,
        run_id=run_id,
        label=label,
        counters={} if step is None else {"step_count": step},
        created=(NOON + datetime.timedelta(minutes=minutes)).isoformat(),
        reason=reason,
        writer={},
        state_schema=Schema(name="x", version=0),
        world_size=1,
        metrics={} if loss is None else {"loss": float(loss).hex()},
        finite=finite,
        files=[],
        aliases=[],
        leaves=[],
        extra={},
    )
    return Checkpoint(f"/runs/step-{label:010d}", manifest)


def labels(checkpoints):
    return [found.manifest.label for found in checkpoints]


losses = st.none() | st.floats(allow_nan=True, allow_infinity=True)
checkpoints = st.lists(
    st.builds(
        checkpoint,
        st.integers(0, 60),
        loss=losses,
        run_id=st.sampled_from([RUN, OTHER]),
        reason=st.sampled_from(["periodic", "best", "preemption", "exception", "final", "manual"]),
        finite=st.sampled_from([None, True, False]),
        minutes=st.integers(-300, 300),
    ),
    unique_by=lambda found: found.manifest.label,
)
policies = st.builds(
    Policy,
    keep_last=st.integers(1, 4),
    keep_best=st.lists(st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 3)), max_size=2).map(tuple),
    keep_every=st.none() | st.integers(1, 20),
    keep_every_hours=st.none() | st.floats(0.01, 12),
)


@given(checkpoints, policies, st.sets(st.integers(0, 60)))
def test_every_checkpoint_is_either_kept_or_deleted_and_what_any_rule_wants_is_kept(found, policy, protected):
    paths = {f"/runs/step-{label:010d}" for label in protected}
    keep, delete = plan(found, policy, run_id=RUN, protected=paths)
    own = sorted((one for one in found if one.manifest.run_id == RUN), key=lambda one: one.manifest.label)
    assert sorted(labels(keep) + labels(delete)) == sorted(labels(found))
    assert not {one.path for one in delete} & paths
    assert all(one.manifest.run_id == RUN and one.manifest.reason not in ("final", "manual") for one in delete)
    assert not set(labels(own[-policy.keep_last :])) & set(labels(delete))
    assert all(policy.keep_every is None or one.manifest.label == 0 or one.manifest.label % policy.keep_every for one in delete)
    for rule in policy.keep_best:
        assert not set(labels(best_of(own, rule.metric, rule.mode)[: rule.count])) & set(labels(delete))


@given(checkpoints, policies)
def test_what_is_kept_would_be_kept_again_and_order_does_not_matter(found, policy):
    keep, _ = plan(found, policy, run_id=RUN)
    assert plan(keep, policy, run_id=RUN).delete == []
    assert plan(found[::-1], policy, run_id=RUN).keep == keep


@given(checkpoints)
def test_the_best_is_never_one_whose_metric_or_weights_are_not_finite(found):
    for one in best_of(found, "loss", "min"):
        assert math.isfinite(float.fromhex(one.manifest.metrics["loss"]))
        assert one.manifest.finite is not False


def test_of_equal_metrics_the_newer_is_better():
    assert labels(best_of([checkpoint(1, loss=2), checkpoint(3, loss=2), checkpoint(2, loss=1)], "loss", "min")) == [2, 3, 1]
    assert labels(best_of([checkpoint(1, loss=2), checkpoint(3, loss=2), checkpoint(2, loss=1)], "loss", "max")) == [3, 1, 2]


def test_keep_every_counts_updates_where_they_are_known():
    found = [checkpoint(label, step=label // 2) for label in range(0, 50, 2)]
    assert labels(plan(found, Policy(keep_last=1, keep_every=10), run_id=RUN).keep) == [20, 40, 48]


def test_keep_every_hours_keeps_the_first_of_each_interval_by_the_time_it_was_written():
    found = [checkpoint(label, minutes=minutes) for label, minutes in enumerate((0, 10, 119, 120, 121, 400, 401))]
    assert labels(plan(found, Policy(keep_last=1, keep_every_hours=2), run_id=RUN).keep) == [0, 3, 5, 6]
    assert labels(plan(found, Policy(keep_last=1, keep_every_hours=0.05), run_id=RUN).keep) == [0, 1, 2, 3, 5, 6]


def test_a_clock_that_went_back_keeps_more_and_never_deletes_what_was_the_first_before():
    found = [checkpoint(label, minutes=minutes) for label, minutes in enumerate((125, 130, 5, 10, 126))]
    assert labels(plan(found, Policy(keep_last=1, keep_every_hours=2), run_id=RUN).keep) == [0, 2, 4]


def test_the_same_moment_written_in_another_zone_is_in_the_same_interval():
    one, other = checkpoint(1, minutes=5), checkpoint(2, minutes=30)
    east = datetime.datetime.fromisoformat(one.manifest.created).astimezone(datetime.timezone(datetime.timedelta(hours=9)))
    moved = one._replace(manifest=one.manifest.model_copy(update={"created": east.isoformat()}))
    assert labels(plan([moved, other, checkpoint(3, minutes=31)], Policy(1, keep_every_hours=1), run_id=RUN).keep) == [1, 3]


@given(checkpoints, st.floats(0.01, 12))
def test_deleting_as_the_run_goes_keeps_of_each_interval_what_deleting_at_the_end_would_keep(found, hours):
    ordered, policy = sorted(found, key=lambda one: one.manifest.label), Policy(keep_last=1, keep_every_hours=hours)
    kept = functools.reduce(lambda held, one: plan([*held, one], policy, run_id=RUN).keep, ordered, [])
    assert kept == plan(ordered, policy, run_id=RUN).keep


@pytest.mark.parametrize(
    ("text", "expected"),
    [("best:loss", ("loss", "min")), ("best:max:acc", ("acc", "max")), ("best:min:x:y", ("x:y", "min")), ("best:a:b", ("a:b", "min"))],
)
def test_the_best_is_asked_for_by_text(text, expected):
    assert parse_best(text) == expected


@pytest.mark.parametrize("text", ["newest", "best:", "best", "BEST:loss"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="'best:<metric>'"):
        parse_best(text)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 7))
def test_a_cadence_fires_once_per_multiple_and_never_while_the_counter_is_parked(applied, every):
    last, step, fired = Moment(0, 0, 0.0), 0, []
    for moves in applied:
        step += moves
        now = Moment(step, 0, 0.0)
        if is_due(Cadence(every_n_steps=every), last, now):
            fired.append(step)
            last = now
    assert fired == list(range(every, step + 1, every))


def test_a_changed_run_is_refused_by_name_of_field():
    saved = {"data": {"batch_size": 4, "hash": "ab"}, "world_size": 2, "spec": {"layers": [1, 2]}, "same": {}}
    now = {"data": {"batch_size": 8, "hash": "ab"}, "world_size": 2.0, "spec": {"layers": [1, 3]}, "same": {}, "new": None}
    with pytest.raises(StructureMismatchError) as caught:
        check_same(saved, now)
    text = str(caught.value)
    assert "4 fields differ" in text
    assert "data.batch_size: saved 4, now 8" in text
    assert "world_size: saved 2, now 2.0" in text
    assert "spec.layers.1: saved 2, now 3" in text
    assert "new: saved absent, now None" in text
    check_same(saved, now, allow=["data.*", "world_size", "spec.layers.?", "new"])
    check_same(saved, saved)
