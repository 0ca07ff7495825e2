"""Implements `podrace import`: converts a Stable-Baselines3 model to a policy that can be served and rendered."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from podrace.cli import session
from podrace.cli.results.worker import run_module
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import output_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.errors import InvalidArgument
from podrace.qualification.supervision import check_installed

MOST_EPISODES = 10_000
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model", type=_FILE)
@click.option("--environment", required=True, metavar="ID", help="Its environment, as in a specification.")
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the environment; repeatable.")
@click.option("--statistics", type=_FILE, help="File that VecNormalize.save wrote, if the model was trained with it.")
@click.option(
    "--episodes",
    type=click.IntRange(0, MOST_EPISODES),
    default=32,
    show_default=True,
    help="Play this many episodes, and show the mean return.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder to write to.  [default: the name and -policy]")
@output_options
def import_(
    model: Path,
    environment: str,
    options: Sequence[str],
    statistics: Path | None,
    episodes: int,
    folder: Path | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Convert a Stable-Baselines3 model to an exported policy.

    Reads MODEL, a zip file that `model.save` of Stable-Baselines3 2.x wrote: PPO, A2C, SAC, TD3, DDPG or DQN with
    MlpPolicy. Nothing in it is unpickled, and Stable-Baselines3 need not be installed. Writes policy.onnx, which
    `podrace serve FOLDER` serves and podrace.load_policy loads, and card.json. It acts like the model without
    exploration; it is not a checkpoint, so no tournament starts from it.
    """
    check_installed("import")
    request = {
        "model": str(model.absolute()),
        "environment": {"id": environment, "options": MessageToDict(parse_options(options))},
        "statistics": str(statistics.absolute()) if statistics else "",
        "episodes": episodes,
    }
    target = folder or Path(f"{model.stem}-policy")

    async def command(interrupts: Interrupts) -> int:
        facts = await _convert(request, target)
        if as_json:
            show_json(facts | {"folder": str(target)})
        else:
            _show(facts, target)
        return 0

    return session.run(command)


async def _convert(request: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """Converts in a child process, which imports torch, and writes the files."""
    with tempfile.TemporaryDirectory(prefix="podrace-import-") as name:
        work = Path(name)
        (work / "request.json").write_text(json.dumps(request))
        found: dict[str, Any] = json.loads(await run_module("agentpod.imports", work, command="import"))
        contents = {file: (work / file).read_bytes() for file in found["files"]}
    facts = {"model": Path(request["model"]).name, "task": request["environment"], **found}
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"--folder {target}: cannot be created: {error.strerror}") from None
    contents["card.json"] = json.dumps(facts, indent=1).encode() + b"\n"
    for file, data in contents.items():
        with whole_file(target / file, "--folder") as incoming:
            incoming.write_bytes(data)
    return facts


def _show(facts: Mapping[str, Any], target: Path) -> None:
    layers = "x".join(map(str, facts["hidden_sizes"])) or "no hidden layer"
    show(f"{target}: policy.onnx, card.json ({facts['algorithm']}, {layers}, {facts['activation']})")
    if score := facts["score"]:
        mean, error, episodes = score["mean_return"], score["standard_error"], score["episodes"]
        show(f"return {mean:.6g} ± {error:.2g} over {episodes} episodes without exploration")
