"""
How an operator sees what runs: the log as JSON lines.

This room knows the types and the errors, and nothing above them.
"""

from looopy.telemetry.logs import JsonLines as JsonLines
from looopy.telemetry.logs import log_json_lines as log_json_lines

__all__ = ["JsonLines", "log_json_lines"]
