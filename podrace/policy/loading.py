"""Loads policies: from ONNX files, and from the checkpoints of a running mesh."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.client import Client, resolve
from podrace.client.delivery import CheckpointFetcher, FetchedCheckpoint
from podrace.errors import DataLoss, FailedPrecondition, NotFound
from podrace.policy.agents import AGENT, of_agent
from podrace.policy.graph import Member, Nodes, build
from podrace.policy.metadata import HEAD_PARAMETERS, MemberFacts, as_metadata
from podrace.policy.runtime import Policy
from podrace.policy.tensor_file import read_tensors
from podrace.tournament.v1.tournament_pb2 import Tournament

POLICY_FILE = "policy.onnx"
"""Name of the file in the folder of an export."""


def load_policy(source: str | Path, tournament: str | None = None, *, agent: str = "", threads: int = 1) -> Policy:
    """Loads a policy that acts on observations of Gymnasium environments.

        policy = podrace.load_policy("exported/policy.onnx")
        policy = podrace.load_policy("127.0.0.1:50051", tournament="latest")

    Args:
        source: An ONNX file that `podrace export` wrote, or its folder; with `tournament`, the address of an
            orchestrator.
        tournament: Id of a tournament, a unique prefix of one, or `latest`: its champion is loaded, and compared with
            the test vectors of its checkpoint.
        agent: With `tournament`, name of an agent of the environment, if agents have separate parameters.
        threads: Threads that compute.

    Raises:
        NotFound: There is no such file or tournament, or the tournament has no candidate yet.
        FailedPrecondition: The file cannot be read.
        DataLoss: What was read is damaged, or does not act as its test vectors say.
        Unimplemented: ONNX Runtime is not installed.
        PodraceError: The mesh does not answer, or refuses the caller.
    """
    if tournament is not None:
        address = str(source)
        # In another thread, so that it also works where an event loop is running, as in a notebook.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, fetch_policy(address, tournament, agent=agent, threads=threads)).result()
    path = Path(source)
    path = path / POLICY_FILE if path.is_dir() else path
    try:
        return Policy(path.read_bytes(), threads=threads)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file; `podrace export TOURNAMENT` writes one") from None
    except OSError as error:
        raise FailedPrecondition(f"{path} cannot be read: {error.strerror}") from None
    except DataLoss as error:
        raise DataLoss(f"{path} is not a policy that `podrace export --format onnx` wrote: {error.message}") from None


async def fetch_policy(address: str, tournament: str, *, agent: str = "", threads: int = 1) -> Policy:
    """Loads the champion of a tournament from a mesh; arguments and errors are those of `load_policy`."""
    async with Client(address) as client:
        known = {found.tournament_id: found for found in await client.list_tournaments()}
        found = known[resolve.resolve_tournament(tournament, list(known), where=address)]
        digests = [member.manifest_digest for member in await client.get_champion_members(found)]
    return await fetch_candidates(found, digests, agent=agent, threads=threads)


async def fetch_candidates(
    tournament: Tournament, digests: Sequence[str], *, agent: str = "", threads: int = 1
) -> Policy:
    """Loads the policies of candidates from the leaderboard of their tournament; several act together.

    Args:
        tournament: Their tournament.
        digests: Digests of their manifests, one or more.
        agent: Name of an agent of the environment, if agents have separate parameters; see `of_agent`.
        threads: Threads that compute.

    Raises:
        PodraceError: As `load_policy`.
    """
    async with CheckpointFetcher(tournament.leaderboard_address, tournament.tournament_id) as fetcher:
        fetched = [of_agent(await fetcher.fetch(digest), agent) for digest in digests]
    return policy_of(fetched, threads=threads)


def policy_of(checkpoints: Sequence[FetchedCheckpoint], *, threads: int = 1) -> Policy:
    """Builds a policy, or an ensemble, from checkpoints; raises as `checked_onnx_file`."""
    return Policy(checked_onnx_file(checkpoints), threads=threads)


def checked_onnx_file(
    checkpoints: Sequence[FetchedCheckpoint], networks: Mapping[str, Nodes | None] | None = None
) -> bytes:
    """Returns the ONNX file of a policy, or of an ensemble; each checkpoint is compared with its test vectors.

    Args:
        checkpoints: Of the policy, or of the members.
        networks: Networks of users, by the digest of the manifest; a policy whose network is missing is refused.

    Raises:
        FailedPrecondition: A checkpoint does not describe its policy.
        PodraceError: As `load_policy`.
    """
    for one in checkpoints:
        vectors_part = described(one).test_vectors_part
        if vectors_part in one.parts:
            Policy(onnx_file([one], networks)).check(read_tensors(one.parts[vectors_part]))
    return onnx_file(checkpoints, networks)


def onnx_file(checkpoints: Sequence[FetchedCheckpoint], networks: Mapping[str, Nodes | None] | None = None) -> bytes:
    """Returns the ONNX file of a policy, or of an ensemble; raises as `checked_onnx_file`."""
    members, facts = [], []
    for one in checkpoints:
        description, manifest = described(one), one.manifest
        if description.part not in one.parts:
            raise NotFound(f"checkpoint {one.manifest_digest[:12]} has no part {description.part!r}")
        tensors = read_tensors(one.parts[description.part])
        parameters = {name: tensors[name].tolist() for name in HEAD_PARAMETERS if name in tensors}
        members.append(Member(description, tensors, (networks or {}).get(one.manifest_digest)))
        facts.append(
            MemberFacts(
                one.manifest_digest,
                manifest.tournament_id,
                manifest.agent_id,
                manifest.algorithm,
                description,
                parameters,
            )
        )
    return build(members, as_metadata(facts))


def described(checkpoint: FetchedCheckpoint) -> PolicyDescription:
    """Returns the description of the policy of a checkpoint.

    Raises:
        FailedPrecondition: There is none, because podrace 0.1.0 published it.
        InvalidArgument: There are several, because agents have separate parameters; see `of_agent`.
    """
    checkpoint = of_agent(checkpoint)
    if AGENT not in checkpoint.manifest.policies:
        raise FailedPrecondition(
            f"checkpoint {checkpoint.manifest_digest[:12]} does not describe its policy, because an earlier version of"
            " podrace published it: train a new agent that starts from it (evolution.ancestor_agent_id)"
        )
    return checkpoint.manifest.policies[AGENT]
