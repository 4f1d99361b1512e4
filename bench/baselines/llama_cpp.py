"""llama.cpp through llama-server: our prompts and depths, plain or with its MTP draft.

    python bench/baselines/llama_cpp.py --model FILE.gguf --tokenizer FOLDER --out FILE

``--command`` names llama-server where it is not on the PATH. Options: ``--help``. Its own bench
tool, without a server: ``llama_bench.py``.
"""

import sys

from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.runner import Asked, Rival, main


def command(asked: Asked) -> list[str]:
    """One slot, everything on the GPU, flash attention, no reuse of prompts."""
    words = [*asked.program, "--model", asked.model, "--port", str(asked.port)]
    words += ["--ctx-size", str(asked.max_len), "--parallel", "1", "--n-gpu-layers", "999"]
    words += ["--flash-attn", "on"]
    if asked.draft_tokens:
        words += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(asked.draft_tokens)]
    return [*words, *asked.extra]


def version(server: Server) -> str | None:
    """The build that answers."""
    properties = server.get("/props")
    build = properties.get("build_info") if isinstance(properties, dict) else None
    return None if build is None else str(build)


RIVAL = Rival(
    name="llama_cpp",
    program=("llama-server",),
    command=command,
    body={"cache_prompt": False, "timings_per_token": True},
    version=version,
)

if __name__ == "__main__":
    sys.exit(main(RIVAL))
