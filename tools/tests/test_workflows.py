"""Rules for every workflow: pinned actions, least rights, time limits, nobody else's text in sh."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: (?P<action>[\w./-]+)@(?P<sha>[0-9a-f]{40}) # v\d+\.\d+\.\d+")


def load(name: str) -> dict[Any, Any]:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    assert isinstance(found, dict)
    return found


def jobs(workflow: dict[Any, Any]) -> dict[str, Any]:
    found = workflow["jobs"]
    assert isinstance(found, dict)
    return found


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    found = workflow[True]  # YAML 1.1 reads the key `on` as a truth value
    assert isinstance(found, dict)
    return found


def scripts(workflow: dict[Any, Any]) -> list[str]:
    return [
        step["run"] for job in jobs(workflow).values() for step in job["steps"] if "run" in step
    ]


def self_hosted(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [job for job in jobs(workflow).values() if "self-hosted" in job["runs-on"]]


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def file(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_there_are_the_workflows_that_are_promised() -> None:
    assert {file.name for file in FILES} >= {
        "ci.yml",
        "perf.yml",
        "perf-comment.yml",
        "release.yml",
    }


def test_every_action_is_pinned_by_commit_with_its_version(file: Path) -> None:
    for line in file.read_text().splitlines():
        if re.match(r"\s*(- )?uses:", line):
            assert PINNED.search(line), line


def test_one_action_has_one_version_everywhere() -> None:
    shas: dict[str, set[str]] = {}
    for file in FILES:
        for found in PINNED.finditer(file.read_text()):
            shas.setdefault(found["action"], set()).add(found["sha"])
    assert all(len(one) == 1 for one in shas.values()), shas


def test_rights_are_few_and_every_job_has_a_time_limit(file: Path) -> None:
    workflow = load(file.name)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in jobs(workflow).items():
        assert 0 < job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_no_script_holds_text_that_somebody_else_wrote(file: Path) -> None:
    """Such text comes in through the environment, where a shell does not read it as code."""
    for script in scripts(load(file.name)):
        for expression in re.findall(r"\$\{\{(.*?)\}\}", script, re.DOTALL):
            assert not re.search(r"github\.event\b|head_ref|inputs\.", expression), script


def test_scripts_name_files_that_are_there(file: Path) -> None:
    for script in scripts(load(file.name)):
        for name in re.findall(r"(?<![\w/.$])(?:tools|bench)/[\w./-]+", script):
            if not name.startswith("bench/results/"):  # made by measuring
                assert (ROOT / name).exists(), name


def test_our_own_machines_run_one_job_at_a_time_and_know_no_secret() -> None:
    for file in FILES:
        workflow = load(file.name)
        for job in self_hosted(workflow):
            assert job["concurrency"] == {"group": "gpu", "cancel-in-progress": False}
            assert "secrets." not in str(job)
            assert "permissions" not in job


def test_perf_runs_a_pull_request_only_when_it_is_labelled() -> None:
    workflow = load("perf.yml")
    assert triggers(workflow).keys() == {"pull_request", "schedule", "workflow_dispatch"}
    assert triggers(workflow)["pull_request"] == {"types": ["labeled"]}
    (job,) = jobs(workflow).values()
    assert job["runs-on"] == ["self-hosted", "linux", "gpu", "rtx5090"]
    assert "github.event.label.name == 'run-gpu'" in job["if"]
    assert "gpu-pr" in job["environment"]
    steps = " ".join(scripts(workflow))
    assert "bench/gpu_lock" in steps
    assert steps.index("measure") < steps.index("gate")
    assert "|| true" not in next(script for script in scripts(workflow) if " gate " in script)


def test_perfs_options_are_those_of_the_commands() -> None:
    """What a workflow asks for exists: a typo would show on the machine only."""
    import typer
    from bytebound_evals.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    script = "\n".join(scripts(load("perf.yml")))
    measured = script.split("--rounds 2 --")[1].split("printf")[0]
    gated = " ".join(part.split("cat results")[0] for part in script.split(" gate ")[1:])
    for name, text in (("throughput", measured), ("gate", gated)):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        asked = set(re.findall(r"(?<=\s)--[\w-]+", text))
        assert asked and asked <= known, (name, asked - known)


def test_the_comment_runs_no_code_of_a_pull_request() -> None:
    workflow = load("perf-comment.yml")
    assert triggers(workflow)["workflow_run"] == {"workflows": ["perf"], "types": ["completed"]}
    (job,) = jobs(workflow).values()
    assert job["permissions"] == {"actions": "read", "contents": "read", "pull-requests": "write"}
    (checkout,) = (s for s in job["steps"] if s.get("uses", "").startswith("actions/checkout@"))
    assert "ref" not in checkout["with"]
    assert "commits/$HEAD/pulls" in scripts(workflow)[0]
    marker = "<!-- bytebound-perf-gate -->"
    assert marker in scripts(workflow)[0]


def test_a_release_is_of_one_package_by_its_tag() -> None:
    workflow = load("release.yml")
    assert triggers(workflow)["push"] == {"tags": ["bytebound*-v*"]}
    publishing = [job for job in jobs(workflow).values() if "id-token" in str(job)]
    assert len(publishing) == 1
    assert publishing[0]["environment"].startswith("pypi-")
