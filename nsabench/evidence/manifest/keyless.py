"""Signing by identity instead of a key, through sigstore (https://docs.sigstore.dev).

It needs the extra `nsabench[sigstore]`. Who signs is whoever the CI service vouches for; the
signature is entered in a public log, so nothing is signed this way unless it is asked for.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from nsabench import bounds
from nsabench.bounds import limits
from nsabench.errors import EnvironmentRefused, VerificationFailed
from nsabench.evidence.manifest.dsse import PAYLOAD_TYPE, Envelope
from nsabench.evidence.manifest.seal import BUNDLE, MANIFEST
from nsabench.files import whole
from nsabench.signing.secrecy import restored

WANTED = "NSABENCH_SIGN_KEYLESS"
_INSTALL = "install it: pip install 'nsabench[sigstore]'."


def is_wanted(variables: Mapping[str, str]) -> bool:
    return variables.get(WANTED, "") not in ("", "0")


def require() -> None:
    """Raises `EnvironmentRefused` when the extra is not installed."""
    try:
        import sigstore  # noqa: F401
    except ImportError:
        raise EnvironmentRefused("sigstore is not installed", _INSTALL) from None


def sign(folder: Path) -> None:
    """Write a bundle over the statement of the manifest, as the identity of this CI job.

    Raises `EnvironmentRefused` when this is no CI job that has one, or sigstore refuses.
    """
    require()
    from sigstore.dsse import Statement
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken, detect_credential
    from sigstore.sign import SigningContext

    content = Envelope.parse(bounds.read(folder / MANIFEST, limits.MANIFEST)).content()
    try:
        with restored():
            credential = detect_credential()
        if credential is None:
            raise EnvironmentRefused(
                "there is no identity to sign with here",
                f"run it in a CI job that may ask for an identity token, or unset {WANTED}.",
            )
        context = SigningContext.from_trust_config(ClientTrustConfig.production())
        with context.signer(IdentityToken(credential)) as signer:
            bundle = signer.sign_dsse(Statement(content))
    except Error as error:
        raise EnvironmentRefused(
            f"sigstore did not sign: {error}", f"try again, or unset {WANTED}."
        ) from error
    whole(folder / BUNDLE, f"{bundle.to_json()}\n".encode())


def check(folder: Path, identity: str, issuer: str) -> None:
    """Raises `VerificationFailed` unless `identity`, vouched for by `issuer`, signed the statement
    of the manifest, and `EnvironmentRefused` when the extra is not installed."""
    require()
    from sigstore.errors import Error, TUFError
    from sigstore.models import Bundle
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    try:
        bundle = Bundle.from_json(bounds.read(folder / BUNDLE, limits.MANIFEST))
        policy = Identity(identity=identity, issuer=issuer)
        try:
            verifier = Verifier.production()
        except TUFError:
            # Without a network: against the roots that came with sigstore or were last fetched.
            verifier = Verifier.production(offline=True)
        kind, content = verifier.verify_dsse(bundle, policy)
    except (Error, ValueError) as error:
        raise VerificationFailed(f"{BUNDLE}: {str(error).splitlines()[0]}") from None
    envelope = Envelope.parse(bounds.read(folder / MANIFEST, limits.MANIFEST))
    if kind != PAYLOAD_TYPE or base64.b64encode(content).decode() != envelope.payload:
        raise VerificationFailed(f"{BUNDLE} is over another statement than {MANIFEST}")
