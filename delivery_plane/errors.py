"""Every error the platform raises, named by the boundary that was crossed. Not verdicts: those are data.

A seat's bad claim is never one of these, a platform fault always is.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class DeliveryPlaneError(Exception):
    """Root of all platform errors; `exit_code` is what the command line returns for it."""

    exit_code = 4


class BadInput(DeliveryPlaneError):
    """Something a person typed or a file they wrote cannot be used. One line: what, where, what to do."""

    exit_code = 2


class MachineUnfit(DeliveryPlaneError):
    """This machine lacks something the command needs (a binary, a port, space, a permission)."""

    exit_code = 3


class LedgerFault(DeliveryPlaneError):
    """The ledger could not be read or appended to, or what it holds does not verify."""


class StaleFence(LedgerFault):
    """A process wrote under a fencing token that a newer process has since superseded."""


class ArtifactFault(DeliveryPlaneError):
    """A stored file is missing or its bytes do not match its digest."""


class ComputeFault(DeliveryPlaneError):
    """A compute process died or answered with an error that is the plane's, not the seat's."""


class ServerFault(DeliveryPlaneError):
    """Temporal could not be reached, or nobody polls the queue that was asked."""


def one_line(text: object, longest: int) -> str:
    """Text from outside as part of one line: no control characters, and no longer than `longest`."""
    shown = "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


@contextmanager
def attributed(boundary: type[DeliveryPlaneError], doing: str) -> Iterator[None]:
    """Re-raise any foreign exception inside as `boundary`, saying what was being done."""
    try:
        yield
    except DeliveryPlaneError:
        raise
    except Exception as error:
        # The first line alone: libraries add statements, hints and links below it.
        first = next(iter(str(error).splitlines()), "")
        raise boundary(f"{doing}: {type(error).__name__}: {first}") from error
