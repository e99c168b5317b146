"""What device time costs on a local plane: the price book. Budgets are someone else's."""

from collections.abc import Mapping
from types import MappingProxyType

USD_PER_DEVICE_HOUR: Mapping[str, float] = MappingProxyType(
    {
        # About what a small cloud machine costs. Not measured: a fixed price makes two deliveries comparable.
        "local-cpu": 0.36,
        # About what one data-centre GPU costs to rent.
        "local-cuda": 3.60,
    }
)


def usd(kind: str, device_seconds: float) -> float:
    """Price of `device_seconds` on one device of `kind`."""
    return USD_PER_DEVICE_HOUR[kind] * device_seconds / 3600
