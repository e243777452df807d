"""What a run was made on, for ``environment.json``."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch


def describe(device: torch.device, processes: int) -> bytes:
    """Versions, machine, command and time, as JSON."""
    packages = {}
    for name in ("dessilbi", "torch", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "unknown"
    facts = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "processes": processes,
    }
    return (json.dumps(facts, indent=2) + "\n").encode()
