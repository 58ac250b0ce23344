from django.urls import path

from portal.wallet.api import BalanceView, StatementsView, StatementView, UsageView

urlpatterns = [
    path("balance", BalanceView.as_view()),
    path("statements", StatementsView.as_view()),
    path("statements/<str:month>", StatementView.as_view()),
    path("usage", UsageView.as_view()),
]
