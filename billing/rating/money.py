"""Amounts: integer millionths ("micros") of a currency's major unit. Pure.

No float ever becomes money: 2.49 has no exact binary form, and an error once in the ledger
stays in it.
"""

import re
from fractions import Fraction

MICROS = 1_000_000
# PostgreSQL's bigint, less a margin that sums of a few amounts stay inside of.
MAX_MICROS = 2**62
_AMOUNT = re.compile(r"-?\d{1,12}(\.\d{1,6})?")


def parse_micros(text: str) -> int:
    """The micros of a decimal text such as "2.49". Raises ValueError, TypeError for a float.

    >>> parse_micros("2.49")
    2490000
    >>> parse_micros("0.0000001")
    Traceback (most recent call last):
    ...
    ValueError: “0.0000001” is not an amount with at most six decimals.
    """
    if not isinstance(text, str):
        raise TypeError(f"money is read from text, not from {type(text).__name__}")
    if not _AMOUNT.fullmatch(text):
        raise ValueError(f"“{text[:40]}” is not an amount with at most six decimals.")
    return int(Fraction(text) * MICROS)


def check_micros(amount: object) -> int:
    """`amount` where it is an integer within bounds. Raises TypeError or ValueError."""
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise TypeError(f"money is an integer of micros, not {type(amount).__name__}")
    if abs(amount) > MAX_MICROS:
        raise ValueError(f"{amount} micros are out of bounds")
    return amount


def format_micros(amount: int, *, decimals: int = 2) -> str:
    """For people, half up, with a dollar sign and thousands; nought is never negative.

    >>> format_micros(19_999), format_micros(-1), format_micros(1_792_800_000)
    ('$0.02', '$0.00', '$1,792.80')
    >>> format_micros(691, decimals=4)
    '$0.0007'
    """
    unit = 10 ** (6 - decimals)
    rounded = (abs(check_micros(amount)) + unit // 2) // unit
    whole, part = divmod(rounded, 10**decimals)
    sign = "-" if amount < 0 and rounded else ""
    return f"{sign}${whole:,}.{part:0{decimals}}"
