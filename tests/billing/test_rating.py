"""The pure core: examples E1 to E4, E6, E10 and E11 with their exact figures, and properties."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rating.charge import Burn, charged_micros, exhaust_at, needed_micros
from billing.rating.intervals import (
    cut,
    epoch,
    from_epoch,
    month_bounds,
    month_of,
    overlap,
    seconds_between,
    whole_seconds,
)
from billing.rating.money import (
    MAX_MICROS,
    MAX_MICROS_PER_HOUR,
    check_micros,
    check_rate,
    format_available,
    format_micros,
    format_needed,
    format_running,
    parse_micros,
)

H100 = 2_490_000
RTX4090 = 440_000
DAY = 86_400
BERLIN = ZoneInfo("Europe/Berlin")

rates = st.integers(0, MAX_MICROS_PER_HOUR)
moments = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, BERLIN, ZoneInfo("Asia/Kolkata"), ZoneInfo("America/Juneau")]),
)


class TestChargedMicros:
    @pytest.mark.parametrize(
        ("rate", "seconds", "micros"),
        [
            (H100, 5_025, 3_475_625),
            (8 * H100, 5_025, 27_805_000),
            (RTX4090, 30 * DAY, 316_800_000),
            (H100, 30 * DAY, 1_792_800_000),
            (H100, 1, 691),
            (H100, 0, 0),
        ],
        ids=["E1", "E1b", "E2", "E2b", "one second", "nothing"],
    )
    def test_is_the_floor_of_the_exact_cost(self, rate: int, seconds: int, micros: int) -> None:
        assert charged_micros(micros_per_hour=rate, seconds=seconds) == micros

    @given(rate=rates, ticks=st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
    def test_telescopes_over_any_ticks(self, rate: int, ticks: list[int]) -> None:
        seen = sorted(ticks)
        totals = [charged_micros(micros_per_hour=rate, seconds=tick) for tick in [0, *seen]]

        posted = [after - before for before, after in pairwise(totals)]

        assert all(amount >= 0 for amount in posted)
        assert 0 <= rate * seen[-1] - 3600 * sum(posted) < 3600

    @pytest.mark.parametrize("seconds", [1.0, True, "1", None])
    def test_refuses_what_is_no_count_of_seconds(self, seconds: Any) -> None:
        with pytest.raises(TypeError):
            charged_micros(micros_per_hour=H100, seconds=seconds)

    def test_refuses_to_go_backwards(self) -> None:
        with pytest.raises(ValueError, match="backwards"):
            charged_micros(micros_per_hour=H100, seconds=-1)


class TestNeededMicros:
    def test_rounds_up_so_that_it_covers_every_second(self) -> None:
        assert needed_micros(micros_per_hour=H100, runway=timedelta(seconds=1)) == 692
        assert needed_micros(micros_per_hour=H100, runway=timedelta(hours=1)) == H100

    @given(rate=rates, runway=st.timedeltas(timedelta(0), timedelta(days=1000)))
    def test_is_never_less_than_the_charge(self, rate: int, runway: timedelta) -> None:
        seconds = runway // timedelta(seconds=1)

        needed = needed_micros(micros_per_hour=rate, runway=runway)

        assert needed >= charged_micros(micros_per_hour=rate, seconds=seconds)


def burn(rate: int, *, started: int = 0, charged_until: int | None = None) -> Burn:
    until = started if charged_until is None else charged_until
    return Burn(
        micros_per_hour=rate,
        start_epoch=started,
        charged_epoch=until,
        charged_micros=charged_micros(micros_per_hour=rate, seconds=until - started),
    )


def extra_at(burns: list[Burn], moment: datetime) -> int:
    """What charging all of `burns` up to `moment` would post."""
    return sum(one.accrued_micros(epoch(moment)) for one in burns)


class TestExhaustAt:
    def test_is_the_last_second_that_the_money_pays_for(self) -> None:
        end = exhaust_at(available_micros=10_000_000, burns=[burn(H100)])

        assert end == from_epoch(14_457)
        assert extra_at([burn(H100)], from_epoch(14_457)) == 9_999_425
        assert extra_at([burn(H100)], from_epoch(14_458)) == 10_000_116

    def test_takes_all_that_runs_from_when_it_started(self) -> None:
        burns = [burn(H100), burn(RTX4090, started=600)]

        end = exhaust_at(available_micros=10_000_000, burns=burns)

        assert end == from_epoch(12_376)
        assert extra_at(burns, from_epoch(12_376)) == 9_999_354

    def test_is_never_where_nothing_costs(self) -> None:
        assert exhaust_at(available_micros=0, burns=[]) is None
        assert exhaust_at(available_micros=0, burns=[burn(0)]) is None

    def test_is_never_beyond_the_calendar(self) -> None:
        assert exhaust_at(available_micros=MAX_MICROS, burns=[burn(1)]) is None

    def test_is_not_put_off_by_what_starts_after_the_money_has_ended(self) -> None:
        late = burn(H100, started=20_000)

        end = exhaust_at(available_micros=10_000_000, burns=[burn(H100), late])

        assert end == from_epoch(14_457)

    def test_is_not_before_what_is_charged_already(self) -> None:
        charged = burn(H100, charged_until=1_000)

        assert exhaust_at(available_micros=-5, burns=[charged]) == from_epoch(1_000)

    def test_knows_ten_thousand_gpus_for_years(self) -> None:
        start = epoch(datetime(2026, 1, 1, tzinfo=UTC))

        end = exhaust_at(available_micros=10**15, burns=[burn(H100, started=start)] * 10_000)

        # 10^15 / 24.9 × 10^9 an hour = 40,160.64… hours.
        assert end == from_epoch(start + 144_578_313)

    @given(
        available=st.integers(0, 10**10),
        runs=st.lists(
            st.tuples(st.integers(1, 10**8), st.integers(0, 10**4), st.integers(0, 10**4)),
            min_size=1,
            max_size=6,
        ),
    )
    def test_never_spends_more_than_there_is(
        self, available: int, runs: list[tuple[int, int, int]]
    ) -> None:
        burns = [
            burn(rate, started=started, charged_until=started + ran) for rate, started, ran in runs
        ]

        end = exhaust_at(available_micros=available, burns=burns)

        assert end is None or extra_at(burns, end) <= available

    @given(
        available=st.integers(10**6, 10**10),
        rate=st.integers(1, 10**8),
        ran=st.integers(0, 10**5),
    )
    def test_stays_when_what_ran_is_charged(self, available: int, rate: int, ran: int) -> None:
        before = exhaust_at(available_micros=available, burns=[burn(rate)])
        if before is None or epoch(before) < ran:
            return
        charged = burn(rate, charged_until=ran)

        after = exhaust_at(available_micros=available - charged.charged_micros, burns=[charged])

        assert after == before


class TestSecondsBetween:
    @pytest.mark.parametrize(
        ("start", "end", "seconds"),
        [
            (datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 3, 30, tzinfo=BERLIN), 82_800),
            (datetime(2026, 10, 25, tzinfo=BERLIN), datetime(2026, 10, 26, tzinfo=BERLIN), 90_000),
            (
                datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
                datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
                3_600,
            ),
            (
                datetime(2016, 12, 31, 23, 59, tzinfo=UTC),
                datetime(2017, 1, 1, 0, 1, tzinfo=UTC),
                120,
            ),
        ],
        ids=["E10 spring", "E10 autumn", "E10b fold", "E10c leap second"],
    )
    def test_counts_what_a_clock_on_the_wall_would_not(
        self, start: datetime, end: datetime, seconds: int
    ) -> None:
        assert seconds_between(start, end) == seconds

    def test_prices_the_days_of_a_time_change(self) -> None:
        assert charged_micros(micros_per_hour=H100, seconds=82_800) == 57_270_000
        assert charged_micros(micros_per_hour=H100, seconds=90_000) == 62_250_000

    def test_refuses_a_moment_without_a_zone(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            epoch(datetime(2026, 1, 1))  # noqa: DTZ001 - that is what it is about

    @given(moment=moments)
    def test_truncates_to_whole_seconds_of_utc(self, moment: datetime) -> None:
        whole = whole_seconds(moment)

        assert whole.microsecond == 0
        assert whole.utcoffset() == timedelta(0)
        assert timedelta(0) <= moment.astimezone(UTC) - whole < timedelta(seconds=1)
        assert from_epoch(epoch(moment)) == whole


class TestCut:
    def test_ends_each_piece_at_a_month_border(self) -> None:
        start = datetime(2026, 10, 31, 23, 59, 30, tzinfo=UTC)

        pieces = cut(start, start + timedelta(seconds=60))

        # E11b
        assert [seconds_between(*piece) for piece in pieces] == [30, 30]
        assert [
            charged_micros(micros_per_hour=H100, seconds=seconds_between(*piece))
            for piece in pieces
        ] == [20_750, 20_750]

    def test_of_no_time_is_empty(self) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)

        assert cut(now, now) == []
        assert cut(now, now - timedelta(seconds=1)) == []

    @given(
        start=moments,
        length=st.timedeltas(timedelta(seconds=1), timedelta(days=900)),
        at=st.lists(moments, max_size=5),
    )
    def test_covers_all_of_it_once(
        self, start: datetime, length: timedelta, at: list[datetime]
    ) -> None:
        start = whole_seconds(start)
        end = start + length

        pieces = cut(start, end, at=at)

        assert (pieces[0][0], pieces[-1][1]) == (start, end)
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
        assert all(month_of(a) == month_of(b - timedelta.resolution) for a, b in pieces)
        assert all(moment in [a for a, _ in pieces] for moment in at if start < moment < end)


class TestMonths:
    def test_have_their_first_second_and_the_next_ones(self) -> None:
        bounds = month_bounds(date(2026, 12, 1))

        assert bounds == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))

    def test_are_named_by_their_first_day(self) -> None:
        with pytest.raises(ValueError, match="first day"):
            month_bounds(date(2026, 12, 2))

    def test_are_of_utc_whatever_the_zone(self) -> None:
        kolkata = datetime(2026, 11, 1, 5, 0, tzinfo=ZoneInfo("Asia/Kolkata"))

        assert month_of(kolkata) == date(2026, 10, 1)

    def test_overlap_with_a_run_by_the_second(self) -> None:
        bounds = month_bounds(date(2026, 10, 1))
        run = bounds[1] - timedelta(seconds=7), bounds[1] + timedelta(hours=1)

        assert overlap(bounds, run) == 7
        assert overlap(bounds, (bounds[1], run[1])) == 0


class TestParseMicros:
    @pytest.mark.parametrize(
        ("text", "micros"),
        [("2.49", H100), ("$0.000001", 1), ("-1", -1_000_000), ("0012.5", 12_500_000)],
    )
    def test_reads_decimals_exactly(self, text: str, micros: int) -> None:
        assert parse_micros(text) == micros

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "NaN",
            "inf",
            "1e3",
            ".5",
            "1.",
            "1,000",
            "0.0000001",
            "１",
            "1_0",
            " 1",
            "1\n",
            "--1",
        ],
    )
    def test_refuses_anything_else(self, text: str) -> None:
        with pytest.raises(ValueError, match="not an amount"):
            parse_micros(text)

    def test_refuses_more_than_there_is(self) -> None:
        with pytest.raises(ValueError, match="out of bounds"):
            parse_micros("9999999999")

    @pytest.mark.parametrize("value", [0.1, 1, None])
    def test_reads_text_only(self, value: Any) -> None:
        with pytest.raises(TypeError):
            parse_micros(value)

    @given(micros=st.integers(-MAX_MICROS, MAX_MICROS))
    def test_reads_back_what_is_written_in_full(self, micros: int) -> None:
        assert parse_micros(format_micros(micros, decimals=6).replace(",", "")) == micros


class TestCheckMicros:
    @pytest.mark.parametrize("value", [0.1, float("nan"), True, "1", None])
    def test_refuses_what_is_no_integer(self, value: object) -> None:
        with pytest.raises(TypeError):
            check_micros(value)

    def test_bounds_amounts_and_rates(self) -> None:
        with pytest.raises(ValueError, match="out of bounds"):
            check_micros(-MAX_MICROS - 1)
        with pytest.raises(ValueError, match="out of bounds"):
            check_rate(MAX_MICROS_PER_HOUR + 1)
        with pytest.raises(ValueError, match="negative"):
            check_rate(-1)


class TestFormatMicros:
    @pytest.mark.parametrize(
        ("micros", "text"),
        [
            (0, "$0.00"),
            (-1, "$0.00"),
            (4_999, "$0.00"),
            (5_000, "$0.01"),
            (19_999, "$0.02"),
            (-5_000, "-$0.01"),
            (1_792_800_000, "$1,792.80"),
        ],
    )
    def test_rounds_half_up_to_cents_and_knows_no_negative_nought(
        self, micros: int, text: str
    ) -> None:
        assert format_micros(micros) == text

    def test_shows_a_running_cost_with_more_digits(self) -> None:
        assert format_running(691) == "$0.000691"
        assert format_running(3_475_625) == "$3.4756"

    @given(available=st.integers(-MAX_MICROS, MAX_MICROS // 2), lacking=st.integers(1, 10**9))
    def test_never_shows_as_much_available_as_needed_where_it_is_not(
        self, available: int, lacking: int
    ) -> None:
        shown_available = parse_micros(format_available(available).replace(",", ""))
        needed = max(available, 0) + lacking

        assert parse_micros(format_needed(needed).replace(",", "")) > shown_available
