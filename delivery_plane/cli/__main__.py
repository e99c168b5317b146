"""`python -m delivery_plane.cli`."""

from delivery_plane.cli.app import main

if __name__ == "__main__":
    main()
