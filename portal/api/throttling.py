"""How often one may ask: fixed windows, counted in the cache in one atomic step."""

from typing import cast

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from portal.cache import LossyRedisCache


class Throttle(SimpleRateThrottle):
    """Counts per user, or per address while nobody is signed in.

    A view's `throttle_scopes` names the rate of an action or method; every other request counts
    against "any". DRF's own throttles read, add and write back, so requests at once count once.
    """

    scope = "any"
    rate = "1/s"  # replaced per request, below

    def allow_request(self, request: Request, view: object) -> bool:
        self.scope = self._scope_of(request, view)
        limit, seconds = self.parse_rate(settings.API_RATES[self.scope])
        if limit is None or seconds is None:
            return True
        window, into_window = divmod(self.timer(), seconds)
        self.seconds_left = seconds - into_window
        counter = cast("LossyRedisCache", self.cache)
        key = f"{self.get_cache_key(request, view)}:{window:.0f}"
        return counter.count(key, timeout=seconds + 1) <= limit

    def wait(self) -> float:
        return self.seconds_left + 1

    def get_cache_key(self, request: Request, view: object) -> str:
        return f"throttle:{self.scope}:{request.user.pk or self.get_ident(request)}"

    def _scope_of(self, request: Request, view: object) -> str:
        scopes: dict[str, str] = getattr(view, "throttle_scopes", {})
        asked = getattr(view, "action", None) or (request.method or "").lower()
        return scopes.get(asked, "any")
