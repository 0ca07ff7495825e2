"""Lists examples of the commands, which `--help` shows and docs/commands.md has; a test parses each of them."""

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "init": [
        ("podrace init", "ask for environment, algorithms, duration and target"),
        ("podrace init ant.toml --environment mujoco:Ant-v5 --algorithm ppo --algorithm sac --duration 1h", ""),
    ],
    "train": [
        ("podrace train examples/cartpole.toml", "train, and write a report"),
        ("podrace train examples/cartpole.toml --set seed=7 --check", "check what would be trained"),
        ("podrace train --resume latest", "continue a stopped, paused or failed tournament"),
        ("podrace train examples/cartpole.toml --label team=rl", "give it a label"),
        ("podrace train examples/cartpole.toml --orchestrator mesh.example.org:50051", "train in a standing mesh"),
    ],
    "grid": [("podrace grid examples/cartpole.toml algorithm=ppo,a2c seed=0..4", "10 tournaments")],
    "continuous start": [
        ("podrace continuous start stocks.toml --watch prices.npz", "train whenever the file changes")
    ],
    "continuous status": [("podrace continuous status", "all continuous trainings of the home")],
    "continuous stop": [("podrace continuous stop stocks", "stop it; the champion stays")],
    "ls": [
        ("podrace ls", "the tournaments of podrace-home"),
        ("podrace ls --json", "the same as JSON, for programs"),
        ("podrace ls --filter 'state = RUNNING' --label team=rl", "running tournaments with a label"),
        ("podrace ls --order 'end_time desc'", "those that ended last come first"),
    ],
    "show": [
        ("podrace show latest", "state, pods, statistics and events"),
        ("podrace show latest --champion --toml", "a specification with the champion's hyperparameters"),
        ("podrace show latest --importance", "which hyperparameters matter"),
    ],
    "events": [("podrace events latest --kind pod_draining", "why pods were drained")],
    "top": [
        ("podrace top", "all running tournaments, live"),
        ("podrace top latest --once", "one tournament, once"),
    ],
    "logs": [
        ("podrace logs cartpole-dgdjxg-p1 --follow", "the log of a pod, until Ctrl-C"),
        ("podrace logs orchestrator --lines 200", "the log of a service"),
    ],
    "standings": [
        ("podrace standings latest", "the board of the newest tournament"),
        ("podrace standings latest --filter 'algorithm = ppo' --order 'environment_steps desc'", "some of its rows"),
    ],
    "lineage": [
        ("podrace lineage latest --svg lineage.svg", "all families, also as a drawing"),
        ("podrace lineage cartpole-dgdjxg-a7", "the ancestors of an agent"),
        ("podrace lineage latest --replay", "repeat every decision and compare"),
    ],
    "evaluate": [
        ("podrace evaluate latest --episodes 100", "the champion of the newest tournament"),
        ("podrace evaluate cartpole-dgdjxg-a7 --seed 5", "the best candidate of an agent"),
    ],
    "ensemble": [("podrace ensemble latest --top 3", "the three best agents, together and alone")],
    "export": [("podrace export latest --format onnx --folder policy", "policy/policy.onnx and a model card")],
    "import": [
        ("podrace import ppo_cartpole.zip --environment CartPole-v1", "ppo_cartpole-policy/policy.onnx"),
        (
            "podrace import ant.zip --environment mujoco:Ant-v5 --statistics vecnormalize.pkl",
            "trained with VecNormalize",
        ),
    ],
    "serve": [
        ("podrace serve latest --listen 127.0.0.1:8001", "always the best champion so far"),
        ("podrace serve cartpole-dgdjxg-a7", "the best candidate of one agent"),
        ("podrace serve stocks", "the champion of the continuous training stocks"),
        ("podrace serve policy", "the folder that `podrace export` wrote"),
    ],
    "policy show": [("podrace policy show", "the versions of the server on this machine")],
    "policy pin": [
        ("podrace policy pin 3f9a1c2b7d", "a version that served before"),
        ("podrace policy pin 3f9a1c2b7d --server podrace-serving-replicas:8001 --every", "on every replica"),
    ],
    "policy follow": [("podrace policy follow", "serve the champion again")],
    "policy rollback": [("podrace policy rollback", "serve the previous version")],
    "policy compare": [
        ("podrace policy compare 3f9a1c2b7d --share 0.1", "a tenth of the requests get its actions"),
        ("podrace policy compare 3f9a1c2b7d --shadow", "it computes every request, but its answers are not sent"),
        ("podrace policy compare --end", "end the comparison"),
    ],
    "render": [("podrace render latest --file episode.gif", "one episode of the champion")],
    "tensorboard": [("podrace tensorboard latest events --follow", "then: tensorboard --logdir events")],
    "curve": [("podrace curve latest --csv curve.csv --plot curve.png", "the champion over time and steps")],
    "dashboard": [("podrace dashboard", "the mesh of podrace-home")],
    "update": [
        ("podrace update latest --set pool.maximum_pods=4", "let it use four pods"),
        ("podrace update latest --label team=rl --label draft-", "set one label and remove another"),
    ],
    "pause": [("podrace pause latest --reason maintenance", "stop its pods and its clock")],
    "resume": [("podrace resume latest", "start its pods again")],
    "stop": [("podrace stop latest", "end it and keep its results")],
    "delete": [("podrace delete cartpole-dgdjxg", "asks before it deletes")],
    "prune": [
        ("podrace prune --older-than 30d --keep 5 --dry-run", "show what would be deleted"),
        ("podrace prune --state FAILED --results --yes", "failed tournaments with their results"),
        ("podrace prune --leftovers", "files of the home whose tournaments no longer exist"),
    ],
    "archive": [("podrace archive", "the archives"), ("podrace archive cartpole-3f2a9c", "reads one into a folder")],
    "backup": [
        ("podrace backup --store folder:///backups/podrace", "the databases of podrace-home"),
        ("podrace backup --orchestrator mesh.example.org:50051", "those of a mesh that runs"),
    ],
    "restore": [("podrace restore --store folder:///backups/podrace --replace", "from the newest backup")],
    "migrate": [
        (
            "podrace migrate o.sqlite postgresql://podrace@db.example.org/podrace",
            "of an orchestrator that has stopped",
        ),
    ],
    "data build": [("podrace data build prices.csv --output prices.npz", "prices from a CSV file")],
    "data check": [("podrace data check prices.npz", "exit code 1 if anything is suspicious")],
    "data synthesize": [("podrace data synthesize --output minutes.npz --symbols 20 --days 90", "random prices")],
    "store check": [("podrace store check podrace-home/store", "conditions, speed and clock")],
    "store ls": [("podrace store ls podrace-home/store", "agents and their newest checkpoints")],
    "store verify": [("podrace store verify podrace-home/store", "exit code 1 if anything is damaged")],
    "store gc": [("podrace store gc podrace-home/store", "add --delete to delete the files")],
    "certs make": [("podrace certs make certs --host orchestrator=mesh.example.org", "an authority, and all roles")],
    "certs add": [("podrace certs add certs user ada", "a certificate for a person")],
    "certs ls": [("podrace certs ls certs", "names, hosts and expiry")],
    "certs renew": [("podrace certs renew certs user/ada", "the same names, valid for longer")],
    "certs revoke": [
        ("podrace certs revoke certs user/ada", "services refuse all certificates of ada from now on"),
        ("podrace certs revoke certs user/ada --replaced", "only those that were renewed"),
    ],
    "certs secrets": [("podrace certs secrets certs --namespace podrace", "for kubectl apply -f -")],
    "token": [("podrace token ada --role user --lifetime 12h", "for a person who trains")],
    "algorithms": [
        ("podrace algorithms", "all algorithms"),
        ("podrace algorithms ppo", "the hyperparameters of one"),
    ],
    "simulators": [("podrace simulators", "the values that environment.id can have")],
    "strategies": [("podrace strategies asha", "the settings of one strategy")],
    "doctor": [
        ("podrace doctor", "this machine"),
        ("podrace doctor --orchestrator mesh.example.org:50051", "also version and clock of a server"),
        ("podrace doctor --kubeconfig kubeconfig --namespace podrace", "also rights in a cluster"),
    ],
    "conform": [
        ("podrace conform 127.0.0.1:50053 --as simulator --id cartpole", "a simulator"),
        ("podrace conform 127.0.0.1:50070 --as evolution", "a generator or an updater"),
        ("podrace conform 127.0.0.1:50051 --as pod", "a pod, which is then started with this orchestrator"),
    ],
    "qualify": [("podrace qualify --quick --part machine --part planes", "two parts of the tests")],
    "completion": [
        ('eval "$(podrace completion bash)"', "in ~/.bashrc"),
        ('eval "$(podrace completion zsh)"', "in ~/.zshrc"),
        ("podrace completion fish > ~/.config/fish/completions/podrace.fish", ""),
    ],
    "version": [("podrace version --orchestrator mesh.example.org:50051", "also that of a server")],
}
"""Command lines with a comment, by the name of the command."""


def epilog(name: str) -> str | None:
    """Returns the text below the options of a command; None if the command has no examples here."""
    examples = EXAMPLES.get(name)
    if not examples:
        return None
    width = max((len(line) for line, comment in examples if comment), default=0)
    lines = [f"  {line:<{width}}  # {comment}" if comment else f"  {line}" for line, comment in examples]
    # The first line keeps click from wrapping the others.
    return "\n".join(["\b", "Examples:" if len(examples) > 1 else "Example:", *lines])
