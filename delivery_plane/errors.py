"""Every error the platform raises, named by the boundary that was crossed. Not verdicts: those are data.

A seat's bad claim is never one of these, a platform fault always is.
"""

import errno
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


class LedgerUnfit(LedgerFault):
    """The ledger's database cannot be used as it is: away, damaged, full, or somebody else's. A person mends it."""

    exit_code = 3


class StaleFence(LedgerFault):
    """A process wrote under a fencing token that a newer process has since superseded."""


class ArtifactFault(DeliveryPlaneError):
    """A stored file is missing or its bytes do not match its digest."""


class ComputeFault(DeliveryPlaneError):
    """A compute process died or answered with an error that is the plane's, not the seat's."""


class Interrupted(DeliveryPlaneError):
    """The machine ended a process of ours (an operator, too little memory) or could start none.

    It says nothing about the work, so trying again can help where a ComputeFault would come back.
    """


class ServerFault(DeliveryPlaneError):
    """Temporal could not be reached, or nobody polls the queue that was asked."""


class ServerAway(ServerFault):
    """No Temporal server where one was looked for: none was started, or the address is another program's."""

    exit_code = 3


def one_line(text: object, longest: int) -> str:
    """Text from outside as part of one line: no control characters, and no longer than `longest`."""
    shown = "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


_NO_ROOM = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
}
_NO_ROOM_SAID = {
    "no space left on device": errno.ENOSPC,
    "database or disk is full": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    "read-only file system": errno.EROFS,
    "readonly database": errno.EROFS,
}
"""How libraries that hide the error number put it."""


def no_room(error: BaseException | None) -> str | None:
    """Why nothing could be written, when a full or read-only disk is what `error` comes from; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return _NO_ROOM[error.errno]
        text = str(error).lower()
        for said, number in _NO_ROOM_SAID.items():
            if said in text:
                return _NO_ROOM[number]
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def attributed(boundary: type[DeliveryPlaneError], doing: str) -> Iterator[None]:
    """Re-raise any foreign exception inside as `boundary`, saying what was being done.

    A full or read-only disk is the machine's lack whatever was being done: MachineUnfit.
    """
    try:
        yield
    except DeliveryPlaneError:
        raise
    except Exception as error:
        if lack := no_room(error):
            raise MachineUnfit(f"{doing}: {lack}") from error
        # The first line alone: libraries add statements, hints and links below it.
        first = next(iter(str(error).splitlines()), "")
        raise boundary(f"{doing}: {type(error).__name__}: {first}") from error
