"""vLLM through its OpenAI-compatible server: our prompts and depths, plain or with its MTP draft.

    python bench/baselines/vllm_server.py --model FOLDER --tokenizer FOLDER --out FILE
    python bench/baselines/vllm_server.py --model FOLDER --bytes --extra="--load-format dummy" ...

``--command`` names ``vllm serve`` where it is not on the PATH. Options: ``--help``.
"""

import json
import sys

from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.prometheus import draft_counters
from bytebound_evals.rivals.runner import Asked, Drafts, Rival, main


def command(asked: Asked) -> list[str]:
    """One sequence, no prefix cache."""
    words = [*asked.program, asked.model, "--port", str(asked.port)]
    words += ["--served-model-name", "model", "--max-model-len", str(asked.max_len)]
    words += ["--max-num-seqs", "1", "--no-enable-prefix-caching"]
    if asked.draft_tokens:
        draft = {"method": "mtp", "num_speculative_tokens": asked.draft_tokens}
        words += ["--speculative-config", json.dumps(draft)]
    return [*words, *asked.extra]


def version(server: Server) -> str | None:
    """The version that answers."""
    found = server.get("/version")
    return str(found["version"]) if isinstance(found, dict) and "version" in found else None


def drafts(server: Server) -> Drafts | None:
    """Its counters of speculative decoding; None where it does not draft."""
    return draft_counters(
        server,
        steps="vllm:spec_decode_num_drafts_total",
        drafted="vllm:spec_decode_num_draft_tokens_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
    )


RIVAL = Rival(
    name="vllm_server",
    program=("vllm", "serve"),
    command=command,
    version=version,
    drafts=drafts,
)

if __name__ == "__main__":
    sys.exit(main(RIVAL))
