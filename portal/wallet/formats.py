"""The template library `formats`: how pages write money and time."""

from django import template

from billing.rating import money as micros

register = template.Library()

NOTHING = "–"


@register.filter
def money(amount: int | None) -> str:
    """To the cent: $1,792.80. A dash for what has no amount."""
    return NOTHING if amount is None else micros.format_micros(amount)


@register.filter
def available_money(amount: int) -> str:
    """What can be spent: rounded down to the cent, so that a page never promises too much."""
    return micros.format_available(amount)


@register.filter
def running_money(amount: int) -> str:
    """What ticks by the second: $0.000691, $3.4756; and $0.00 before it began."""
    return micros.format_running(amount) if amount else micros.format_micros(0)


@register.filter
def exact_money(amount: int) -> str:
    """To the micro, as a statement needs it to add up: -$2.490000."""
    return micros.format_micros(amount, decimals=6)


@register.filter
def clock(seconds: int) -> str:
    """A length of time to the second, in hours: 26:03:09.

    >>> clock(93_789)
    '26:03:09'
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@register.filter
def gib(mebibytes: int) -> int:
    """Whole GiB of a number of MiB, rounded down."""
    return mebibytes // 1024
