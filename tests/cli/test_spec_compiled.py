"""`spec run` with a compiled step, by whatever settings."""

from pathlib import Path

import pytest

from purestep.checkpoint import load_manifest
from purestep.reporting import read_metrics
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)


def ran(settings, *words):
    """Each leaf's checksum in the last state, and the reported losses, of a run with these settings of `runtime.compile`."""
    small = {"strategy/num_steps": 4, "output/checkpoints": {"every_n_steps": 2}, "output/report_every": 1}
    name = f"run{len(list(Path().iterdir()))}"
    Path("spec.json").write_text(text_of(changed(**small, **{"runtime/compile": settings, "output/run_dir": name})))
    done = purestep("spec", "run", "spec.json", "--progress", "none", "--no-report", *words)
    assert done.exit_code == 0, done.output
    lines = [line for line in read_metrics(f"{name}/metrics.jsonl") if "loss/total" in line]
    metrics = [{key: value for key, value in line.items() if key.startswith("loss")} for line in lines]
    leaves = load_manifest(f"{name}/checkpoints").leaves
    return [(leaf.path, leaf.value, [piece.crc32c for piece in leaf.pieces]) for leaf in leaves], metrics


@pytest.mark.parametrize("settings", [{}, {"donate": True}, {"donate": True, "mode": "reduce-overhead"}], ids=str)
def test_a_captured_run_has_the_bits_of_the_one_that_is_not_compiled(settings):
    leaves, metrics = ran({"backend": "eager", "on_recompile": "ignore", **settings})
    assert (leaves, metrics) == ran(None)
    assert len(leaves) > 50 and len(metrics) == 4
