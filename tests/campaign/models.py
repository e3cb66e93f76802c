"""
T7 and T9 at length: the searches of `tests/property`, as rows of the campaign's table.

Random operations on a database are compared with the same ones in memory; histories that were cut,
shuffled and doubled are rendered and judged by validators that know nothing of the rendering.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.campaign.places import STORES, place
from tests.campaign.trial import Tally, Trial
from tests.property.test_stores_agree import agree

_ROOT = Path(__file__).parent.parent.parent
_HISTORIES = _ROOT / "tests" / "property" / "test_provider_validity.py"
_SEARCHES = 23  # how often each history is judged, in another way or by another property


def _run_agree(store: str, name: str, count: int, seed: int) -> Tally:
    tally = Tally(name)
    with place(store) as url:
        try:
            agree(url, count, seed)
        except Exception as found:  # noqa: BLE001 - whatever it is, it is a difference
            notes = "\n".join(getattr(found, "__notes__", ()))
            tally.violations.append(f"seed {seed}: {found!r}\n{notes}"[:4000])
    tally.runs = count
    return tally


def _run_histories(count: int, seed: int) -> Tally:
    each = max(1, count // _SEARCHES)
    pytest = [sys.executable, "-m", "pytest", "-n0", "-q", "--timeout=0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, f"--hypothesis-seed={seed}", str(_HISTORIES)],
        env={**os.environ, "LOOOPY_EXAMPLES": str(each)},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    tally = Tally("histories that were damaged", runs=each * _SEARCHES)
    if done.returncode:
        tally.violations.append(f"seed {seed}: {done.stdout[-3000:]}")
    return tally


TRIALS = [
    *(
        Trial(name, 200, partial(_run_agree, store, name))
        for store in STORES
        for name in [f"random operations beside memory, {store}"]
    ),
    Trial("histories that were damaged", 100_000, _run_histories),
]
