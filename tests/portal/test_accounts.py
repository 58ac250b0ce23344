import base64
from datetime import timedelta

import pytest
from django.test import Client, override_settings

from billing import funds
from portal.accounts import operations
from portal.accounts.models import ApiToken, IdempotentReply, Member, PriorityClass, SshKey, Team
from portal.accounts.roles import Role, Scope
from portal.accounts.ssh_keys import MalformedKey, parse
from portal.errors import Forbidden
from tests.factories import NOON, make_member, make_team, make_user
from tests.portal.callers import ED25519
from tests.races import at_once

ECDSA_256 = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFguIn5CZLn44fyB/OiM"
    "qKEdCJWaaQE3U1QBg4Jnnpow8lVquF4n94WmIrIG9XclSuiaO98Xy0DWUw45KevEUoo= me@laptop"
)
ECDSA_521 = (
    "ecdsa-sha2-nistp521 AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAIbmlzdHA1MjEAAACFBAAkTrs5lebALQQnWf5B"
    "V012ELBnhA05qATA9vj+ymGQDfeHyy9zOR7Nl3za0KfzsBXv1MwvCSsoDS+0wkFVaEb28AHMp9wrKq+ymXt6h6uv1ypa"
    "+cd5FBhXEDkQrIBBkQv5WVxsk2u0l62s/eChVyyG36I/OPFrXmoEAjrySegf2d1y/Q=="
)
RSA_2048 = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC4YBfcbCwhIf8TDZ4iG9CHI99X93aVtGXdlOFUUr0mHPbnT0/gto2g"
    "qMLYBQCi7Djv+Xr+0qnVmi9LsiYzfKnkS/TH5un4QhABfz/rChrhcwHVTiOGKPkG1vaorOLkhVtcLqJSNbt2G+kylZx4"
    "hUVCyPxRRygH0iLusGpdFL+uhCckwsEhCWeagJtABX9hipyLLs3PngC5XrXCtsjupazlQ6Xm81yVax5ZFqT6VMm/nKWt"
    "QC/VEHyxAKaXQk/bqyCFk6igh11FBFzpulV9wtLxELtP9Y4jfRhmO3z8dcU/YHw3nFCYvFVW8U03r4do+/U3pZfS14n3"
    "jcrayDZ8RyX7"
)
RSA_1024 = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC3w0ZOdtIPjT+wSQjS0Cp+MxAHmWyhsmMlf/nrTfxE5mfbw9sCK8x/"
    "q7EOR7sudzV7ABFrH7fzlJGy4faVtu8o96B2QBwgOBA5IreD/mSta7nMRv1eQnPWoN7dmn8MHRBNiFnkFvaJkK6tlaHm"
    "hejUmCEiyVgaySrN2fqdoYUIIQ=="
)


def with_field(key_type: str, *fields: bytes) -> str:
    """A key of these wire fields, its type repeated first as it must be."""
    blob = b"".join(len(f).to_bytes(4) + f for f in (key_type.encode(), *fields))
    return f"{key_type} {base64.b64encode(blob).decode()}"


class TestParse:
    @pytest.mark.parametrize(
        ("line", "fingerprint"),
        [
            (ED25519, "SHA256:1tBpayUXmv+gRxHXMKmGfOO6FkMGt98DkRGcRgtClOI"),
            (ECDSA_256, "SHA256:qdFITMSpDSiQadU9rtmeNF1hWavAxrvkl0554xwhcZ0"),
            (ECDSA_521, "SHA256:fcTskvRDy3ejb4UHRC3dKJhqBpgqqMNZPA8z9abvT6g"),
            (RSA_2048, "SHA256:D6QWg/1bQcNAEkFnuwEc0vSQn1rW/irniRO7Z7X85tY"),
        ],
    )
    def test_prints_the_fingerprint_that_ssh_keygen_prints(
        self, line: str, fingerprint: str
    ) -> None:
        assert parse(line).fingerprint == fingerprint

    def test_drops_the_comment_and_the_line_end(self) -> None:
        assert parse(ED25519 + "\n").line == ED25519.removesuffix(" me@laptop")

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "ssh-ed25519",
            "ssh-ed25519 !!!!",
            "ssh-dss AAAAB3NzaC1kc3M=",
            ED25519[:60],
            'command="reboot" ' + ED25519,
            ED25519 + "\n" + ED25519,
            ED25519.replace("ssh-ed25519", "ssh-rsa", 1),
            RSA_1024,
            "ssh-rsa " + "A" * 9_000,
            with_field("ssh-ed25519", b"\1" * 31),
            with_field("ssh-ed25519", b"\1" * 32, b"more"),
            with_field("ssh-rsa", b"\3"),
            with_field("ssh-rsa", b"\2", b"\xff" * 257),
            with_field("ecdsa-sha2-nistp256", b"nistp384", b"\4" * 65),
            with_field("ecdsa-sha2-nistp256", b"nistp256", b"\4" * 64),
            with_field("ecdsa-sha2-nistp256", b"nistp256", b"\2" * 65),
        ],
    )
    def test_refuses_what_is_no_key_of_ours(self, line: str) -> None:
        with pytest.raises(MalformedKey):
            parse(line)


@pytest.mark.django_db
class TestCreateTeam:
    @override_settings(TRIAL_CREDIT_MICROS=7_000_000, DEFAULT_GPU_QUOTA=3)
    def test_opens_an_account_with_the_trial_credit_on_it(self) -> None:
        owner = make_user()

        team = operations.create_team(owner=owner, name="Physics", now=NOON)

        assert funds.balance(team.account_id, now=NOON).settled_micros == 7_000_000
        assert team.account.code.startswith("team:")
        assert team.gpu_quota == 3
        assert Member.objects.get(user=owner, team=team).role == Role.OWNER

    @override_settings(TRIAL_CREDIT_MICROS=0)
    def test_grants_nothing_where_the_operator_gives_no_credit(self) -> None:
        team = operations.create_team(owner=make_user(), name="Physics", now=NOON)

        assert funds.balance(team.account_id, now=NOON).settled_micros == 0

    @pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\0b", "two\nlines"])
    def test_refuses_a_bad_name_and_writes_nothing(self, name: str) -> None:
        with pytest.raises(operations.InvalidName):
            operations.create_team(owner=make_user(), name=name, now=NOON)

        assert not Team.objects.exists()


@pytest.mark.django_db
class TestSigningUpOnThePage:
    def test_gives_a_team_of_ones_own_named_after_the_address(self) -> None:
        form = {"email": "Ada@Example.org", "password1": "gR8-engine", "password2": "gR8-engine"}

        response = Client().post("/accounts/signup/", form)

        assert response.status_code == 302
        member = Member.objects.get()
        assert (member.user.email, member.team.name) == ("ada@example.org", "ada")
        assert member.role == Role.OWNER
        assert funds.balance(member.team.account_id, now=NOON).settled_micros == 10_000_000

    def test_cut_off_before_the_team_was_made_is_mended_by_the_next_log_in(self) -> None:
        user = make_user()

        Client().force_login(user, backend="django.contrib.auth.backends.ModelBackend")

        assert Member.objects.get().user == user


@pytest.mark.django_db(transaction=True)
class TestEnsureOwnTeam:
    def test_of_many_log_ins_at_once_makes_one_team(self) -> None:
        user = make_user()

        made = at_once(lambda: operations.ensure_own_team(user=user, now=NOON))

        assert len([team for team in made if team is not None]) == 1
        assert Team.objects.count() == 1


@pytest.mark.django_db
class TestIssueToken:
    def issue(self, actor: Member, **changes: object) -> tuple[ApiToken, str]:
        wanted = {"name": "laptop", "scopes": [Scope.READ], "expires_at": None} | changes
        return operations.issue_token(actor=actor, now=NOON, **wanted)  # type: ignore[arg-type]

    def test_keeps_the_secrets_digest_and_not_the_secret(self) -> None:
        token, secret = self.issue(make_member())

        assert secret.startswith("hr_")
        assert len(secret) == 46
        assert token.digest == operations.digest(secret)
        stored = ApiToken.objects.values().get()
        assert not [value for value in stored.values() if secret in str(value)]

    def test_shows_the_first_characters_alone(self) -> None:
        token, secret = self.issue(make_member())

        assert token.prefix == secret[:8]

    def test_is_not_for_every_role(self) -> None:
        with pytest.raises(Forbidden):
            self.issue(make_member(role=Role.BILLING))

        assert not ApiToken.objects.exists()

    @pytest.mark.parametrize(
        "changes", [{"scopes": []}, {"expires_at": NOON}, {"expires_at": NOON - timedelta(days=1)}]
    )
    def test_refuses_one_that_could_do_nothing(self, changes: dict[str, object]) -> None:
        with pytest.raises(operations.InvalidToken):
            self.issue(make_member(), **changes)

        assert not ApiToken.objects.exists()

    def test_has_a_limit_that_revoking_lifts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operations, "TOKENS_PER_MEMBER", 1)
        member = make_member()
        token, _ = self.issue(member)
        with pytest.raises(operations.TooMany):
            self.issue(member)

        operations.revoke_token(actor=member, token=token, now=NOON)

        self.issue(member)


@pytest.mark.django_db
class TestNoteTokenUse:
    def test_writes_at_most_once_a_minute(self) -> None:
        token, _ = TestIssueToken().issue(make_member())
        seconds = (0, 59, 60, 61)
        seen = []

        for second in seconds:
            operations.note_token_use(token=token, now=NOON + timedelta(seconds=second))
            token.refresh_from_db()
            seen.append(token.last_used_at)

        at = [NOON, NOON, NOON + timedelta(seconds=60), NOON + timedelta(seconds=60)]
        assert seen == at


@pytest.mark.django_db
class TestRevokeToken:
    def test_keeps_the_first_moment_when_done_twice(self) -> None:
        member = make_member()
        token, _ = TestIssueToken().issue(member)

        operations.revoke_token(actor=member, token=token, now=NOON)
        operations.revoke_token(actor=member, token=token, now=NOON + timedelta(hours=1))

        token.refresh_from_db()
        assert token.revoked_at == NOON

    def test_of_a_colleague_is_an_owners_to_do(self) -> None:
        team = make_team()
        token, _ = TestIssueToken().issue(make_member(team, role=Role.DEVELOPER))

        with pytest.raises(Forbidden):
            operations.revoke_token(
                actor=make_member(team, role=Role.DEVELOPER), token=token, now=NOON
            )
        operations.revoke_token(actor=make_member(team), token=token, now=NOON)

        token.refresh_from_db()
        assert token.revoked_at == NOON

    def test_of_another_team_does_nothing(self) -> None:
        token, _ = TestIssueToken().issue(make_member())

        operations.revoke_token(actor=make_member(), token=token, now=NOON)

        token.refresh_from_db()
        assert token.revoked_at is None


@pytest.mark.django_db
class TestSshKeys:
    def test_are_kept_once_per_user(self) -> None:
        user, other = make_user(), make_user()
        operations.add_ssh_key(user=user, name="laptop", public_key=ED25519, now=NOON)

        with pytest.raises(operations.SshKeyExists):
            operations.add_ssh_key(user=user, name="again", public_key=ED25519, now=NOON)
        operations.add_ssh_key(user=other, name="laptop", public_key=ED25519, now=NOON)

        assert SshKey.objects.filter(user=user).count() == 1

    def test_that_are_none_are_refused_with_what_to_do(self) -> None:
        with pytest.raises(operations.InvalidSshKey) as refusal:
            operations.add_ssh_key(user=make_user(), name="x", public_key=RSA_1024, now=NOON)

        assert "2048" in str(refusal.value)
        assert refusal.value.next_step

    def test_are_removed_by_their_owner_alone(self) -> None:
        user = make_user()
        key = operations.add_ssh_key(user=user, name="laptop", public_key=ED25519, now=NOON)

        operations.remove_ssh_key(user=make_user(), key=key)
        assert SshKey.objects.exists()
        operations.remove_ssh_key(user=user, key=key)

        assert not SshKey.objects.exists()


@pytest.mark.django_db
class TestWhatAnOperatorSets:
    def test_quota_and_priority_of_a_team(self) -> None:
        team = make_team()

        operations.set_quota(team=team, gpu_quota=64)
        operations.set_priority(team=team, priority_class=PriorityClass.CRITICAL)

        team.refresh_from_db()
        assert (team.gpu_quota, team.priority_class) == (64, PriorityClass.CRITICAL)

    @pytest.mark.parametrize("gpu_quota", [-1, 2**31])
    def test_no_quota_out_of_bounds(self, gpu_quota: int) -> None:
        team = make_team()

        with pytest.raises(operations.InvalidQuota):
            operations.set_quota(team=team, gpu_quota=gpu_quota)

        team.refresh_from_db()
        assert team.gpu_quota == 8

    def test_a_team_suspended_twice_keeps_its_first_moment_until_it_is_lifted(self) -> None:
        team = make_team()

        operations.suspend_team(team=team, now=NOON)
        operations.suspend_team(team=team, now=NOON + timedelta(hours=1))
        team.refresh_from_db()
        assert team.suspended_at == NOON
        operations.unsuspend_team(team=team)

        team.refresh_from_db()
        assert team.suspended_at is None

    def test_a_user_out_and_in_again(self) -> None:
        user = make_user()

        operations.suspend_user(user=user)
        user.refresh_from_db()
        assert not user.is_active
        operations.reinstate_user(user=user)

        user.refresh_from_db()
        assert user.is_active


@pytest.mark.django_db
class TestForgetReplies:
    @override_settings(IDEMPOTENCY_KEY_LIFETIME=timedelta(hours=24))
    def test_drops_only_what_is_older_than_its_lifetime(self) -> None:
        user = make_user()
        for hours in (23, 24, 25):
            created_at = NOON - timedelta(hours=hours)
            IdempotentReply.objects.create(
                user=user, key=str(hours), status=201, created_at=created_at
            )

        assert operations.forget_replies(now=NOON) == 1

        assert set(IdempotentReply.objects.values_list("key", flat=True)) == {"23", "24"}
