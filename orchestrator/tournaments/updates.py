"""Applies an update to a tournament: only the fields of its mask, and only to the version that the caller read."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256

from orchestrator.decisions.update_summary import CHANGEABLE
from podrace.config import unknown
from podrace.errors import Aborted, FieldViolation, InvalidArgument
from podrace.listing.filters import LABELS
from podrace.listing.labels import check_labels
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ETAG_DIGITS = 16


def etag_of(spec: TournamentSpec, labels: Mapping[str, str]) -> str:
    """Returns a short string that changes whenever a value changes that UpdateTournament can change."""
    parts = [getattr(spec, section).SerializeToString(deterministic=True) for section in CHANGEABLE]
    if labels:
        parts.append(json.dumps(labels, sort_keys=True).encode())
    return sha256(b"\0".join(parts)).hexdigest()[:ETAG_DIGITS]


def check_etag(spec: TournamentSpec, labels: Mapping[str, str], etag: str) -> None:
    """Refuses an update of another version than the caller has read.

    Args:
        spec: The specification as it is.
        labels: The labels as they are.
        etag: What the caller read; empty: it does not matter.

    Raises:
        Aborted: The specification has changed since.
    """
    current = etag_of(spec, labels)
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


def changed_labels(labels: Mapping[str, str], request: pb.UpdateTournamentRequest) -> dict[str, str]:
    """Returns the labels after a request, by the rules of its mask.

    Raises:
        InvalidArgument: They are not allowed, or too many.
    """
    paths, given = list(request.update_mask.paths), dict(request.labels)
    if LABELS in paths:
        changed = given
    elif not paths:
        changed = {**labels, **given}
    else:
        named = {path.removeprefix(f"{LABELS}.") for path in paths if path.startswith(f"{LABELS}.")}
        kept = {key: value for key, value in labels.items() if key not in named}
        changed = kept | {key: value for key, value in given.items() if key in named}
    check_labels(changed)
    return dict(sorted(changed.items()))


def changes_specification(request: pb.UpdateTournamentRequest) -> bool:
    """Whether a request may change more than labels."""
    paths = request.update_mask.paths
    if paths:
        return not all(_is_label(path) for path in paths)
    return request.HasField("pool") or request.HasField("objective") or not request.labels


def _is_label(path: str) -> bool:
    return path == LABELS or path.startswith(f"{LABELS}.")


def _fields(request: pb.UpdateTournamentRequest) -> Iterator[tuple[str, str]]:
    """Yields section and name of each field of the mask; raises InvalidArgument with all paths that are wrong."""
    known = [
        f"{section}.{field.name}" for section in CHANGEABLE for field in getattr(request, section).DESCRIPTOR.fields
    ]
    paths = [path for path in request.update_mask.paths if not _is_label(path)]
    wrong = [path for path in paths if path not in known and path not in CHANGEABLE]
    if wrong:
        names = [*known, f"{LABELS}.KEY"]
        found = [FieldViolation("update_mask", unknown("update_mask", "path", path, names)) for path in wrong]
        raise InvalidArgument("; ".join(one.problem for one in found), violations=found)
    for path in known:
        section, _, name = path.partition(".")
        if path in paths or section in paths:
            yield section, name
