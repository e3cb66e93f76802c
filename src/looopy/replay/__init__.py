"""
Run a stored turn again, without network and without effects, and name the first difference.

The model and the tools are answered from the log; everything between them is the code of today: the
prompt, the tools' schemas, the limits, the loop. So a replay shows whether a change of the prompt,
of a tool or of looopy changes a turn that has happened, and any turn becomes a test.

Read `recording` (a turn as it was stored), then `answers` (a model and tools that answer from it),
`running` (the replay), `differences`, `scrubbing`, and `beside`, which runs the turn for real in a
fork, with a real model.
"""

from looopy.replay.beside import Beside, run_beside
from looopy.replay.differences import Difference, Replayed
from looopy.replay.recording import Recording, read_recording
from looopy.replay.running import replay
from looopy.replay.scrubbing import scrub

__all__ = [
    "Beside",
    "Difference",
    "Recording",
    "Replayed",
    "read_recording",
    "replay",
    "run_beside",
    "scrub",
]
