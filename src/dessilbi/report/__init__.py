"""A finished run to look at: one HTML file, or figures to print. Reads run directories only."""

from dessilbi.report.figures import FORMATS, write_figures
from dessilbi.report.page import make_page, write_report
from dessilbi.report.run_data import RunData, read_run

__all__ = ["FORMATS", "RunData", "make_page", "read_run", "write_figures", "write_report"]
