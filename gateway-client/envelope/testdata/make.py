#!/usr/bin/env python3
"""Makes vectors.json: for every purpose one signature that verifies and several that must not.

The second program: it shares no code with the Go package. It needs Python 3 and Debian's python3-cryptography (OpenSSL).
Keys are new with every run, so every run gives other bytes of the same form. "make vectors" runs it.

A vector has the parts as a verifier sees them, and a list of refused ones, each the good one with one thing changed:
  bit       one bit of a part (of the signature where all parts are empty)
  value     one bit of the signature
  purpose   signed by the same key for another purpose
  order     signed over the same parts in another order (over the body cut in two where there is one part)
  length    signed over parts whose first length prefix is one less
  endian    signed over parts whose length prefixes are little-endian
  join      signed over the parts without length prefixes
  key       signed by another key
"""
import base64, datetime, hashlib, json, os, struct
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import NameOID

here = os.path.dirname(os.path.abspath(__file__))
begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
end = datetime.datetime(2027, 1, 1, tzinfo=datetime.timezone.utc)


def b64u(b):
    return base64.urlsafe_b64encode(b).rstrip(b"=").decode()


def prefix(p):
    return struct.pack(">I", len(p))


def signing_input(purpose, parts, prefix=prefix):
    out = b"bettercompute.v1/" + purpose.encode() + b"\0"
    for p in parts:
        out += prefix(p) + p
    return out


def raw_signature(key, data):
    r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def public(key):
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def kid(key):
    n = key.public_key().public_numbers()
    jwk = json.dumps({"crv": "P-256", "kty": "EC", "x": b64u(n.x.to_bytes(32, "big")), "y": b64u(n.y.to_bytes(32, "big"))},
                     separators=(",", ":"), sort_keys=True)
    return b64u(hashlib.sha256(jwk.encode()).digest())


def certificate(name, key, issuer, issuer_key, ca, uris):
    n = lambda s: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, s)])
    b = (x509.CertificateBuilder().subject_name(n(name)).issuer_name(n(issuer)).public_key(key.public_key())
         .serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
         .add_extension(x509.BasicConstraints(ca, None), True))
    if uris:
        b = b.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(u) for u in uris]), False)
    return b.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def flip(b, at):
    return b[:at] + bytes([b[at] ^ 0x10]) + b[at + 1:]


def flip_part(parts):
    """One bit of the middle of the last part that is not empty."""
    i = max((i for i, p in enumerate(parts) if p), default=None)
    return None if i is None else parts[:i] + [flip(parts[i], len(parts[i]) // 2)] + parts[i + 1:]


def another_order(parts):
    """The parts, turned; where that changes nothing, the one body as two."""
    turned = parts[1:] + parts[:1]
    return turned if turned != parts else [parts[0][:1], parts[0][1:]]


def short_prefix(parts):
    """A prefix for signing_input that says one byte less for the first part that is not empty."""
    left = [True]
    def f(p):
        n = len(p)
        if p and left[0]:
            left[0], n = False, n - 1
        return struct.pack(">I", n)
    return f


def varint_field(number, b):
    """A protobuf field of bytes, so that bodies look like bodies."""
    n, size = len(b), b""
    while True:
        size += bytes([n & 0x7f | (0x80 if n > 0x7f else 0)])
        n >>= 7
        if n == 0:
            return bytes([number << 3 | 2]) + size + b


sha = lambda b: hashlib.sha256(b).digest()
u32 = lambda n: struct.pack(">I", n)
u64 = lambda n: struct.pack(">Q", n)
node = b"spiffe://firstlight.test/node/11111111-2222-4333-8444-555555555501"
point = public(ec.generate_private_key(ec.SECP256R1()))[-65:]
body = varint_field(1, b"one") + varint_field(2, b"two" * 60)
# purpose, parts, whether the key comes with a chain to the root (else the verifier knows the key)
layouts = [
    ("command", [body], True),
    ("command", [b"x" * 300], True),
    ("desired-state", [body], True),
    ("join-response", [body], False),
    ("trust-bundle", [body], False),
    ("attested-report", [body], True),
    ("command-update", [b"cmd-1", u32(3), sha(b"result")], True),
    ("secret-request", [b"sec-1", b"secret://bmc/m1", b"wf-1", b"deploy", b"", point], True),
    ("workload-token", [b"req-1", b"inst-1", b"", point], True),
    ("renew-pop", [sha(b"csr"), node, b"2026-06-01T00:00:00Z"], True),
    ("x509pop", [sha(b"csr"), node, b"2026-06-01T00:00:00Z"], True),
    ("discovery-assertion", [body], True),
    ("batch-approval", [b"batch-1", sha(b"scope"), u32(16), b"2026-06-01T00:10:00Z", b"firstlight.test"], False),
    ("approver-set", [u64(7), sha(b"set"), b"firstlight.test"], False),
    ("image-manifest", [b'{"version":1,"name":"demo"}'], True),
]
new_key = lambda: ec.generate_private_key(ec.SECP256R1())
root_key, stranger = new_key(), new_key()
root = certificate("root", root_key, "root", root_key, True, [])
vectors = []
for i, (purpose, parts, chained) in enumerate(layouts):
    other = next(l[0] for l in layouts[i + 1:] + layouts[:1] if l[0] != purpose)
    key = new_key()
    # Both purposes stand in the certificate: what must refuse a signature for the other one is the signature itself.
    chain = [certificate(purpose, key, "root", root_key, False, ["urn:bc:sign:" + purpose, "urn:bc:sign:" + other])] if chained else []
    good = raw_signature(key, signing_input(purpose, parts))
    little = lambda p: struct.pack("<I", len(p))
    refused = [
        ("bit", flip_part(parts), good),
        ("value", parts, flip(good, 40)),
        ("purpose", parts, raw_signature(key, signing_input(other, parts))),
        ("order", parts, raw_signature(key, signing_input(purpose, another_order(parts)))),
        ("length", parts, raw_signature(key, signing_input(purpose, parts, short_prefix(parts)))),
        ("endian", parts, raw_signature(key, signing_input(purpose, parts, little))),
        ("join", parts, raw_signature(key, signing_input(purpose, parts, lambda p: b""))),
        ("key", parts, raw_signature(stranger, signing_input(purpose, parts))),
    ]
    vectors.append({
        "purpose": purpose, "parts": [p.hex() for p in parts], "input_sha256": sha(signing_input(purpose, parts)).hex(),
        "key": public(key).hex(), "kid": kid(key), "signature": good.hex(), "chain": [c.hex() for c in chain],
        "refused": [{"change": c, "parts": [p.hex() for p in ps], "signature": s.hex()} for c, ps, s in refused],
    })
with open(os.path.join(here, "vectors.json"), "w") as f:
    json.dump({"root": root.hex(), "within": "2026-06-01T00:00:00Z", "vectors": vectors}, f, indent=1)
    f.write("\n")
