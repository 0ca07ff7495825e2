"""Creates the ConfigMap of each tournament, which owns its Jobs, and deletes those of tournaments without Jobs."""

import threading
import time
from collections.abc import Callable, Collection

from orchestrator.launchers.kubernetes.api_client import ApiClient, Object
from orchestrator.launchers.kubernetes.jobs import owner_name, owner_of
from podrace.errors import Unavailable

CONFIG_MAPS = ("v1", "configmaps")


class OwnerConfigMaps:
    """ConfigMaps of tournaments.

    owners = OwnerConfigMaps(cluster, "podrace", keep_seconds=300.0)
    owner = owners.find_or_create("race")
    owners.delete_unused(names_of_owners)
    """

    def __init__(
        self,
        cluster: Callable[[], ApiClient],
        scope: str,
        *,
        keep_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates and deletes nothing yet.

        Args:
            cluster: Returns the client of the API server.
            scope: Label of the objects of this orchestrator.
            keep_seconds: How long a ConfigMap without Jobs is kept.
            monotonic: Clock.
        """
        self._cluster, self._scope, self._keep_seconds, self._monotonic = cluster, scope, keep_seconds, monotonic
        # Monotonic times since which ConfigMaps have had no Job, by name.
        self._unused: dict[str, float] = {}
        # Pods are started in other threads: a ConfigMap that one of them is about to find is not deleted.
        self._deciding = threading.Lock()

    def find_or_create(self, tournament_id: str) -> Object:
        """Returns the ConfigMap of a tournament, and creates it if needed; blocks."""
        cluster = self._cluster()
        name = owner_name(self._scope, tournament_id)
        with self._deciding:
            self._unused.pop(name, None)
        found = cluster.get(*CONFIG_MAPS, name) or cluster.create(*CONFIG_MAPS, owner_of(self._scope, tournament_id))
        found = found or cluster.get(*CONFIG_MAPS, name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise Unavailable(f"ConfigMap {name!r} is being deleted; if this repeats, find out what deletes it")
        return found

    def delete_unused(self, used: Collection[str], list_used: Callable[[], Collection[str]]) -> None:
        """Deletes the ConfigMaps of tournaments that have had no Job for a while; blocks.

        Args:
            used: Names of the ConfigMaps that had a Job when Jobs were listed last.
            list_used: Lists the Jobs again, because another leader may have started Jobs since the last list.

        A Job that another leader starts even later stays: it is orphaned, instead of deleted with the ConfigMap.
        """
        cluster, now = self._cluster(), self._monotonic()
        labels = f"podrace/scope={self._scope},app.kubernetes.io/component=tournament"
        found = {owner["metadata"]["name"]: owner for owner in cluster.list(*CONFIG_MAPS, labels=labels)}
        with self._deciding:
            self._unused = {name: self._unused.get(name, now) for name in found if name not in used}
            due = [name for name, since in self._unused.items() if now - since >= self._keep_seconds]
        used = list_used() if due else ()
        for name in due:
            with self._deciding:
                if name in self._unused and name not in used:
                    cluster.delete(*CONFIG_MAPS, found[name], propagation="Orphan")
                self._unused.pop(name, None)
