"""What browsers load is what was pinned, and pages keep to the content security policy."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
VENDOR = ROOT / "static" / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
# The console has a policy of its own, since Unfold cannot do without inline styles.
STRICT = [template for template in TEMPLATES if "admin" not in template.parts]


def sha384(path: Path) -> str:
    digest = hashlib.sha384(path.read_bytes()).digest()
    return "sha384-" + base64.b64encode(digest).decode()


class TestVendoredFiles:
    @pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"])
    def test_are_byte_for_byte_what_the_manifest_says(self, entry: dict[str, str]) -> None:
        assert sha384(VENDOR / entry["file"]) == entry["integrity"]

    @pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"])
    def test_carry_their_version_in_their_name_and_have_a_licence(
        self, entry: dict[str, str]
    ) -> None:
        assert entry["version"] in entry["file"]
        assert entry["license"]

    def test_are_all_in_the_manifest(self) -> None:
        present = {path.name for path in VENDOR.iterdir()} - {"manifest.json"}

        assert present == {entry["file"] for entry in MANIFEST}

    def test_are_of_the_versions_that_the_package_file_pins(self) -> None:
        pins = json.loads((ROOT / "frontend" / "package.json").read_text())["devDependencies"]

        assert all(pins[entry["package"]] == entry["version"] for entry in MANIFEST)


class TestFrontendLock:
    def test_pins_every_package_exactly_and_names_no_host(self) -> None:
        lock = json.loads((ROOT / "frontend" / "package-lock.json").read_text())
        # The first is ourselves; a bundled package comes inside another that has its hash.
        packages = [
            facts for name, facts in lock["packages"].items() if name and "inBundle" not in facts
        ]

        assert packages
        assert all("integrity" in facts for facts in packages)
        assert not any("resolved" in facts for facts in lock["packages"].values())


class TestStylesheet:
    def test_loads_only_files_that_are_there_and_none_from_elsewhere(self) -> None:
        stylesheet = (ROOT / "static" / "portal.css").read_text()
        # A data: address may hold anything; every other one is a file beside the stylesheet.
        addresses = [a.strip("\"'") for a in re.findall(r"url\(([^)]*)\)", stylesheet)]
        files = [address for address in addresses if not address.startswith("data:")]

        assert "vendor/" in files[0]
        assert all((ROOT / "static" / file).is_file() for file in files)


def name_of(template: Path) -> str:
    return str(template.relative_to(ROOT))


class TestTemplates:
    @pytest.mark.parametrize("template", TEMPLATES, ids=name_of)
    def test_name_only_static_files_that_exist(self, template: Path) -> None:
        named = re.findall(r"{% static '([^']+)' %}", template.read_text())

        assert [name for name in named if not (ROOT / "static" / name).is_file()] == []

    @pytest.mark.parametrize("template", STRICT, ids=name_of)
    def test_keep_script_and_style_out_of_the_page(self, template: Path) -> None:
        inline = r"<style|<script(?![^>]*\bsrc=)|\s(?:style|on[a-z]+|hx-on\S*)="

        assert re.findall(inline, template.read_text()) == []
