"""`python -m delivery_plane.cli`."""

from delivery_plane.cli.app import entry

if __name__ == "__main__":
    entry()
