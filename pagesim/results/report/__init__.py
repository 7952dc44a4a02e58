"""Report: results as a single self-contained HTML page with a map of memory over time."""

from pagesim.results.report.allocators import write_allocators_page
from pagesim.results.report.inline import Report
from pagesim.results.report.page import INSTANTS, write_report

__all__ = ["INSTANTS", "Report", "write_allocators_page", "write_report"]
