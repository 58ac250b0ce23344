// Copies the pinned files of node_modules that pages load into static/vendor, each with its
// version in its name, and writes the manifest that tests/portal/test_static.py checks.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const vendor = join(here, "..", "static", "vendor");

// package → its files: path inside the package → name under static/vendor, "@" for the version.
const WANTED = {
  "htmx.org": { "dist/htmx.min.js": "htmx-@.min.js" },
  "@fontsource-variable/inter": {
    "files/inter-latin-wght-normal.woff2": "inter-@-latin.woff2",
    // The Open Font License asks that it travels with the font.
    LICENSE: "inter-@-license.txt",
  },
};

mkdirSync(vendor, { recursive: true });
for (const name of readdirSync(vendor)) rmSync(join(vendor, name));

const manifest = [];
for (const [name, files] of Object.entries(WANTED)) {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json")));
  for (const [source, pattern] of Object.entries(files)) {
    const file = pattern.replace("@", version);
    copyFileSync(join(folder, source), join(vendor, file));
    const digest = createHash("sha384").update(readFileSync(join(vendor, file))).digest("base64");
    manifest.push({ file, package: name, version, license, integrity: `sha384-${digest}` });
  }
}
writeFileSync(join(vendor, "manifest.json"), JSON.stringify(manifest, null, 2) + "\n");
