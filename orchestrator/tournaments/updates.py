"""Applies an update to a specification: only the fields of its mask, and only to the version that the caller read."""

from collections.abc import Iterator
from hashlib import sha256

from orchestrator.decisions.update_summary import CHANGEABLE
from podrace.config import unknown
from podrace.errors import Aborted, FieldViolation, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ETAG_DIGITS = 16


def etag_of(spec: TournamentSpec) -> str:
    """Returns a short text that differs whenever a value differs that UpdateTournament can change."""
    parts = (getattr(spec, section).SerializeToString(deterministic=True) for section in CHANGEABLE)
    return sha256(b"\0".join(parts)).hexdigest()[:ETAG_DIGITS]


def check_etag(spec: TournamentSpec, etag: str) -> None:
    """Refuses an update of another version than the caller has read.

    Args:
        spec: The specification as it is.
        etag: What the caller read; empty: it does not matter.

    Raises:
        Aborted: The specification has changed since.
    """
    current = etag_of(spec)
    if etag and etag != current:
        raise Aborted(
            f"etag {etag!r}: the tournament was changed since it was read; read it again and repeat the update",
            metadata={"etag": current},
        )


def updated(spec: TournamentSpec, request: pb.UpdateTournamentRequest) -> TournamentSpec:
    """Returns a copy of a specification with the changes of a request.

    Without a mask the fields that are set are changed. With a mask the fields that it names are changed, and removed if
    the request does not set them.

    Raises:
        InvalidArgument: The mask names what cannot be changed.
    """
    changed = TournamentSpec()
    changed.CopyFrom(spec)
    if not request.update_mask.paths:
        for section in CHANGEABLE:
            getattr(changed, section).MergeFrom(getattr(request, section))
        return changed
    fields = list(_fields(request))
    for section, name in fields:
        given, message = getattr(request, section), getattr(changed, section)
        message.ClearField(name)
        if given.HasField(name):
            part = type(given)()
            part.CopyFrom(given)
            for other, _ in given.ListFields():
                if other.name != name:
                    part.ClearField(other.name)
            message.MergeFrom(part)
    return changed


def _fields(request: pb.UpdateTournamentRequest) -> Iterator[tuple[str, str]]:
    """Yields section and name of each field of the mask; raises InvalidArgument with all paths that are wrong."""
    known = [
        f"{section}.{field.name}" for section in CHANGEABLE for field in getattr(request, section).DESCRIPTOR.fields
    ]
    paths = list(request.update_mask.paths)
    wrong = [path for path in paths if path not in known and path not in CHANGEABLE]
    if wrong:
        found = [FieldViolation("update_mask", unknown("update_mask", "path", path, known)) for path in wrong]
        raise InvalidArgument("; ".join(one.problem for one in found), violations=found)
    for path in known:
        section, _, name = path.partition(".")
        if path in paths or section in paths:
            yield section, name
