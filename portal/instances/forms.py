"""The launch form: text boxes in, a LaunchRequest out."""

import shlex
from typing import Any, cast

from django import forms

from portal.accounts.models import SshKey, User
from portal.catalog.models import Image, Plan
from portal.instances.operations.admission import LaunchRequest


class PlanField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no such class at run time
    def label_from_instance(self, obj: Plan) -> str:
        return f"{obj.gpu_count} × {obj.gpu_model.removeprefix('NVIDIA ')} ({obj.sku})"


class SshKeysField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: SshKey) -> str:
        return obj.name


class LaunchForm(forms.Form):
    """What a member asks for. `launch_key` is drawn with the page: a double click launches once."""

    launch_key = forms.UUIDField(widget=forms.HiddenInput)
    plan = PlanField(Plan.objects.none(), to_field_name="sku", empty_label=None, blank=False)
    name = forms.CharField(
        required=False,
        max_length=63,
        help_text="Lower-case letters, digits and hyphens. Left empty, it is named after its plan.",
        widget=forms.TextInput({"autocomplete": "off", "spellcheck": "false"}),
    )
    image = forms.ModelChoiceField(
        Image.objects.none(), to_field_name="slug", empty_label=None, widget=forms.RadioSelect
    )
    ssh_keys = SshKeysField(
        SshKey.objects.none(),
        label="SSH keys",
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    ports = forms.CharField(
        required=False, help_text="Numbers with commas between, beside those of the image."
    )
    env = forms.CharField(
        label="Variables",
        required=False,
        widget=forms.Textarea({"rows": 3, "spellcheck": "false"}),
        help_text="One NAME=value a line.",
    )
    command = forms.CharField(
        required=False,
        widget=forms.TextInput({"spellcheck": "false"}),
        help_text="As in a shell, e.g. python train.py. Left empty, it is the image's own.",
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plans = Plan.objects.offered().select_related("availability")
        images = Image.objects.offered().order_by("name")
        keys = user.ssh_keys.order_by("name", "pk")
        choices: dict[str, Any] = {
            "plan": plans.order_by("gpu_model", "gpu_count"),
            "image": images,
        }
        for name, rows in (choices | {"ssh_keys": keys}).items():
            cast("forms.ModelChoiceField[Any]", self.fields[name]).queryset = rows
        if not self.is_bound:
            self.initial.setdefault("image", images.values_list("slug", flat=True).first())
            self.initial.setdefault("ssh_keys", keys)

    @property
    def has_advanced(self) -> bool:
        """Whether the folded part holds anything, so that nobody misses it."""
        return self.is_bound and any(self.data.get(name) for name in ("ports", "env", "command"))

    def clean_ports(self) -> tuple[int, ...]:
        try:
            return tuple(int(port) for port in self.cleaned_data["ports"].replace(",", " ").split())
        except ValueError as error:
            raise forms.ValidationError("Ports are numbers, e.g. 8888, 6006.") from error

    def clean_env(self) -> dict[str, str]:
        lines = [line.strip() for line in self.cleaned_data["env"].splitlines() if line.strip()]
        if any("=" not in line for line in lines):
            raise forms.ValidationError("Each line is a name, an equals sign and a value.")
        return dict(line.split("=", 1) for line in lines)

    def clean_command(self) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.cleaned_data["command"]))
        except ValueError as error:
            raise forms.ValidationError("A quotation mark is not closed.") from error

    def to_request(self) -> LaunchRequest:
        """Of a valid form."""
        wanted = self.cleaned_data
        return LaunchRequest(
            plan=wanted["plan"],
            image=wanted["image"],
            name=wanted["name"],
            command=wanted["command"],
            env=wanted["env"],
            ports=wanted["ports"],
            ssh_keys=tuple(key.public_key for key in wanted["ssh_keys"]),
        )
