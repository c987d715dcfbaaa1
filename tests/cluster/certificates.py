"""Certificates for tests: one authority that the nodes trust, and one that they do not."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """Makes TLS contexts for nodes and for strangers."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self._foreign = trustme.CA()
        self.ca_path = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca_path)
        self._directory = directory

    def server(self, name: str) -> ssl.SSLContext:
        """Of a node that listens: it asks for a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        self._authority.configure_trust(context)
        self._authority.issue_cert("127.0.0.1", "localhost", common_name=name).configure_cert(context)
        return context

    def client(self, name: str) -> ssl.SSLContext:
        """Of a node that calls."""
        context = self.anonymous()
        self._authority.issue_cert("127.0.0.1", common_name=name).configure_cert(context)
        return context

    def anonymous(self) -> ssl.SSLContext:
        """Of somebody without a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return context

    def foreign(self) -> ssl.SSLContext:
        """Of somebody with a certificate of another authority."""
        context = self.anonymous()
        self._foreign.issue_cert("127.0.0.1").configure_cert(context)
        return context

    def write(self, name: str) -> tuple[Path, Path]:
        """The certificate and the key of a node as files, for programs."""
        issued = self._authority.issue_cert("127.0.0.1", "localhost", common_name=name)
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        for blob in issued.cert_chain_pems:
            blob.write_to_path(certificate, append=certificate.exists())
        issued.private_key_pem.write_to_path(key)
        return certificate, key
