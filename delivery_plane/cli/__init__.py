"""The command line: the composition root. Commands are imported when they are called, not before."""

from delivery_plane.cli.app import entry

__all__ = ["entry"]
