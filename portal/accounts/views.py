"""One's own keys and tokens, and who is in the team."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.accounts import operations
from portal.accounts.forms import SshKeyForm, TokenForm
from portal.accounts.models import ApiToken, SshKey
from portal.accounts.roles import GRANTS, Permission, Role, Scope
from portal.errors import DomainError
from portal.http import MemberRequest, for_members


@for_members
@require_safe
def settings(request: MemberRequest) -> HttpResponse:
    return _page(request)


@for_members
@require_POST
def add_ssh_key(request: MemberRequest) -> HttpResponse:
    form = SshKeyForm(request.POST)
    if not form.is_valid():
        return _page(request, ssh_key_form=form, status=422)
    try:
        key = operations.add_ssh_key(user=request.user, now=timezone.now(), **form.cleaned_data)
    except DomainError as refusal:
        form.add_error(None, f"{refusal} {refusal.next_step}".strip())
        return _page(request, ssh_key_form=form, status=422)
    messages.success(request, f"“{key.name}” is added; instances you launch from now on let it in.")
    return redirect("accounts:settings")


@for_members
@require_POST
def remove_ssh_key(request: MemberRequest, key_id: int) -> HttpResponse:
    key = get_object_or_404(SshKey, user=request.user, pk=key_id)
    operations.remove_ssh_key(user=request.user, key=key)
    messages.success(
        request, f"“{key.name}” is removed. Instances launched with it still let it in."
    )
    return redirect("accounts:settings")


@for_members
@require_POST
@never_cache
def issue_token(request: MemberRequest) -> HttpResponse:
    """The page again, with the secret on it: this answer is the only place where it ever stands."""
    now = timezone.now()
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, token_form=form, status=422)
    try:
        _, secret = operations.issue_token(
            actor=request.member,
            name=form.cleaned_data["name"],
            scopes=[Scope(scope) for scope in form.cleaned_data["scopes"]],
            expires_at=now + timedelta(days=form.cleaned_data["days"]),
            now=now,
        )
    except DomainError as refusal:
        form.add_error(None, f"{refusal} {refusal.next_step}".strip())
        return _page(request, token_form=form, status=422)
    return _page(request, new_token=secret, status=201)


@for_members
@require_POST
def revoke_token(request: MemberRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(ApiToken, member=request.member, pk=token_id)
    operations.revoke_token(actor=request.member, token=token, now=timezone.now())
    messages.success(request, f"“{token.name}” opens nothing any more.")
    return redirect("accounts:settings")


def _page(
    request: MemberRequest,
    *,
    ssh_key_form: SshKeyForm | None = None,
    token_form: TokenForm | None = None,
    new_token: str = "",
    status: int = 200,
) -> HttpResponse:
    member = request.member
    context = {
        "member": member,
        "members": member.team.members.select_related("user").order_by("pk"),
        "ssh_keys": request.user.ssh_keys.order_by("name", "pk"),
        "ssh_key_form": ssh_key_form or SshKeyForm(auto_id="ssh_key_%s"),
        "tokens": member.tokens.filter(revoked_at=None).order_by("-created_at", "pk"),
        "token_form": token_form or TokenForm(auto_id="token_%s"),
        "may_manage_tokens": Permission.MANAGE_TOKENS in GRANTS[Role(member.role)],
        "new_token": new_token,
    }
    return render(request, "accounts/settings.html", context, status=status)
