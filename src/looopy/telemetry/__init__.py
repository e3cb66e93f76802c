"""
How an operator sees what runs: the log as JSON lines, OpenTelemetry's traces and metrics.

Nothing has to be called. An application that sets a provider of OpenTelemetry gets the spans and
metrics of each turn; without one, a turn pays for one look-up. This room knows the types and the
errors, and nothing above them: agents and loops report to it.

- `current`: decides whether a turn is watched. `watch`: one turn as spans and metrics.
- `instruments`, `names`: the metrics, and the names of OpenTelemetry's GenAI conventions.
- `options`, `content`: messages in spans, which are off by default.
- `exporters`: the way to a collector, for `looopy serve`.
- `logs`: JSON lines. `process`: the name of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.telemetry.logs import JsonLines as JsonLines
    from looopy.telemetry.logs import log_json_lines as log_json_lines
    from looopy.telemetry.options import configure as configure
    from looopy.telemetry.process import process_name as process_name

_export(
    globals(),
    {
        ".logs": ("JsonLines", "log_json_lines"),
        ".options": ("configure",),
        ".process": ("process_name",),
    },
)
