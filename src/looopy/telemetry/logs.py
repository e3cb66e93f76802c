"""The log as JSON lines: one object a line, with the ids of context, turn and call as fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from looopy.telemetry.process import process_name

_OWN: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


class JsonLines(logging.Formatter):
    """
    Formats a record as one line of JSON.

    Fields: `time` (ISO 8601, UTC), `level`, `logger`, `message`; `process`, the name of this
    process, which each turn that it ran keeps (`process_name`); `exception` with the traceback, if
    there is one; `trace_id` and `span_id` within a span; and each field that was passed as `extra`,
    such as `context_id`, `turn`, `iteration` and `tool_call_id`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """*record* as a line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": process_name(),
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in line:
                line[name] = value
        line |= _place_in_trace()
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            return json.dumps(line, default=repr)
        except (TypeError, ValueError, RecursionError):  # odd keys, or a circle
            plain = (str, int, float, bool, type(None))
            return json.dumps({k: v if isinstance(v, plain) else repr(v) for k, v in line.items()})


def log_json_lines(stream: TextIO | None = None, *, level: int | str = logging.WARNING) -> None:
    """
    Write the log of this process as JSON lines, in place of the handlers of the root logger.

    Args:
        stream: Standard error by default.
        level: Records below it are left out.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _place_in_trace() -> dict[str, str]:
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    found = api.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
