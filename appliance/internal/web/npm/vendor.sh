#!/usr/bin/env bash
# Copies the page's pinned JavaScript out of the npm packages that package-lock.json names into ../assets/vendor, and records beside it
# which package content it came from. npm checks each package against the lock's integrity digest; a Go test checks the copy.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp package.json package-lock.json .npmrc "$work/"
(cd "$work" && npm ci --silent)
out=../assets/vendor
mkdir -p "$out"
from=$work/node_modules/htmx.org
cp "$from/dist/htmx.min.js" "$out/htmx.js"
cp "$from/dist/ext/hx-sse.min.js" "$out/hx-sse.js"
cp "$from/LICENSE" "$out/htmx.LICENSE"
# The maps are not served: a reference to one would only make browsers ask for it.
sed -i '/^\/\/# sourceMappingURL=/d' "$out"/*.js
{
  node -p 'const p = require("./package-lock.json").packages["node_modules/htmx.org"]; "htmx.org " + p.version + " " + p.integrity'
  (cd "$out" && sha256sum htmx.js hx-sse.js htmx.LICENSE)
} >"$out/SUMS"
