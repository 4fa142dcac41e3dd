#!/bin/sh
# Makes the certificates of this folder with openssl, a second program: the test reads what it does not write.
set -eu
cd "$(dirname "$0")"
make() { # name, subjectAltName
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null -out "$1.pem" \
    -days 36500 -subj "/CN=$1" -addext "subjectAltName=$2" 2>/dev/null
}
id=spiffe://dc1.firstlight.test/site/site-a/node/node-abc
make good "URI:$id,URI:urn:bc:role:ramdisk"
make role-first "URI:urn:bc:role:site,URI:$id"
make other-statement "URI:$id,URI:urn:bc:role:node,URI:urn:bc:tpm:1"
make two-ids "URI:$id,URI:spiffe://dc1.firstlight.test/site/site-a/node/node-xyz,URI:urn:bc:role:node"
make no-id "URI:urn:bc:role:node,DNS:dc1.firstlight.test"
make foreign-uri "URI:$id,URI:https://example.test/,URI:urn:bc:role:node"
make no-role "URI:$id"
make two-roles "URI:$id,URI:urn:bc:role:node,URI:urn:bc:role:site"
make unknown-role "URI:$id,URI:urn:bc:role:king"
make signer "URI:urn:bc:sign:command"
