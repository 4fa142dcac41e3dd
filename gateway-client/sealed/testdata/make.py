#!/usr/bin/env python3
"""Makes vectors.json with Python's cryptography: ECDH-ES+A256KW by RFC 7518 (4.6, C) and A256GCM by hand, no JOSE library."""
import base64, json, os, struct
from cryptography.hazmat.primitives import hashes, keywrap, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash

here = os.path.dirname(os.path.abspath(__file__))


def b64u(b):
    return base64.urlsafe_b64encode(b).rstrip(b"=").decode()


def seal(to, typ, plain, alg="ECDH-ES+A256KW", enc="A256GCM", extra=None):
    eph = ec.generate_private_key(ec.SECP256R1())
    n = eph.public_key().public_numbers()
    head = {"alg": alg, "enc": enc, "typ": typ,
            "epk": {"kty": "EC", "crv": "P-256", "x": b64u(n.x.to_bytes(32, "big")), "y": b64u(n.y.to_bytes(32, "big"))}}
    head.update(extra or {})
    protected = b64u(json.dumps(head).encode())
    bits = {"ECDH-ES+A256KW": 256, "ECDH-ES+A128KW": 128}[alg]
    lp = lambda b: struct.pack(">I", len(b)) + b
    info = lp(alg.encode()) + lp(b"") + lp(b"") + struct.pack(">I", bits)
    z = eph.exchange(ec.ECDH(), to.public_key())
    kek = ConcatKDFHash(hashes.SHA256(), bits // 8, info).derive(z)
    cek = os.urandom({"A256GCM": 32, "A128GCM": 16}[enc])
    iv = os.urandom(12)
    out = AESGCM(cek).encrypt(iv, plain, protected.encode())
    return ".".join([protected, b64u(keywrap.aes_key_wrap(kek, cek)), b64u(iv), b64u(out[:-16]), b64u(out[-16:])])


key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
join = json.dumps({"secret": base64.b64encode(b"open sesame").decode(), "csr_sha256": base64.b64encode(bytes(range(32))).decode()}).encode()
secret = json.dumps({"ref": "secret://bmc/m1", "request_id": "sec-1", "value": base64.b64encode(b"hunter2").decode(),
                     "expires": "2026-11-30T12:00:00Z"}).encode()
good = seal(key, "bcjoin+jwe", join)
head, rest = good.split(".", 1)
json.dump({
    "key": key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).hex(),
    "join": good, "secret": seal(key, "bcsecret+jwe", secret),
    "refused": {
        "another typ": seal(key, "bcsecret+jwe", join),
        "another alg": seal(key, "bcjoin+jwe", join, alg="ECDH-ES+A128KW"),
        "another enc": seal(key, "bcjoin+jwe", join, enc="A128GCM"),
        "compressed": seal(key, "bcjoin+jwe", join, extra={"zip": "DEF"}),
        "critical header": seal(key, "bcjoin+jwe", join, extra={"crit": ["exp"], "exp": 1}),
        "to another key": seal(other, "bcjoin+jwe", join),
        "not claims": seal(key, "bcjoin+jwe", b"[]"),
        "four parts": good.rsplit(".", 1)[0],
        "altered": good[:-5] + ("A" if good[-5] != "A" else "B") + good[-4:],
        "altered header": b64u(base64.urlsafe_b64decode(head + "==") + b" ") + "." + rest,
        "no header": "." + rest,
        "nothing": "",
    },
}, open(os.path.join(here, "vectors.json"), "w"), indent=1)
