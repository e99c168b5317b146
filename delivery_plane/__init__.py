"""The governed delivery plane: what is true, where it is written, where compute happens."""

__version__ = "0.3.0"
