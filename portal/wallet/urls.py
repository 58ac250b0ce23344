from datetime import date

from django.urls import path, register_converter

from portal.wallet import views


class MonthConverter:
    """A month in an address, `2026-11`, as its first day."""

    regex = r"[0-9]{4}-[0-9]{2}"

    def to_python(self, value: str) -> date:
        return date.fromisoformat(f"{value}-01")

    def to_url(self, value: date | str) -> str:
        return value if isinstance(value, str) else f"{value:%Y-%m}"


register_converter(MonthConverter, "month")

app_name = "wallet"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("<month:month>", views.statement, name="statement"),
]
