"""TLS without an authority: a certificate authority of the cluster's own, made once, and the contexts over it.

``clutch up --join`` makes it. The line it prints carries the authority's fingerprint; a machine that joins fetches the
authority's certificate, compares the fingerprint, and trusts nothing else from then on.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
import os
import ssl
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clutch.wire.errors import BadRequest, NotAuthenticated

AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, AUTHORITY_KEY_FILE = "ca.pem", "server.pem", "server.key", "ca.key"
TLS_FOLDER = "tls"
"""In the master's data folder."""
TLS_FOLDER = "tls"
"""In the master's data folder."""
AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
RENEW_BEFORE = datetime.timedelta(days=30)
_SKEW = datetime.timedelta(minutes=10)


class TlsFiles(msgspec.Struct, frozen=True):
    """Where a server's certificate and key are, and the authority that clients are given."""

    certificate: Path
    key: Path
    authority: Path


# -- the rule -----------------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on this address. A name other than ``localhost`` may lead
    anywhere, so it is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_listener(host: str, has_tls: bool, insecure: bool) -> None:
    """``BadRequest`` for a listener that would carry tokens in clear over a network, unless that was said aloud."""
    if not (is_loopback(host) or has_tls or insecure):
        raise BadRequest(
            "tokens and secrets would cross the network in clear",
            object=f"listener on {host}",
            path="host",
            next_step="Use 'clutch up --join', give --tls-cert and --tls-key, or say --insecure.",
        )


# -- certificates -------------------------------------------------------------------------------------------------


def ensure_certificates(folder: Path, hosts: tuple[str, ...], now: datetime.datetime) -> TlsFiles:
    """The authority and a server certificate for these names and addresses, made or renewed when needed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = TlsFiles(folder / CERTIFICATE_FILE, folder / KEY_FILE, folder / AUTHORITY_FILE)
    if not (files.authority.exists() and (folder / AUTHORITY_KEY_FILE).exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder / AUTHORITY_KEY_FILE, _private(key), 0o600)
        _write(files.authority, _authority(key, now).public_bytes(serialization.Encoding.PEM), 0o644)
    if not _serves(files, hosts, now):
        authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
        signer = serialization.load_pem_private_key((folder / AUTHORITY_KEY_FILE).read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = _server(key, hosts, (authority, signer), now)
        _write(files.key, _private(key), 0o600)
        _write(files.certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(_named("Clutch cluster authority"))
        .issuer_name(_named("Clutch cluster authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _server(
    key: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...],
    signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    now: datetime.datetime,
) -> x509.Certificate:
    authority, authority_key = signer
    return (
        x509.CertificateBuilder()
        .subject_name(_named("Clutch master"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=SERVER_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _serves(files: TlsFiles, hosts: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether the server's certificate is there, of this authority, for all these hosts, and not about to end."""
    if not (files.certificate.exists() and files.key.exists()):
        return False
    try:
        found = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(files.authority.read_bytes()))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:
        # Whatever is wrong with it (not PEM, another authority's, no names): a new one is made
        return False
    return all(_general_name(host) in names for host in hosts) and now + RENEW_BEFORE < found.not_valid_after_utc


# -- trust --------------------------------------------------------------------------------------------------------


def fingerprint(certificate_pem: str) -> str:
    """``sha256:HEX`` of a certificate, short enough to paste, long enough to pin."""
    return f"sha256:{hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate_pem)).hexdigest()}"


def check_fingerprint(certificate_pem: str, pinned: str) -> None:
    """``NotAuthenticated`` unless a certificate that came over an untrusted way is the one that was pinned."""
    try:
        found = fingerprint(certificate_pem)
    except ValueError as error:
        raise NotAuthenticated("it is no certificate", object="authority of the cluster") from error
    if not hmac.compare_digest(found, pinned.strip().lower()):
        raise NotAuthenticated(
            f"its fingerprint is {found}, not {pinned}",
            object="authority of the cluster",
            next_step="Copy the line that 'clutch up --join' prints; if it is the same, somebody is in between.",
        )


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """For a listener (uvicorn takes it as it is): TLS 1.2 and up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"the certificate and its key cannot be used: {error}", object=str(certificate),
            next_step="Check --tls-cert and --tls-key: PEM files that belong together and that this user may read.",
        ) from error  # fmt: skip
    return context


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """For agents, members and the SDK: trusts this authority and no other, or the machine's own for None."""
    try:
        return ssl.create_default_context(cafile=str(authority) if authority is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"the authority's certificate cannot be used: {error}", object=str(authority),
            next_step="Name the ca.pem that came with joining the cluster.",
        ) from error  # fmt: skip
