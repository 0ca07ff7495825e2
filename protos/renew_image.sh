#!/bin/sh
# Renews protos/contracts.binpb, the contracts as third parties know them, from the protos. Refuses if the protos break
# that image: then the change needs a new package version, or a new field.
set -eu
cd "$(dirname "$0")/.."
buf=${BIN:-.venv/bin}/buf
image=protos/contracts.binpb
if ! "$buf" breaking --against "$image"; then
    echo "error: the protos break $image, which is what third parties were built against; it stays as it is" >&2
    exit 1
fi
"$buf" build --as-file-descriptor-set -o "$image"
