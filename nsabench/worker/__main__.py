"""The worker process: reads requests on stdin and answers on the former stdout."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsabench.channel import Channel, Refused, Step, die_with
from nsabench.delivery import Mailbox
from nsabench.errors import NsabenchError
from nsabench.failure import DeviceLost
from nsabench.worker import sandbox
from nsabench.worker.protocol import REQUEST, Describe, LostDevice, Sandbox

if TYPE_CHECKING:
    from nsabench.worker.session import Session


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.worker")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--sources", type=json.loads)
    parser.add_argument("--sandbox", type=Sandbox.model_validate_json)
    parser.add_argument("--mailbox", type=int)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    if options.sandbox is not None:
        sandbox.enter(options.sandbox)
    channel.send(Step(phase="start"))
    try:
        serve(options, channel)
    except NsabenchError as error:
        channel.send(Refused.from_error(error))
    except DeviceLost as lost:
        channel.send(LostDevice(implementation=lost.implementation, reason=str(lost)))
        raise SystemExit(1) from lost


def serve(options: argparse.Namespace, channel: Channel) -> None:
    session: Session | None = None
    for line in sys.stdin.buffer:
        request = REQUEST.validate_json(line)
        if isinstance(request, Describe):
            from nsabench.machine.environment import torch_probe  # works without torch

            described = torch_probe.describe(options.device)
            channel.send(described.model_copy(update={"sandbox": sandbox.restrictions()}))
            continue
        if session is None:
            from nsabench.worker.session import Session

            own = options.mailbox
            mailbox = None if own is None else Mailbox(own, options.device)
            session = Session(
                options.device, options.kernels, options.ops, options.sources, channel, mailbox
            )
        channel.send(session.answer(request))


if __name__ == "__main__":
    main()
