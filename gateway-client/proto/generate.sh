#!/usr/bin/env bash
# Generates the Go messages beside their .proto files; the result is checked in.
set -euo pipefail
cd "$(dirname "$0")/../.."
go build -o bin/tools/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
PATH=$PWD/bin/tools:$PATH protoc \
  -I gateway-client/proto -I /usr/include \
  --go_out=gateway-client/proto --go_opt=paths=source_relative \
  --go-grpc_out=gateway-client/proto --go-grpc_opt=paths=source_relative \
  $(cd gateway-client/proto && find . -name '*.proto' | sed 's,^\./,,')
