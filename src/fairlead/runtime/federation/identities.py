"""Makes the certificates and keys of a federation: a CA and a server certificate for TLS, and a key for each site.

All by ``cryptography``, which Flower brings. Private keys have mode 0600. The CA's own key is never stored: it signs
one certificate, and is forgotten.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from fairlead.runtime.federation.settings import CA, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography import x509

VALID_DAYS = 365
CERTIFICATE, KEY, SITE_KEY = "server.crt", "server.key", "site.key"


def make_server_identity(directory: Path, host: str | None = None) -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key`` for loopback and a host, unless they exist."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if (directory / KEY).exists():
        return
    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fairlead federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])

    def builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        begins = now - datetime.timedelta(minutes=5)
        ends = now + datetime.timedelta(days=VALID_DAYS)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        return made.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)

    authority = builder(issuer, ca_key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    addresses: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    if host is not None and host not in ("localhost", "127.0.0.1"):
        addresses.append(_general_name(host))
    server = builder(subject, server_key).add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    write_atomically(directory / CA, _pem(authority.sign(ca_key, hashes.SHA384())))
    write_atomically(directory / CERTIFICATE, _pem(server.sign(ca_key, hashes.SHA384())))
    write_atomically(directory / KEY, _private(server_key, openssh=False))


def make_site_key(directory: Path) -> str:
    """Return the public key of a site in OpenSSH's form; its private key is made at first, and stays there."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    path = directory / SITE_KEY
    if not path.exists():
        write_atomically(path, _private(ec.generate_private_key(ec.SECP384R1()), openssh=True))
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form).decode()


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: object) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    assert isinstance(certificate, x509.Certificate)
    return certificate.public_bytes(Encoding.PEM).decode()


def _private(key: object, *, openssh: bool) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    assert isinstance(key, ec.EllipticCurvePrivateKey)
    form = serialization.PrivateFormat.OpenSSH if openssh else serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
