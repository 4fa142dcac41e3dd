#!/usr/bin/env python3
"""Makes vectors.json with Python's cryptography (OpenSSL), a second program. It shares no code with the Go package."""
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


def signing_input(purpose, parts):
    out = b"bettercompute.v1/" + purpose.encode() + b"\0"
    for p in parts:
        out += struct.pack(">I", len(p)) + p
    return out


def raw_signature(key, data):
    r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


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


root_key, leaf_key, manifest_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
root = certificate("root", root_key, "root", root_key, True, [])
leaf = certificate("worker", leaf_key, "root", root_key, False, ["urn:bc:sign:command"])
signer = certificate("images", manifest_key, "root", root_key, False, ["urn:bc:sign:image-manifest"])
vectors = []
for purpose, parts, key, chain in [
    ("command", [b"body"], leaf_key, [leaf]),
    ("command", [b""], leaf_key, [leaf]),
    ("command", [b"x" * 300], leaf_key, [leaf]),
    ("image-manifest", [b'{"version":1}'], manifest_key, [signer]),
    ("join-response", [b"body"], leaf_key, []),
    ("command-update", [b"cmd-1", struct.pack(">I", 3), hashlib.sha256(b"result").digest()], leaf_key, []),
    ("secret-request", [b"sec-1", b"secret://bmc/m1", b"wf", b"step", b"", b"\x04" + bytes(range(64))], leaf_key, []),
    ("renew-pop", [], leaf_key, []),
]:
    data = signing_input(purpose, parts)
    vectors.append({
        "purpose": purpose, "parts": [p.hex() for p in parts], "input_sha256": hashlib.sha256(data).hexdigest(),
        "key": key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo).hex(),
        "kid": kid(key), "signature": raw_signature(key, data).hex(), "chain": [c.hex() for c in chain],
    })
json.dump({"root": root.hex(), "within": "2026-06-01T00:00:00Z", "vectors": vectors}, open(os.path.join(here, "vectors.json"), "w"), indent=1)
