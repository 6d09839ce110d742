"""The checker process reads requests on stdin and answers on stdout, which `print` cannot reach."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nsabench import ops
from nsabench.channel import Channel, Refused, Step, die_with
from nsabench.checker.judge import OutputJudge
from nsabench.checker.protocol import REQUEST, Conclude, Prepare
from nsabench.delivery import Delivery, Mailbox
from nsabench.errors import NsabenchError


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.checker")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--ops-sha256")
    parser.add_argument("--mailbox", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    if options.ops is not None:
        try:
            ops.load_file(options.ops, options.ops_sha256)
        except NsabenchError as error:
            channel.send(Refused.from_error(error))
            return
    checker = OutputJudge(options.device, Mailbox(options.mailbox, options.device))
    channel.send(Step(phase="start"))
    for line in sys.stdin.buffer:
        match REQUEST.validate_json(line):
            case Prepare() as request:
                channel.send(checker.prepare(request))
            case Delivery() as delivery:
                channel.send(checker.check(delivery))
            case Conclude() as request:
                channel.send(checker.conclude(request.diagnosed))


if __name__ == "__main__":
    main()
