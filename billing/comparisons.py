"""The figures that the audit compares inside the database, as queries.

Each gives rows (subject, expected, found). Together with `_DIFFERING`, a query returns the rows
that differ, and last one that tells how many there were.
"""

from collections.abc import Mapping

_DIFFERING = """
WITH compared (subject, expected, found) AS MATERIALIZED ({})
(SELECT subject::text, expected::text, found::text FROM compared
 WHERE expected IS DISTINCT FROM found ORDER BY subject LIMIT %(limit)s)
UNION ALL
(SELECT NULL, count(*)::text, NULL FROM compared)
"""

# What each account gained by each entry.
_MOVES = """
SELECT credit_id AS account_id, amount_micros AS micros, period_start FROM billing_ledgerentry
UNION ALL
SELECT debit_id, -amount_micros, period_start FROM billing_ledgerentry
"""

_STORED_BALANCE = f"""
SELECT account.code,
       CASE WHEN floor_micros IS NULL THEN 0 ELSE coalesce(sum(micros), 0) END,
       balance_micros
FROM billing_account account LEFT JOIN ({_MOVES}) moves ON moves.account_id = account.id
GROUP BY account.id
"""  # noqa: S608 - composed of the constants above

# The same floor as `rating.charge.charged_micros`, computed by other means.
_CHARGE_OF_INTERVAL = """
SELECT id,
       div(extract(epoch FROM charged_until - started_at)::numeric * micros_per_hour, 3600),
       charged_micros
FROM billing_usageinterval
"""

_ENTRIES_OF_INTERVAL = """
SELECT interval.id, interval.charged_micros, coalesce(sum(
           CASE entry.debit_id WHEN interval.account_id THEN amount_micros ELSE -amount_micros END
       ), 0)
FROM billing_usageinterval interval
LEFT JOIN billing_ledgerentry entry ON entry.interval_id = interval.id
GROUP BY interval.id
"""

_ACCOUNT_OF_ENTRY = """
SELECT entry.id, true, interval.account_id IN (debit_id, credit_id)
FROM billing_ledgerentry entry JOIN billing_usageinterval interval ON interval.id = interval_id
"""

# Nought micros make no entry, so there may be time between two entries, but none in both.
_TIME_OF_ENTRY = """
SELECT id, true,
       period_start >= lag(period_end, 1, period_start)
           OVER (PARTITION BY interval_id ORDER BY period_start, period_end)
       AND period_end > period_start
       AND date_trunc('month', period_start AT TIME ZONE 'UTC')
         = date_trunc('month', (period_end AT TIME ZONE 'UTC') - interval '1 second')
FROM billing_ledgerentry WHERE kind = 'usage'
"""

_END_OF_INTERVAL = """
SELECT id, ended_at, charged_until FROM billing_usageinterval WHERE ended_at IS NOT NULL
"""

_ORDER_OF_INTERVALS = """
SELECT id, true, started_at >= lag(coalesce(ended_at, 'infinity'), 1, started_at)
                                   OVER (PARTITION BY reference ORDER BY started_at, ended_at)
FROM billing_usageinterval
"""

_PRICE_OF_INTERVAL = """
SELECT interval.id, price.sku || ' ' || price.micros_per_hour,
       interval.sku || ' ' || interval.micros_per_hour
FROM billing_usageinterval interval JOIN billing_price price ON price.id = price_id
"""

_AGE_OF_CHARGE = """
SELECT interval.id, true,
       extract(epoch FROM least(%(now)s, confirmed_at, exhaust_at) - charged_until)
           <= %(overdue_seconds)s
FROM billing_usageinterval interval JOIN billing_account account ON account.id = account_id
WHERE ended_at IS NULL
"""

_SUM_OF_STATEMENT = """
SELECT statement.id, closing_micros, opening_micros + coalesce(sum(amount_micros), 0)
FROM billing_statement statement
LEFT JOIN billing_statementline line ON line.statement_id = statement.id
GROUP BY statement.id
"""


def _balance_of_statement(column: str, border: str) -> str:
    return f"""
SELECT statement.id, coalesce((
           SELECT sum(micros) FROM ({_MOVES}) moves
           WHERE moves.account_id = statement.account_id
             AND period_start < ({border})::timestamp AT TIME ZONE 'UTC'
       ), 0), {column}
FROM billing_statement statement
"""  # noqa: S608 - composed of constants


COMPARISONS: Mapping[str, str] = {
    check: _DIFFERING.format(query)
    for check, query in {
        "stored balance": _STORED_BALANCE,
        "charge of interval": _CHARGE_OF_INTERVAL,
        "entries of interval": _ENTRIES_OF_INTERVAL,
        "account of entry": _ACCOUNT_OF_ENTRY,
        "time of entry": _TIME_OF_ENTRY,
        "end of interval": _END_OF_INTERVAL,
        "order of intervals": _ORDER_OF_INTERVALS,
        "price of interval": _PRICE_OF_INTERVAL,
        "age of charge": _AGE_OF_CHARGE,
        "sum of statement": _SUM_OF_STATEMENT,
        "opening of statement": _balance_of_statement("opening_micros", "month"),
        "closing of statement": _balance_of_statement(
            "closing_micros", "month + interval '1 month'"
        ),
    }.items()
}
