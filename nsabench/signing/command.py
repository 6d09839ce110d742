"""A signer that is a program of its own: the key is where neither this process nor a kernel is.

The program is started once, before anything foreign. It writes its public key, base64 of the DER
form, as its first line. Then it reads what is to be signed, a line of base64 each, and answers with
a line each: base64 of the Ed25519 signature. It ends when its input does.
"""

from __future__ import annotations

import base64
import binascii
import os
import selectors
import shlex
import subprocess
import time
from typing import BinaryIO, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nsabench.errors import EnvironmentRefused
from nsabench.signing.keys import public_der, public_key_of_der

# Somebody may have to type a PIN or to touch a token.
PATIENCE_S = 300.0
MAX_LINE_BYTES = 4096


class PrivateKey(Protocol):
    """What can sign: a key in this process, or a program that has one."""

    def sign(self, data: bytes, /) -> bytes: ...

    def public_key(self) -> Ed25519PublicKey: ...


class CommandKey:
    """The key of a program. Has the methods of an `Ed25519PrivateKey` that signing needs."""

    def __init__(self, command: str, patience_s: float = PATIENCE_S) -> None:
        """Start the program and ask for its key. Raises `EnvironmentRefused`."""
        self._command = command
        self._patience_s = patience_s
        self._rest = b""
        try:
            # A group of its own, so that an interrupt from the terminal is for the run alone.
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise self._refused(f"cannot be started: {error}") from None
        try:
            self._public = public_key_of_der(self._line())
        except ValueError as error:
            self.close()
            raise self._refused(f"named no Ed25519 public key: {error}") from None

    def public_key(self) -> Ed25519PublicKey:
        return self._public

    def sign(self, data: bytes, /) -> bytes:
        """Raises `EnvironmentRefused` when the program does not sign."""
        assert self._process.stdin is not None
        line = base64.b64encode(data) + b"\n"
        try:
            while line:
                line = line[self._process.stdin.write(line) :]
        except OSError:
            raise self._refused("has ended") from None
        signature = self._line()
        try:
            self._public.verify(signature, data)
        except InvalidSignature:
            raise self._refused("answered with what is no signature of its key") from None
        return signature

    def close(self) -> None:
        """End the program: its input ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self) -> bytes:
        """What the next line of its answers says."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise self._refused(f"did not answer for {self._patience_s:g} s")
                data = os.read(self._process.stdout.fileno(), MAX_LINE_BYTES)
                if not data:
                    raise self._refused("has ended")
                self._rest += data
                if len(self._rest) > MAX_LINE_BYTES:
                    raise self._refused("answered with more than a line")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return base64.b64decode(line, validate=True)
        except binascii.Error as error:
            raise self._refused(f"answered with what is not base64: {error}") from None

    def _refused(self, what: str) -> EnvironmentRefused:
        return EnvironmentRefused(
            f"the signer `{self._command}` {what}", "see what it says when it is run by itself."
        )


def serve(key: PrivateKey, requests: BinaryIO, answers: BinaryIO) -> None:
    """Be such a program: until the end of `requests`, sign each."""
    answers.write(base64.b64encode(public_der(key.public_key())) + b"\n")
    answers.flush()
    for line in requests:
        answers.write(base64.b64encode(key.sign(base64.b64decode(line))) + b"\n")
        answers.flush()
