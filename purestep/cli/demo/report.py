"""What the demo says at its end: one document, and the same as a table to read."""

import os
from collections.abc import Mapping
from typing import Any

from .. import documents
from . import layout


def make_document(run_dir: str, seconds: float) -> dict[str, Any]:
    """The document of a finished demo.

    Args:
        seconds: Wall time of this command.
    """
    result = documents.read(os.path.join(run_dir, layout.RESULT))
    proof = documents.read(os.path.join(run_dir, layout.PROOF))
    leading = ("energy_mae_mev_per_atom", "forces_mae_ev_per_angstrom")
    return {
        "schema": "purestep.demo/1",
        **{name: result[name] for name in leading},
        "resume_bitwise": proof["bitwise"],
        "seconds": round(seconds, 1),
        **{name: value for name, value in result.items() if name not in leading},
        "metrics": os.path.join(run_dir, layout.METRICS),
        "run_dir": run_dir,
        "proof": proof,
    }


def table(document: Mapping[str, Any]) -> str:
    """The document as a table of errors, and where everything is."""
    proof = document["proof"]
    rows = [
        ("", "energy", "forces"),
        ("mean absolute error", "meV/atom", "eV/Å"),
        ("predicting nothing", *_errors(document, "baseline_")),
        ("PaiNN" if document["num_members"] == 1 else f"mean of {document['num_members']} PaiNN", *_errors(document, "")),
    ]
    verdict = "bitwise the uninterrupted run" if proof["bitwise"] else "NOT the uninterrupted run"
    lines = [
        f"{document['num_test_frames']} frames of {document['num_test_molecules']} molecules that training never saw",
        "",
        *(f"  {name:<20}  {energy:>9}  {forces:>8}" for name, energy, forces in rows),
        "",
        f"resumed    {verdict}: {proof['leaves']} leaves, {proof['log_lines']} lines of the log",
        f"weights    {os.path.relpath(document['weights'])}",
        f"log        {os.path.relpath(document['metrics'])}",
        *(f"picture    {os.path.relpath(path)}" for path in document["pictures"]),
        f"time       {document['seconds']:.0f} s",
    ]
    return "\n".join(lines)


def _errors(document: Mapping[str, Any], prefix: str) -> tuple[str, str]:
    return f"{document[f'{prefix}energy_mae_mev_per_atom']:.0f}", f"{document[f'{prefix}forces_mae_ev_per_angstrom']:.3f}"
