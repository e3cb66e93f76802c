"""Checks the processor's abilities before a gigabyte is fetched for it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from looopy.errors import ConfigurationError

_NEEDED = ("avx2", "fma", "f16c", "bmi2")


def explain_missing_instructions(missing: tuple[str, ...] = ("avx2",)) -> str:
    """Describe what is wrong with the processor, and what to do."""
    return (
        f"this processor cannot run the local model: it lacks {', '.join(missing).upper()} (its "
        "runtime needs an x86 processor with AVX2, made since about 2013); use a hosted model "
        "with its key, or a server of your own by its URL"
    )


def check_processor(cpuinfo: str | None = None) -> None:
    """
    Refuse a processor without the instructions that the runtime is built for.

    Args:
        cpuinfo: The text of `/proc/cpuinfo`; read by default. Without it (not Linux), or without
            flags in it, no processor is refused, and the child process will show.

    Raises:
        ConfigurationError: An instruction set is missing.
    """
    if cpuinfo is None:
        cpuinfo = _cpuinfo() if platform.machine().lower() in ("x86_64", "amd64") else ""
    line = next((one for one in cpuinfo.splitlines() if one.startswith("flags")), "")
    flags = line.partition(":")[2].split()
    missing = tuple(name for name in _NEEDED if name not in flags) if flags else ()
    if missing:
        raise ConfigurationError(explain_missing_instructions(missing))


def physical_cores(cpuinfo: str | None = None) -> int:
    """
    How many cores this process may use, two threads of one core counted once; at least 1.

    Args:
        cpuinfo: The text of `/proc/cpuinfo`; read by default.
    """
    allowed = os.cpu_count() or 1
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    cores: set[tuple[str, str]] = set()
    package = ""
    for line in (_cpuinfo() if cpuinfo is None else cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "physical id":
            package = value.strip()
        elif key.strip() == "core id":
            cores.add((package, value.strip()))
    return max(1, min(allowed, len(cores) or allowed))


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
