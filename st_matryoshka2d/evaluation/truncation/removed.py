"""How much of an embedding is removed: the steps of the paper's tables."""

from __future__ import annotations

from st_matryoshka2d.sizes import positive_int

__all__ = ["percent_removed", "truncation_dims"]

# The dims that the paper's models of this width were trained at, beside its tenths; 512 of 1024 is a tenth as well.
_TRAINED = {768: (512, 256, 128, 64), 1024: (768, 256, 128, 64)}


def truncation_dims(full_dim: int) -> list[int]:
    """The dims at which "To MRL or not to MRL" scores a model (Tables 2 to 5), descending.

    A tenth of the coordinates is removed, two tenths, and so on to nine; between these are the dims that its matryoshka
    models were trained at. For other widths these are the powers of two from D/16 up: the paper removes 94 % at most.

    Args:
        full_dim: Width of the model.

    Raises:
        TypeError: Not an integer.
        ValueError: Below 1.

    Example:
        >>> [percent_removed(dim, 768) for dim in truncation_dims(768)]
        [0, 10, 20, 30, 33, 40, 50, 60, 67, 70, 80, 83, 90, 92]
        >>> truncation_dims(384)
        [384, 346, 307, 269, 256, 230, 192, 154, 128, 115, 77, 64, 38, 32]
    """
    positive_int(full_dim, "full_dim")
    powers = [2**exponent for exponent in range(full_dim.bit_length()) if full_dim / 16 <= 2**exponent < full_dim]
    tenths = [round(full_dim * (10 - tenth) / 10) for tenth in range(10)]
    return sorted({dim for dim in (*tenths, *_TRAINED.get(full_dim, powers)) if dim > 0}, reverse=True)


def percent_removed(dim: int, full_dim: int) -> int:
    """The share of coordinates that is removed, rounded as the paper's tables are headed.

    Args:
        dim: How many are kept.
        full_dim: Of how many.

    Example:
        >>> percent_removed(64, 1024)
        94
    """
    return round(100 * (full_dim - dim) / full_dim)
