import io

from django.core.mail import EmailMessage
from django.core.mail.backends.console import EmailBackend

from portal.up.terminal import FATAL, NOTABLE, Notice, Terminal

LINK = "http://127.0.0.1:8000/accounts/confirm-email/" + "MQ:1wXyZ-abcdef" * 8 + "/"


def console_mail(body: str) -> list[str]:
    """What Django's console backend writes for a mail."""
    out = io.StringIO()
    mail = EmailMessage("Confirm your address", body, "headrace@localhost", ["ada@example.com"])
    EmailBackend(stream=out).send_messages([mail])
    return out.getvalue().splitlines()


class TestNotice:
    def hear(self, *lines: str, notice: Notice | None = None) -> list[str]:
        notice = notice or Notice(NOTABLE)
        return [shown for line in lines for shown in notice.hear(line)]

    def test_shows_warnings_and_no_daily_words(self) -> None:
        shown = self.hear("GET / 200", "WARNING hint lost", "INFO placed", "ERROR no such column")

        assert shown == ["WARNING hint lost", "ERROR no such column"]

    def test_shows_a_traceback_to_the_name_of_its_exception(self) -> None:
        traceback = [
            "Traceback (most recent call last):",
            '  File "x.py", line 1, in <module>',
            "ZeroDivisionError: division by zero",
        ]

        assert self.hear("before", *traceback, "after") == traceback

    def test_shows_a_mail_with_its_link_in_one_piece(self) -> None:
        raw = console_mail(f"Grüße,\n\nopen {LINK} now")
        assert not any(LINK in line for line in raw)  # the encoding breaks it over lines

        shown = self.hear("before", *raw, "after")

        assert shown[0] == "Mail to ada@example.com: Confirm your address"
        assert f"  open {LINK} now" in shown
        assert "after" not in shown

    def test_gives_up_on_a_mail_that_never_ends(self) -> None:
        assert self.hear("Content-Type: text/plain", *["x"] * 1000) != []

    def test_keeps_to_itself_what_is_normal_for_a_store(self) -> None:
        shown = self.hear(
            'ERROR:  duplicate key value violates unique constraint "one_holder"',
            "FATAL:  the database system is starting up",
            "PANIC:  could not write to file",
            notice=Notice(FATAL),
        )

        assert shown == ["PANIC:  could not write to file"]


class TestTerminal:
    def test_prints_the_summary_as_a_table_without_colour_in_a_pipe(self) -> None:
        out, seconds = io.StringIO(), iter([0.0, 7.25])

        Terminal(out, clock=lambda: next(seconds)).summary([("Address", "http://x"), ("", "more")])

        assert out.getvalue().splitlines() == [
            "",
            "  Headrace is up, 7.2 s after the start.",
            "",
            "  Address    http://x",
            "             more",
            "",
        ]
