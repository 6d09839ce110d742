"""Measure how far off every honest implementation is, on the shipped matrices.

The bounds of `checks/parity.py` rest on the table that this prints. For each op, result and dtype,
the table has the largest error of a whole result and that of one row, in units of the case's
resolution. Nothing is timed. `just gpu-worst-rows` runs this.
"""

import json
import multiprocessing
import os
import queue
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random

from nsabench import ops
from nsabench.checks.parity import is_unconditioned, resolution, result_of, row_ratio
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import DType, Mode, Role
from nsabench.planning import matrix, resolve

FORMATS = tuple(DType)
GRACE_S = 30.0
ATTEMPTS, RETRY_S = 4, 4.0
OUT_OF_MEMORY = "OutOfMemoryError"


def cases(names):
    """Return all shapes, directions and distributions of the matrices in all dtypes, shuffled."""
    found = {}
    paths = [resolve.find_matrix(name) for name in names] or resolve.shipped_matrices().values()
    for path in paths:
        for loaded in matrix.load(path):
            for case in loaded.cases:
                if case.timing.mode is Mode.STREAM:
                    for dtype in FORMATS:
                        one = case.model_copy(update={"dtype": dtype})
                        found.setdefault(_case(_about(one)), one)
    mixed = list(found.values())
    Random(0).shuffle(mixed)
    return mixed


def _about(case):
    return case.model_dump(
        mode="json", include={"op", "shape", "direction", "distribution", "dtype"}
    )


def _case(row):
    return str([row[name] for name in ("op", "shape", "direction", "distribution", "dtype")])


def measure(case, device, kernels):
    """Return the errors of a case. Try again if other processes leave too little GPU memory."""
    import torch

    from nsabench.worker.guard import forget_earlier_cases

    reason = ""
    for _ in range(ATTEMPTS):
        forget_earlier_cases()
        try:
            rows = list(_rows(case, device, kernels))
            reason = next((r["reason"] for r in rows if OUT_OF_MEMORY in r.get("reason", "")), "")
            if not reason:
                return rows
        except torch.OutOfMemoryError as error:
            rows, reason = [], str(error)
        torch.cuda.empty_cache()
        time.sleep(RETRY_S)
    return rows or [{**_about(case), "implementation": "", "reason": reason[:200]}]


def _rows(case, device, kernels):
    import torch

    from nsabench.checker import compare as errors_of
    from nsabench.checker.judge import Oracles
    from nsabench.delivery import OUTPUT
    from nsabench.failure import DeviceLost, Failure
    from nsabench.worker import calls
    from nsabench.worker.guard import guarded
    from nsabench.worker.inputs import InputSets

    case = case.model_copy(update={"timing": case.timing.model_copy(update={"rotate": 2})})
    about = _about(case)
    try:
        oracles = Oracles(case, [case.seed, case.seed + 1], device)
        sets = InputSets(case, oracles.seeds, oracles.form, device)
    except Failure as failure:
        yield {**about, "implementation": "", "reason": failure.reason}
        return
    for item in kernels:
        info = ImplementationInfo.model_validate(item, from_attributes=True)
        if item.op != case.op or item.role in (Role.CONTROL, Role.ALTERNATIVE):
            continue
        if not info.concerns(case):
            continue
        found = {**about, "implementation": item.name, "role": str(item.role)}
        try:
            call = guarded(
                lambda item=item: calls.prepare_call(item, case.direction, sets, 0, Random(0)),
                device,
            )
            answer = guarded(call, device)
            resolved = resolution(case)
            rows = [
                errors_of.measure(
                    *(name, answer.results[name], right, resolved),
                    factor=1.0 if name == OUTPUT else answer.factor,
                    sampled=ops.get(case.op).samples_queries,
                )
                for name, right in oracles.expected[0].items()
            ]
        except (Failure, DeviceLost) as failure:
            yield {**found, "reason": str(failure)[:200]}
            continue
        for errors in rows:
            yield {
                **found,
                "mae": errors.mae,
                "rel_l2": errors.rel_l2,
                "worst_row": errors.worst_row,
                "worst_row_at": errors.worst_row_at,
                "resolved": resolved,
                "bounded": not is_unconditioned(case),
            }
        del answer, call
    if device == "cuda":
        torch.cuda.empty_cache()


def work(tasks, results, device, end, number):
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    from nsabench import registry
    from nsabench.model.vocabulary import Runs

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())
    kernels = [i for i in registry.load() if Runs(device) in i.devices]
    while (case := tasks.get()) is not None:
        results.put(measure(case, device, kernels) if time.time() < end else [])


def table(found):
    """Yield a table of the greatest errors of each group, then the results beyond the bound."""
    groups = defaultdict(list)
    for row in found:
        if row.get("bounded"):
            group = (row["op"], result_of(row["worst_row_at"]), row["dtype"])
            errors = row["rel_l2"] / row["resolved"], row["worst_row"] / row["resolved"]
            groups[group].append((*errors, row))
    yield "| op | result | format | calls | as a whole | by | in one row | by |"
    yield "|---|---|---|---|---|---|---|---|"
    for group, rows in sorted(groups.items()):
        whole, one = (max(rows, key=lambda r, at=at: r[at]) for at in (0, 1))
        yield (
            f"| {' | '.join(group)} | {len(rows)} | {whole[0]:.2f} | {whole[2]['implementation']} "
            f"| {one[1]:.2f} | {one[2]['implementation']} |"
        )
    every = [(group, row) for group, rows in groups.items() for row in rows]
    beyond = [row for group, row in every if row[0] > 1 or row[1] > row_ratio(group[1])]
    yield f"\n{len(beyond)} of {len(every)} results are beyond the bound"
    for whole, one, row in beyond:
        yield f"{whole:.2f} as a whole, {one:.2f} in one row: {row}"


def main(device, folder, seconds, workers, *names):
    """Measure for `seconds`, from where the file in `folder` ends, and print the table."""
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    end = time.time() + float(seconds)
    written = Path(folder, "worst_rows.jsonl")
    written.touch()
    found = [json.loads(line) for line in written.read_text().splitlines()]
    done = {_case(row) for row in found}
    some = cases(list(names))
    left = [case for case in some if _case(_about(case)) not in done]
    processes = [
        context.Process(target=work, args=(tasks, results, device, end, number), daemon=True)
        for number in range(int(workers))
    ]
    for case in [*left, *[None] * len(processes)]:
        tasks.put(case)
    for process in processes:
        process.start()
    with written.open("a") as file:
        for _ in left:
            try:
                rows = results.get(timeout=max(end - time.time(), 0) + GRACE_S)
            except queue.Empty:  # a worker died, or one call takes forever
                break
            found += rows
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
    print(f"{len({_case(row) for row in found})} of {len(some)} cases")
    print("\n".join(table(found)), flush=True)
    for process in processes:
        process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
