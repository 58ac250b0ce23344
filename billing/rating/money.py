"""Amounts: integer millionths ("micros") of a currency's major unit. Pure.

No float ever becomes money: 2.49 has no exact binary form, and an error once in the ledger
stays in it.
"""

import re

MICROS = 1_000_000
# A billion dollars. A bigint holds nine thousand times as much, so no sum of amounts overflows.
MAX_MICROS = 10**15
# A million dollars an hour.
MAX_MICROS_PER_HOUR = 10**12
_DECIMALS = 6
_AMOUNT = re.compile(r"(-?)\$?([0-9]{1,10})(?:\.([0-9]{1,6}))?")


def parse_micros(text: str) -> int:
    """The micros of a decimal text such as "2.49". ValueError otherwise, TypeError for a float.

    >>> parse_micros("2.49"), parse_micros("-$0.000001")
    (2490000, -1)
    >>> parse_micros("0.0000001")
    Traceback (most recent call last):
    ...
    ValueError: “0.0000001” is not an amount with at most six decimals.
    """
    if not isinstance(text, str):
        raise TypeError(f"money is read from text, not from {type(text).__name__}")
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"“{text[:40]}” is not an amount with at most six decimals.")
    sign, whole, part = match.groups(default="")
    micros = int(whole) * MICROS + int(part.ljust(_DECIMALS, "0"))
    return check_micros(-micros if sign else micros)


def check_micros(amount: object, *, limit: int = MAX_MICROS) -> int:
    """`amount` where it is an integer within ±`limit`. Raises TypeError or ValueError."""
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise TypeError(f"money is an integer of micros, not {type(amount).__name__}")
    if abs(amount) > limit:
        raise ValueError(f"{amount} micros are out of bounds")
    return amount


def check_rate(micros_per_hour: object) -> int:
    """A price of an hour: an integer from nought to `MAX_MICROS_PER_HOUR`."""
    rate = check_micros(micros_per_hour, limit=MAX_MICROS_PER_HOUR)
    if rate < 0:
        raise ValueError("a price is not negative")
    return rate


def format_micros(amount: int, *, decimals: int = 2) -> str:
    """For people: half up, thousands apart; nought has no sign.

    >>> format_micros(19_999), format_micros(-1), format_micros(1_792_800_000)
    ('$0.02', '$0.00', '$1,792.80')
    >>> format_micros(-5_000)
    '-$0.01'
    """
    unit = _unit(decimals)
    return _format(check_micros(amount), (abs(amount) + unit // 2) // unit, decimals)


def format_needed(amount: int) -> str:
    """An amount that must be there: rounded up to the cent.

    >>> format_needed(2_490_001), format_available(2_490_000)
    ('$2.50', '$2.49')
    """
    return _format(check_micros(amount), -(-amount // _unit(2)), 2)


def format_available(amount: int) -> str:
    """An amount that is there: rounded down to the cent, and never below nought."""
    return _format(check_micros(amount), max(amount, 0) // _unit(2), 2)


def format_running(amount: int) -> str:
    """A cost that ticks: four decimals, or all six while it is below a cent.

    >>> format_running(0), format_running(691), format_running(3_475_625)
    ('$0.00', '$0.000691', '$3.4756')
    """
    if amount == 0:
        return format_micros(0)
    return format_micros(amount, decimals=4 if abs(amount) >= _unit(2) else _DECIMALS)


def _unit(decimals: int) -> int:
    if not 0 < decimals <= _DECIMALS:
        raise ValueError("an amount is shown with one to six decimals")
    return int(10 ** (_DECIMALS - decimals))


def _format(amount: int, units: int, decimals: int) -> str:
    whole, part = divmod(units, 10**decimals)
    sign = "-" if amount < 0 and units else ""
    return f"{sign}${whole:,}.{part:0{decimals}}"
