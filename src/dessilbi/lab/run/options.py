"""Where and how a run happens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how a run happens; none of it changes a number of the result."""

    runs: Path = Path("runs")
    """Folder of the run directories."""
    data_dir: Path | None = None
    """Where the data lies; also $DESSILBI_DATA and the user cache are searched."""
    download: bool = False
    """Fetch the data if it is not found."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run directory."""
    save_minutes: float = 10.0
    """Save within an epoch this often (a single process; several save after each epoch)."""
    check_step: bool = False
    """Before each epoch estimate the curvature on a batch; warn if lr is above the safe step."""
