import sys
from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say_json
from nsabench.errors import UsageError
from nsabench.signing import keys, secrecy
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE, read_passphrase


@_help.group("key")
def command() -> None:
    """Make and show keys that sign runs.

    NSABENCH_SIGNING_KEY_FILE names the file of the key, or NSABENCH_SIGNING_KEY holds the key.
    NSABENCH_SIGNING_KEY_PASSPHRASE_FILE names a file with the passphrase in its first line.

    Example: nsabench key generate --out ~/.config/nsabench/signing.key
    """


@command.command("generate")
@click.option(
    "--out",
    type=_options.FILE,
    default=Path("nsabench-signing.key"),
    show_default=True,
    help="File of the private key; the public key goes to FILE.pub.",
)
def generate(out: Path) -> None:
    """Make a signing key and its public half.

    The private half (Ed25519) is encrypted. The passphrase comes from the file that
    NSABENCH_SIGNING_KEY_PASSPHRASE_FILE names, or from a prompt.

    Example: nsabench key generate --out signing.key
    """
    named = secrecy.variables().get(PASSPHRASE_FILE)
    if named:
        passphrase = read_passphrase(Path(named))
    elif sys.stdin.isatty():
        passphrase = click.prompt("passphrase", hide_input=True, confirmation_prompt=True).encode()
    else:
        raise UsageError(
            "a passphrase is needed, and standard input is not a terminal",
            f"set {PASSPHRASE_FILE} to a file that contains one.",
        )
    public = keys.generate(out, passphrase)
    click.echo(f"keyid   {keys.keyid_of(public)}")
    click.echo(f"private {out}: set {KEY_FILE} to this file where runs are made")
    click.echo(f"public  {keys.public_path(out)}: give it to readers, for `verify --key`")


@command.command("show")
@click.argument("public", type=_options.FILE, metavar="FILE.pub")
@_options.as_json
def show(public: Path, as_json: bool) -> None:
    """Show public keys and their ids.

    Example: nsabench key show signing.key.pub
    """
    found = keys.read_publics(public)
    texts = [(keys.keyid_of(key), keys.public_pem(key).decode()) for key in found]
    if as_json:
        say_json([{"keyid": keyid, "public_key": pem} for keyid, pem in texts])
        return
    for keyid, pem in texts:
        click.echo(f"keyid {keyid}\n{pem}", nl=False)
