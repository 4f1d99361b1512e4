"""SGLang through its OpenAI-compatible server: our prompts and depths, plain or with its MTP draft.

    python bench/baselines/sglang_server.py --model FOLDER --tokenizer FOLDER --out FILE

``--command`` says how it is started, by default ``python3 -m sglang.launch_server``. Options:
``--help``. It does not say how many guesses stood.
"""

import importlib.util
import sys

from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.runner import Asked, Rival, main


def command(asked: Asked) -> list[str]:
    """One request at a time, no radix cache."""
    words = [*asked.program, "--model-path", asked.model, "--port", str(asked.port)]
    words += ["--served-model-name", "model", "--context-length", str(asked.max_len)]
    words += ["--max-running-requests", "1", "--disable-radix-cache"]
    if asked.draft_tokens:
        words += ["--speculative-algorithm", "NEXTN"]
        words += ["--speculative-num-steps", str(asked.draft_tokens)]
        words += ["--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(asked.draft_tokens + 1)]
    return [*words, *asked.extra]


def version(server: Server) -> str | None:
    """The version that answers."""
    found = server.get("/get_server_info")
    return str(found["version"]) if isinstance(found, dict) and "version" in found else None


# Python is always there; whether the package is decides what the runner may try.
_PROGRAM = (
    (sys.executable, "-m", "sglang.launch_server")
    if importlib.util.find_spec("sglang") is not None
    else ("sglang",)
)

RIVAL = Rival(name="sglang_server", program=_PROGRAM, command=command, version=version)

if __name__ == "__main__":
    sys.exit(main(RIVAL))
