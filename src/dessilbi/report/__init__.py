"""A finished run to look at: one HTML file, or figures to print. Reads run directories only."""

from .figures import FORMATS, write_figures
from .page import make_page, write_report
from .run_data import RunData, read_run

__all__ = ["FORMATS", "RunData", "make_page", "read_run", "write_figures", "write_report"]
