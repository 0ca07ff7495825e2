"""Decides which checkpoints of a tournament are deleted so that the others fit into its quota. Pure.

Rules:
- Checkpoints that an agent may start from, or that may become champion, are protected: they are never deleted.
- Of the others, a group is deleted before the next one begins, and in a group the first checkpoint goes first.
- A file that several checkpoints have in common counts once, and is deleted with the last of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Files = Mapping[str, int]
"""The files of one checkpoint, its manifest included: sizes in bytes by digest."""


@dataclass(frozen=True)
class Group:
    """Checkpoints that may be deleted."""

    what: str
    """What they are, for people, in the plural."""
    checkpoints: Mapping[str, Files]
    """Their files by the digest of the manifest, in the order in which they are deleted."""


@dataclass(frozen=True)
class Cut:
    """What a quota deletes."""

    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """What each checkpoint is that is deleted, by the digest of its manifest."""
    files: Files = field(default_factory=dict)
    """The files that no other checkpoint has, manifests included."""
    left_bytes: int = 0
    """Bytes of the files that are left. They may exceed the quota, if the protected checkpoints do."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of checkpoints, by what they are."""
        return Counter(self.checkpoints.values())

    @property
    def deleted_bytes(self) -> int:
        """Bytes of the files."""
        return sum(self.files.values())

    def limited_to(self, deleted: Collection[str]) -> "Cut":
        """Returns the part of it whose files were deleted; others may still be too young.

        Args:
            deleted: Digests of the files.
        """
        return Cut(
            {name: what for name, what in self.checkpoints.items() if name in deleted},
            {name: size for name, size in self.files.items() if name in deleted},
            self.left_bytes,
        )


def cut_to(protected: Iterable[Files], groups: Sequence[Group], quota_bytes: int) -> Cut:
    """Returns what is deleted so that what is left has at most `quota_bytes`, as far as that is possible.

    Args:
        protected: Files of which nothing is deleted.
        groups: Checkpoints that may be deleted, the least important group first.
        quota_bytes: Most bytes of all files together; 0: no limit.
    """
    kept, deletable = list(protected), [files for group in groups for files in group.checkpoints.values()]
    sizes = {name: size for files in (*kept, *deletable) for name, size in files.items()}
    users = Counter(name for files in (*kept, *deletable) for name in files)
    left = sum(sizes.values())
    checkpoints: dict[str, str] = {}
    for group in groups:
        for manifest_digest, files in group.checkpoints.items():
            if not quota_bytes or left <= quota_bytes:
                break
            users.subtract(files.keys())
            left -= sum(sizes[name] for name in files if not users[name])
            checkpoints[manifest_digest] = group.what
    return Cut(checkpoints, {name: sizes[name] for name, count in users.items() if not count}, left)
