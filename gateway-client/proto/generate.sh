#!/usr/bin/env bash
# Generates the Go messages beside their .proto files; the result is checked in. With --check it changes nothing: it lints the
# .proto files and says which generated file is not what they give, or has no .proto any more.
set -euo pipefail
cd "$(dirname "$0")/../.."
proto=gateway-client/proto
mapfile -t sources < <(cd $proto && find bettercompute -name '*.proto' | sort)
[ ${#sources[@]} -gt 0 ] || { echo "generate: no .proto file under $proto" >&2; exit 1; }

compile() { # <protoc flags>
  PATH=$PWD/bin/tools:$PATH protoc -I $proto -I /usr/include "$@" "${sources[@]}"
}

generate() { # <folder>
  go build -o bin/tools/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
  compile --go_out="$1" --go_opt=paths=source_relative --go-grpc_out="$1" --go-grpc_opt=paths=source_relative
}

made() { (cd "$1" && find . -name '*.pb.go' | sort); } # <folder>

check() {
  local dir f bad=0
  # The linter writes nothing; protoc wants a folder all the same.
  compile --buf-lint_out="$work" --buf-lint_opt="{\"input_config\":\"$proto/buf.yaml\"}"
  dir=$work/made
  mkdir "$dir"
  generate "$dir"
  while read -r f; do
    cmp -s "$dir/$f" "$proto/$f" || { echo "$proto/${f#./} is not what the .proto files give: run make generate" >&2; bad=1; }
  done < <(sort -u <(made "$dir") <(made $proto))
  return $bad
}

case ${1:-} in
  "") generate $proto ;;
  --check)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    check
    ;;
  *) echo "usage: generate.sh [--check]" >&2; exit 2 ;;
esac
