"""Plain values out of files that may be damaged."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def finite(value: Any) -> Any:
    """Plain values without NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(file: Path, notes: list[str]) -> Any:
    """The content of a file that the report can do without; ``None`` and a note if damaged."""
    try:
        return finite(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        notes.append(
            f"{file.parent.name}/{file.name} cannot be read and is left out ({error}); "
            "remove it, and make it again if you need it"
        )
        return None
