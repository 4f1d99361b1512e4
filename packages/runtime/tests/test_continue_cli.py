"""Continue's command line against scripts: a session over OpenAI's protocol that reads a file.

It runs where ``cn`` is found, from the npm package ``@continuedev/cli``.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, answering, served
from .test_claude_code import call, elsewhere, last_message

CN = shutil.which("cn")

CONFIG = """
name: local
version: 1.0.0
schema: v1
models:
  - name: bytebound
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: none
    roles: [chat, edit, apply]
    capabilities: [tool_use]
"""


@pytest.mark.skipif(CN is None, reason="needs cn, of the npm package @continuedev/cli, in PATH")
def test_a_session_reads_a_file_through_a_call_and_answers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "note.txt").write_text("The word of the day is heliotrope.\n")

    def reply(prompt: str) -> str:
        read = re.search(r"word of the day is (\w+)", last_message(prompt))
        if read is None:
            path = str(folder / "note.txt")
            return f"I must read it.</think>\n\nLet me look.\n{call('Read', filepath=path)}"
        return f"It says so.</think>\n\nThe word is {read[1]}."

    assert CN is not None
    with elsewhere() as proxy, served(answering(tokenizer, reply)) as found:
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(model=MODEL, url=found.url))
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "CONTINUE_TELEMETRY_ENABLED": "0",
            "HTTP_PROXY": proxy.url,
            "HTTPS_PROXY": proxy.url,
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [CN, "-p", "What is the word in note.txt?", "--config", str(config)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        with found.http as client:
            metrics = client.get("/metrics").text
    assert (done.returncode, done.stdout.strip()) == (0, "The word is heliotrope."), done.stderr
    assert not re.search(r'requests_total\{endpoint="/v1[^}]*status="[45]', metrics)
