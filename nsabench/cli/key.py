"""nsabench key"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.errors import UsageError
from nsabench.evidence.manifest import keys


@click.group("key")
def command() -> None:
    """The key that signs runs.

    A run is signed with the key that NSABENCH_SIGNING_KEY_FILE names (or NSABENCH_SIGNING_KEY
    holds), opened with the first line of the file NSABENCH_SIGNING_KEY_PASSPHRASE_FILE.

    Example: nsabench key generate --out ~/.config/nsabench/signing.key
    """


@command.command("generate")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("nsabench-signing.key"),
    show_default=True,
    help="File of the private key; the public one goes to FILE.pub.",
)
def generate(out: Path) -> None:
    """Make an encrypted Ed25519 key and its public half.

    The passphrase is asked for, or read from the file NSABENCH_SIGNING_KEY_PASSPHRASE_FILE.

    Example: nsabench key generate --out signing.key
    """
    named = os.environ.get(keys.PASSPHRASE_FILE)
    if named:
        passphrase = keys.read_passphrase(Path(named))
    elif sys.stdin.isatty():
        passphrase = click.prompt("passphrase", hide_input=True, confirmation_prompt=True).encode()
    else:
        raise UsageError(
            "there is no terminal to ask for a passphrase",
            f"name the file that holds one in {keys.PASSPHRASE_FILE}.",
        )
    public = keys.generate(out, passphrase)
    click.echo(f"keyid   {keys.keyid_of(public)}")
    click.echo(f"private {out}: name it in {keys.KEY_FILE} where runs are made")
    click.echo(f"public  {keys.public_path(out)}: for everyone who verifies them, with --key")


@command.command("show")
@click.argument(
    "public", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE.pub]"
)
@_options.as_json
def show(public: Path | None, as_json: bool) -> None:
    """The id and the public half of a key: of FILE.pub, or of the key that would sign now.

    Example: nsabench key show signing.key.pub
    """
    if public:
        key = keys.read_public(public)
    else:
        signer = keys.load_signer()
        if signer.ephemeral:
            raise UsageError(
                "no signing key is set: a run would be signed with an ephemeral one",
                f"name a key in {keys.KEY_FILE}; `nsabench key generate` makes one.",
            )
        key = signer.key.public_key()
    pem = keys.public_pem(key).decode()
    if as_json:
        click.echo(json.dumps({"keyid": keys.keyid_of(key), "public_key": pem}, indent=1))
    else:
        click.echo(f"keyid {keys.keyid_of(key)}\n{pem}", nl=False)
