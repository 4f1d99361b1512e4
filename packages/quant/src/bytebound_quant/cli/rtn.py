"""``bytebound-quant rtn``: round every matrix to its nearest 4-bit values."""

from typing import Annotated

import typer

from bytebound_quant.cli import options as opt


def rtn(
    source: opt.Source,
    destination: opt.Destination,
    mse: Annotated[
        bool, typer.Option("--mse", help="Search each group's range for the least squared error.")
    ] = False,
    asymmetric: opt.Asymmetric = False,
    group_size: opt.GroupSize = 128,
    keep_head: opt.KeepHead = False,
    mtp_bits: opt.MtpBits = 4,
    device: opt.Device = None,
    tensors: opt.Tensors = False,
    json_: opt.Json = False,
) -> int:
    """Round a checkpoint to 4 bits; fast, and needs no data.

    Killed at any point, the same command continues. Until it is done the folder is called
    DST.partial and does not load.
    """
    from bytebound.settings import check_device

    from bytebound_quant.cli.running import run_job
    from bytebound_quant.grid import Scheme
    from bytebound_quant.job import Job
    from bytebound_quant.plan import PlanOptions, make_plan
    from bytebound_quant.rtn_job import RtnMethod
    from bytebound_quant.source import open_source

    scheme = Scheme(symmetric=not asymmetric, group_size=group_size)
    where = check_device(device)
    opened = open_source(source)
    plan = make_plan(opened, PlanOptions(scheme, keep_head=keep_head, mtp_bits=mtp_bits))
    method = RtnMethod(opened, plan, mse=mse, device=where)
    return run_job(Job(opened, plan, method, destination), json_=json_, every_tensor=tensors)
