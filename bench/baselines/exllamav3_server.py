r"""exllamav3 through TabbyAPI, the server of its authors: our prompts and depths, plain.

    python bench/baselines/exllamav3_server.py --model FOLDER --tokenizer FOLDER --out FILE \
        --command "python TABBY_FOLDER/main.py"

TabbyAPI takes a prompt as text only, so it is sent as the text that the ids stand for. It caches
prompts and cannot be told not to; a prefill that it did not compute stands apart where it says so.
"""

import sys
from pathlib import Path

from bytebound.cli.errors import UsageError
from bytebound_evals.rivals.runner import Asked, Rival, main


def command(asked: Asked) -> list[str]:
    """One model, one sequence, open to this machine only."""
    if asked.draft_tokens:
        raise UsageError("--draft-tokens: exllamav3 has no MTP draft; leave it out")
    folder = Path(asked.model).absolute()
    words = [*asked.program, "--model-dir", str(folder.parent), "--model-name", folder.name]
    words += ["--host", "127.0.0.1", "--port", str(asked.port), "--disable-auth", "true"]
    words += ["--max-seq-len", str(asked.max_len), "--cache-size", str(asked.max_len)]
    return [*words, "--max-batch-size", "1", *asked.extra]


RIVAL = Rival(
    name="exllamav3_server",
    program=("tabbyapi",),
    command=command,
    takes_ids=False,
    body={"add_bos_token": False, "ban_eos_token": True},
)

if __name__ == "__main__":
    sys.exit(main(RIVAL))
