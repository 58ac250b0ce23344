"""Sign-up, verification and log-in without a page: allauth's own forms and flows underneath.

allauth answers browsers, with redirections; here its answers become refusals or nothing.
"""

from http import HTTPStatus

from allauth.account.forms import LoginForm, SignupForm
from allauth.account.internal import flows
from allauth.account.models import get_emailconfirmation_model
from django.forms import Form
from django.http import HttpRequest
from rest_framework.exceptions import ValidationError

from portal.api.errors import Refused

TOO_MANY_ATTEMPTS = "too_many_login_attempts"
WAIT_SECONDS = 300  # as long as allauth counts failures of one address


def sign_up(request: HttpRequest, *, email: str, password: str) -> None:
    """Make the user and send the mail; for an address that is taken, another mail is sent.

    The caller cannot tell which: an address's owner alone learns that it is known. Raises
    ValidationError for a weak password.
    """
    form = SignupForm({"email": email, "password1": password, "password2": password})
    if not form.is_valid():
        raise ValidationError(_errors(form))
    user, _ = form.try_save(request)
    if user is not None:
        flows.signup.complete_signup(request, user=user)


def verify(request: HttpRequest, *, key: str) -> None:
    """Confirm the address that `key` was mailed to. Raises Refused for a bad or old key."""
    confirmation = get_emailconfirmation_model().from_key(key)
    if confirmation is None or confirmation.confirm(request) is None:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "verification_key_refused",
            "This link is not valid, or was used already.",
            next_step="Log in: a new mail is sent where one is needed.",
        )


def log_in(request: HttpRequest, *, email: str, password: str) -> None:
    """Open a session for `request`, or raise Refused.

    A wrong password and an unknown address are answered alike; that an address is not verified
    or its user suspended is told only to who knows the password.
    """
    form = LoginForm({"login": email, "password": password}, request=request)
    if not form.is_valid():
        if any(error.code == TOO_MANY_ATTEMPTS for error in form.non_field_errors().as_data()):
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_attempts",
                "There were too many failed log-ins.",
                retry_after=WAIT_SECONDS,
            )
        raise Refused(
            HTTPStatus.UNAUTHORIZED, "wrong_credentials", "Address or password are wrong."
        )
    if not form.user.is_active:
        raise Refused(HTTPStatus.UNAUTHORIZED, "user_suspended", "This user is suspended.")
    form.login(request)
    if not request.user.is_authenticated:
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "email_not_verified",
            "This address has not been verified yet.",
            next_step="Open the link in the mail that was sent to it.",
        )


def _errors(form: Form) -> dict[str, list[str]]:
    """allauth's `password1` is our `password`."""
    return {
        name.removesuffix("1"): [str(sentence) for sentence in sentences]
        for name, sentences in form.errors.items()
    }
