import gzip
import json
import re

import pytest

import purestep as ps
from purestep.core import tree
from purestep.loop import fit
from purestep.reporting import JsonlWriter, Profile, memory_report, memory_table
from tests.examples_of_models import batches, training


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("profiled")
    profile = Profile(2, 5, tmp_path / "trace")
    log = JsonlWriter(tmp_path / "metrics.jsonl", every_n_batches=1)
    validation = ps.Validation(batches(1), every_n_steps=4)
    state = fit(training(), batches(8), num_epochs=1, validation=validation, listeners=[log, profile], span=profile.span).state
    return profile, tmp_path, state


def test_the_parts_of_the_batches_asked_for_are_timed(profiled):
    profile, _, _ = profiled
    counts = {name: len(times) for name, times in profile.seconds.items()}
    # batches 3, 4 and 5, and the validation after batch 4, of which listeners hear too
    assert {name: counts[name] for name in ("data", "step", "validation", "listener JsonlWriter")} == {
        "data": 3,
        "step": 3,
        "validation": 1,
        "listener JsonlWriter": 4,
    }


def test_the_trace_names_the_parts_and_the_operations(profiled):
    _, path, _ = profiled
    with gzip.open(path / "trace" / "trace.json.gz") as file:
        names = [entry.get("name") for entry in json.load(file)["traceEvents"]]
    assert names.count("step") == 3 and "validation" in names and "aten::addmm" in names


def test_the_text_has_a_table_whose_shares_are_of_the_whole(profiled):
    _, path, _ = profiled
    text = (path / "trace" / "profile.txt").read_text()
    assert text.startswith("3 batches in ")
    shares = [float(share) for share in re.findall(r"^\S.*\s(\d+\.\d)%$", text.split("\n\n")[1], flags=re.MULTILINE)]
    assert sum(shares) == pytest.approx(100.0, abs=1.0)  # each is rounded to 0.1
    assert "the rest" in text and "state.params" in text and "aten::" in text


def test_profiling_changes_no_bit_of_training(profiled):
    _, _, state = profiled
    plain = fit(training(), batches(8), num_epochs=1).state
    assert all(a.equal(b) for a, b in zip(tree.leaves(state), tree.leaves(plain), strict=True))


def test_a_run_that_ends_or_fails_before_still_has_its_profile(tmp_path):
    short, failed = Profile(1, 100, tmp_path / "short"), Profile(1, 100, tmp_path / "failed")
    fit(training(), batches(3), num_epochs=1, listeners=[short], span=short.span)
    with pytest.raises(RuntimeError):
        fit(training(), [*batches(3), {"x": batches(1)[0]["x"][:, :2]}], num_epochs=1, listeners=[failed], span=failed.span)
    assert (tmp_path / "short" / "profile.txt").exists() and (tmp_path / "failed" / "trace.json.gz").exists()


def test_ranges_that_hold_no_batch_are_refused(tmp_path):
    with pytest.raises(ValueError, match="first must be at least 0 and last larger, got 3 and 3"):
        Profile(3, 3, tmp_path)


def test_the_memory_of_a_state_is_exact_and_adds_up():
    state = training(optimizer=ps.adam(1e-3)).init()
    parts = memory_report(state)["state"]
    assert parts["params"] == sum(leaf.nbytes for leaf in tree.leaves(state.params))
    assert parts["opt_state"] > 2 * parts["params"]  # two moments, a count and a rate
    counters = 6 * 8  # five counters and the seed, int64
    assert parts["total"] == parts["params"] + parts["buffers"] + parts["opt_state"] + parts["hook_state"] + counters
    assert memory_report(state)["host_peak_bytes"] > parts["total"]
    assert "state.total" in memory_table(state)
