"""Forms for keys and tokens."""

from django import forms

from portal.accounts.roles import Scope

SCOPE_WORDS = {
    Scope.READ: "Read everything of the team",
    Scope.INSTANCES: "Launch, stop, start and terminate instances",
    Scope.BILLING: "Read balance, usage and statements",
}


class SshKeyForm(forms.Form):
    name = forms.CharField(max_length=60, widget=forms.TextInput({"placeholder": "laptop"}))
    public_key = forms.CharField(
        max_length=8_192,
        widget=forms.Textarea({"rows": 3, "spellcheck": "false"}),
        help_text="The content of a .pub file, e.g. ~/.ssh/id_ed25519.pub.",
    )


class TokenForm(forms.Form):
    name = forms.CharField(max_length=60, widget=forms.TextInput({"placeholder": "ci"}))
    scopes = forms.MultipleChoiceField(
        choices=list(SCOPE_WORDS.items()),
        initial=[Scope.READ],
        widget=forms.CheckboxSelectMultiple,
    )
    days = forms.TypedChoiceField(
        label="Valid for",
        choices=[(30, "30 days"), (90, "90 days"), (365, "a year")],
        coerce=int,
        initial=90,
    )
