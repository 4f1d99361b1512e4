"""The commands that measure quality."""

from collections.abc import Callable

from bytebound_evals.cli.gsm8k import gsm8k
from bytebound_evals.cli.kl import kl
from bytebound_evals.cli.needle import needle
from bytebound_evals.cli.ppl import ppl

COMMANDS: list[Callable[..., int]] = [ppl, kl, gsm8k, needle]
