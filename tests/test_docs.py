"""The documents speak the truth: their Python runs, their paths exist. Doctests of the package run beside it."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def padded_snippets(path: Path) -> list[str]:
    """The Python blocks of a document, each shifted to its own line, so that a traceback points into the document."""
    text = path.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, block.start(1)) + block.group(1) for block in FENCE.finditer(text)]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if padded_snippets(path)], ids=short)
@pytest.mark.slow
def test_the_python_of_a_document_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # Dynamo imports the modules of the functions that it captures
    with torch.random.fork_rng(devices=[]):  # a module draws its first weights from the global generator
        for source in padded_snippets(path):
            exec(compile(source, str(path), "exec"), vars(page))


@pytest.mark.slow
@pytest.mark.distributed
def test_the_script_of_many_processes_gives_on_two_ranks_what_it_gives_on_one(tmp_path):
    report = "import json\nif topology.rank == 0:\n    print(json.dumps({k: p.tolist() for k, p in result.state.params.items()}))\n"
    script = tmp_path / "script.py"
    script.write_text(padded_snippets(ROOT / "docs/scaling.md")[0] + report, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=0.2"]
    alone, together = (
        subprocess.run([sys.executable, *how, script], capture_output=True, text=True, timeout=120, env=environment, check=False)
        for how in ([], torchrun)
    )
    assert alone.returncode == together.returncode == 0, (alone.stderr + together.stderr)[-3000:]
    one, two = ({name: torch.tensor(p) for name, p in json.loads(done.stdout).items()} for done in (alone, together))
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)  # float32, and two ranks add in another order


@pytest.mark.parametrize("path", DOCUMENTS, ids=short)
def test_the_links_of_a_document_lead_to_files(path):
    assert [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()] == []


def test_the_readme_fits_on_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_readme_and_contributing_give_the_commands_that_ci_runs():
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    readme, contributing = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md"))
    assert "pip install torch==2.13.0 -e '.[test]' && pytest" in readme
    assert re.search(r"^pip install .*torch==2\.13\.0 -e '\.\[test\]'$", run, re.MULTILINE) and re.search(r"^pytest$", run, re.MULTILINE)
    assert all(
        re.search(rf"^{command}$", run, re.MULTILINE) and command in contributing
        for command in ("ruff check .", "ruff format --check .", "mypy")
    )
