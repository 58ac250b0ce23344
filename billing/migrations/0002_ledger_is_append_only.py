"""What must never happen to money is refused by the database, also to raw SQL."""

from django.db import migrations

REFUSE = """
CREATE FUNCTION billing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: it is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER entry_never_changes BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER entry_is_never_truncated BEFORE TRUNCATE ON billing_ledgerentry
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER statement_never_changes BEFORE UPDATE OR DELETE ON billing_statement
    FOR EACH ROW EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER line_never_changes BEFORE UPDATE OR DELETE ON billing_statementline
    FOR EACH ROW EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER line_is_never_truncated BEFORE TRUNCATE ON billing_statementline
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER price_book_never_changes BEFORE UPDATE OR DELETE ON billing_pricebook
    FOR EACH ROW EXECUTE FUNCTION billing_refuse();
CREATE TRIGGER price_never_changes BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW EXECUTE FUNCTION billing_refuse();
"""

# The lower account id is locked first, so two entries between the same accounts cannot deadlock.
# The month is looked at last: by then the account's row is locked, as it is while a statement
# is issued.
MOVE_BALANCES = """
CREATE FUNCTION billing_move_balances() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    moved bigint;
BEGIN
    IF (SELECT count(DISTINCT currency) FROM billing_account
        WHERE id IN (NEW.debit_id, NEW.credit_id)) <> 1 THEN
        RAISE EXCEPTION 'an entry moves money of one currency'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    FOR moved IN
        SELECT id FROM billing_account
        WHERE id IN (NEW.debit_id, NEW.credit_id) AND floor_micros IS NOT NULL ORDER BY id
    LOOP
        UPDATE billing_account SET balance_micros = balance_micros
            + CASE WHEN id = NEW.credit_id THEN NEW.amount_micros ELSE -NEW.amount_micros END
        WHERE id = moved;
    END LOOP;
    IF EXISTS (
        SELECT FROM billing_statement
        WHERE account_id IN (NEW.debit_id, NEW.credit_id)
          AND month >= date_trunc('month', NEW.period_start AT TIME ZONE 'UTC')::date
    ) THEN
        RAISE EXCEPTION 'the statement of that month is issued'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entry_moves_balances AFTER INSERT ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_move_balances();
"""

GUARD_BALANCES = """
CREATE FUNCTION billing_guard_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.balance_micros <> 0 THEN
            RAISE EXCEPTION 'an account opens empty'
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    ELSIF NEW.balance_micros <> OLD.balance_micros AND pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'only an entry moves a balance'
            USING ERRCODE = 'integrity_constraint_violation';
    ELSIF NEW.currency <> OLD.currency
        OR (NEW.floor_micros IS NULL) <> (OLD.floor_micros IS NULL) THEN
        RAISE EXCEPTION 'an account keeps its currency, and its balance stored or not'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER balance_moves_by_entries BEFORE INSERT OR UPDATE ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_guard_balance();
"""

GUARD_INTERVALS = """
CREATE FUNCTION billing_guard_interval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL OR
        (OLD.account_id, OLD.reference, OLD.price_id, OLD.sku, OLD.micros_per_hour, OLD.started_at)
        IS DISTINCT FROM
        (NEW.account_id, NEW.reference, NEW.price_id, NEW.sku, NEW.micros_per_hour, NEW.started_at)
    THEN
        RAISE EXCEPTION 'what was used is not rewritten'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER interval_is_not_rewritten BEFORE UPDATE OR DELETE ON billing_usageinterval
    FOR EACH ROW EXECUTE FUNCTION billing_guard_interval();
"""

# A line needs a position below the count, and at commit every position is taken: none can be
# added later.
FREEZE_STATEMENTS = """
CREATE FUNCTION billing_guard_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.position >= (SELECT line_count FROM billing_statement WHERE id = NEW.statement_id) THEN
        RAISE EXCEPTION 'an issued statement gets no further line'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER line_has_its_place BEFORE INSERT ON billing_statementline
    FOR EACH ROW EXECUTE FUNCTION billing_guard_line();

CREATE FUNCTION billing_check_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) <> NEW.line_count
            OR NEW.opening_micros + coalesce(sum(amount_micros), 0) <> NEW.closing_micros
        FROM billing_statementline WHERE statement_id = NEW.id) THEN
        RAISE EXCEPTION 'the lines do not add up to the statement'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER statement_adds_up AFTER INSERT ON billing_statement
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_statement();
"""

FUNCTIONS = (
    "billing_refuse",
    "billing_move_balances",
    "billing_guard_balance",
    "billing_guard_interval",
    "billing_guard_line",
    "billing_check_statement",
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.RunSQL(
            [REFUSE, MOVE_BALANCES, GUARD_BALANCES, GUARD_INTERVALS, FREEZE_STATEMENTS],
            [f"DROP FUNCTION {name} CASCADE" for name in reversed(FUNCTIONS)],
        )
    ]
