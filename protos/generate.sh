#!/bin/sh
# Generates podrace/<service>/v1/*_pb2*.py[i] from the protos. With --check: fails if what is committed differs.
# BIN is the folder of python and the protoc plugins, relative to the repository or absolute.
set -eu
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}
out=.
if [ "${1:-}" = --check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
messages=$(find protos -name '*.proto' | sort)
services=$(grep -l '^service' $messages)
"$bin/python" -m grpc_tools.protoc -I protos --python_out="$out" --mypy_out=quiet:"$out" \
    --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" $messages
"$bin/python" -m grpc_tools.protoc -I protos --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
    --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" $services
if [ "$out" != . ]; then
    for file in $(cd "$out" && find . -name '*_pb2*' | sort) $(find podrace -name '*_pb2*' -not -name '*.pyc' | sort); do
        cmp "$out/$file" "$file" || { echo "error: $file is not what the protos say; run: make protos" >&2; exit 1; }
    done
fi
