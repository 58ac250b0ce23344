"""What the database holds by itself: the ledger only grows, and balances follow it."""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: its rows are never changed, only added to',
        TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER ledger_entry_is_never_changed BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER ledger_is_never_emptied BEFORE TRUNCATE ON billing_ledgerentry
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER price_is_never_changed BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER statement_is_never_changed BEFORE UPDATE OR DELETE ON billing_statement
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER statement_line_is_never_changed BEFORE UPDATE OR DELETE ON billing_statementline
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();

-- The lower account id first, so that two entries between the same accounts cannot deadlock.
CREATE FUNCTION billing_move_balances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_account
        SET balance_micros = balance_micros
            + CASE WHEN id = NEW.credit_id THEN NEW.amount_micros ELSE -NEW.amount_micros END
        WHERE id = LEAST(NEW.debit_id, NEW.credit_id) AND floor_micros IS NOT NULL;
    UPDATE billing_account
        SET balance_micros = balance_micros
            + CASE WHEN id = NEW.credit_id THEN NEW.amount_micros ELSE -NEW.amount_micros END
        WHERE id = GREATEST(NEW.debit_id, NEW.credit_id) AND floor_micros IS NOT NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER ledger_entry_moves_balances AFTER INSERT ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_move_balances();

-- A balance moves with an entry and in no other way.
CREATE FUNCTION billing_guard_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.balance_micros <> 0 THEN
            RAISE EXCEPTION 'an account starts empty' USING ERRCODE = 'restrict_violation';
        END IF;
    ELSIF NEW.balance_micros <> OLD.balance_micros AND pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'a balance is moved by ledger entries alone'
            USING ERRCODE = 'restrict_violation';
    ELSIF (NEW.floor_micros IS NULL) <> (OLD.floor_micros IS NULL) THEN
        RAISE EXCEPTION 'an account keeps a stored balance from its start or never'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER account_balance_is_guarded BEFORE INSERT OR UPDATE ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_guard_balance();
"""

BACKWARDS = """
DROP TRIGGER account_balance_is_guarded ON billing_account;
DROP TRIGGER ledger_entry_moves_balances ON billing_ledgerentry;
DROP TRIGGER statement_line_is_never_changed ON billing_statementline;
DROP TRIGGER statement_is_never_changed ON billing_statement;
DROP TRIGGER price_is_never_changed ON billing_price;
DROP TRIGGER ledger_is_never_emptied ON billing_ledgerentry;
DROP TRIGGER ledger_entry_is_never_changed ON billing_ledgerentry;
DROP FUNCTION billing_guard_balance();
DROP FUNCTION billing_move_balances();
DROP FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
