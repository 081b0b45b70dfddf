"""Certificate authorities and certificates for tests, made in memory."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files have them."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """Signs certificates of servers and clients."""

    name: str = "stowage-ca"
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @cached_property
    def pem(self) -> bytes:
        """The self-signed certificate of this authority."""
        builder = _certificate(self.name, self.key, self.name, DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return _pem(builder.sign(self.key, hashes.SHA256()))

    def server(self, *names: str, lasts: datetime.timedelta = DAY) -> Pair:
        """For 127.0.0.1 and these DNS names."""
        others = [x509.DNSName(name) for name in names]
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return self._pair("stowage", [here, *others], ExtendedKeyUsageOID.SERVER_AUTH, lasts)

    def client(self, name: str, uri: str = "", lasts: datetime.timedelta = DAY) -> Pair:
        """With this common name, and the URI as an alternative name."""
        others: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)] if uri else []
        return self._pair(name, others, ExtendedKeyUsageOID.CLIENT_AUTH, lasts)

    def _pair(
        self, name: str, others: list[x509.GeneralName], use: x509.ObjectIdentifier, lasts: datetime.timedelta
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(name, key, self.name, lasts)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(_pem(builder.sign(self.key, hashes.SHA256())), secret)


class Secret:
    """A directory like a mounted Secret: kubelet swaps a symbolic link to change all files at once
    (Kubernetes, pkg/volume/util/atomic_writer.go)."""

    def __init__(self, directory: Path, **files: bytes) -> None:
        self.directory, self._version = directory, 0
        directory.mkdir(parents=True, exist_ok=True)
        self.write(**files)

    def path(self, name: str) -> Path:
        """Of the file with this name, such as ``tls_crt`` for ``tls.crt``."""
        return self.directory / name.replace("_", ".")

    def write(self, **files: bytes) -> None:
        """Replace all files."""
        self._version += 1
        version = self.directory / f"..{self._version}"
        version.mkdir()
        for name, content in files.items():
            (version / name.replace("_", ".")).write_bytes(content)
            if not self.path(name).is_symlink():
                self.path(name).symlink_to(Path("..data") / name.replace("_", "."))
        new = self.directory / "..new"
        new.symlink_to(version.name)
        os.replace(new, self.directory / "..data")

    def certify(self, pair: Pair, client_ca: bytes = b"") -> None:
        """Write a certificate as cert-manager does."""
        self.write(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=client_ca)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, lasts: datetime.timedelta
) -> x509.CertificateBuilder:
    until = datetime.datetime.now(datetime.UTC) + lasts
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - abs(lasts) - DAY)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
