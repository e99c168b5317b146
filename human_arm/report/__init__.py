"""A delivery as one HTML file for people: no network, no scripts. It shows the record and judges nothing."""

from human_arm.report.page import render_report

__all__ = ["render_report"]
