"""A database that was restored from a backup learns from running pods what happened since, and restarts no agent."""

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decisions.restoration import EPOCHS
from podrace.errors import FailedPrecondition, NotFound
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class Backup:
    """The database of this test, as it was when the copy was made."""

    def __init__(self, folder: Path) -> None:
        self._file, self._copy = folder / "orchestrator.sqlite", folder / "copy.sqlite"

    def make(self) -> None:
        shutil.copy(self._file, self._copy)

    def restore(self, epoch: int = 1) -> None:
        for leftover in self._file.parent.glob("orchestrator.sqlite*"):
            leftover.unlink()
        shutil.copy(self._copy, self._file)
        with contextlib.closing(sqlite3.connect(self._file)) as opened:
            opened.execute("UPDATE identity SET restored_epoch = ?", (epoch,))
            opened.commit()


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    return Backup(tmp_path)


async def test_a_pod_keeps_an_agent_that_was_created_after_the_backup(
    open_mesh: Any, spec: Any, backup: Backup
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        launcher = mesh.launcher
    backup.make()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        works = {pod: await mesh.assigned(pod) for pod in (f"{name}-p0", f"{name}-p1")}
    backup.restore()
    async with open_mesh(launcher=launcher) as mesh:
        for steps, (pod, work) in enumerate(works.items(), start=100):
            answer = await mesh.renew(work, pod, environment_steps=steps)
            assert (answer.directive, answer.reason) == (pb.DIRECTIVE_CONTINUE, "")
        await mesh.cycle()
        assert {pod.agent_id for pod in await mesh.pods(name)} == {work.train.agent_id for work in works.values()}
        assert (await mesh.kinds(name)).count("lease_adopted") == 2
        assert "pod_draining" not in await mesh.kinds(name)
        await mesh.complete(works[f"{name}-p0"], pod_id=f"{name}-p0")
        assert (await mesh.assigned(f"{name}-p0")).train.number == 2
        assert (await mesh.get(name)).environment_steps == 201


async def test_an_agent_that_was_assigned_again_after_the_backup_stays_with_its_pod(
    open_mesh: Any, spec: Any, backup: Backup
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        first, launcher = await mesh.assigned(f"{name}-p0"), mesh.launcher
    backup.make()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.complete(first, pb.OUTCOME_DRAINED)
        second = await mesh.assigned(f"{name}-p1")
        assert second.lease_epoch == first.lease_epoch + 1
    backup.restore()
    async with open_mesh(launcher=launcher) as mesh:
        assert (await mesh.renew(second, f"{name}-p1")).directive == pb.DIRECTIVE_CONTINUE
        with pytest.raises(FailedPrecondition, match="was assigned again"):
            await mesh.renew(first, f"{name}-p0")


async def test_work_that_is_assigned_after_the_restoration_gets_an_epoch_that_no_pod_ever_had(
    open_mesh: Any, spec: Any, backup: Backup
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        launcher = mesh.launcher
    backup.make()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        lost = await mesh.assigned(f"{name}-p0")
    backup.restore(epoch=3)
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        work = await mesh.assigned(f"{name}-p1")
        assert (work.train.agent_id, work.lease_epoch) == (lost.train.agent_id, 3 * EPOCHS + 1)
        with pytest.raises(FailedPrecondition, match="was assigned again"):
            await mesh.renew(lost, f"{name}-p0")


async def test_an_agent_that_finished_after_the_backup_can_be_completed_again(
    open_mesh: Any, spec: Any, backup: Backup
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        launcher = mesh.launcher
    backup.make()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        work = await mesh.assigned(f"{name}-p0")
    backup.restore()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.complete(work, pod_id=f"{name}-p0")
        assert "agent_finished" in await mesh.kinds(name)


async def test_a_database_that_was_not_restored_adopts_nothing(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        with pytest.raises(NotFound):
            await mesh.renew(pb.Assignment(assignment_id=f"{name}-a5.1", lease_epoch=1), f"{name}-p0")


@pytest.mark.parametrize("assignment", ["-a999999999.1", "-e7.1", "-a5.2000000"])
async def test_an_implausible_report_is_not_adopted(open_mesh: Any, spec: Any, backup: Backup, assignment: str) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
    backup.make()
    backup.restore()
    async with open_mesh() as mesh:
        epoch = int(assignment.partition(".")[2])
        with pytest.raises(NotFound):
            await mesh.renew(pb.Assignment(assignment_id=name + assignment, lease_epoch=epoch), f"{name}-p0")
        assert "lease_adopted" not in await mesh.kinds(name)
