"""Is process 1 of a container: forwards signals to the program, reaps orphans, and hides the environment.

The environment that a container starts with is that of its process 1, and the token of a pod is in it. Other init
programs leave it readable for all processes of their user, a user's evaluation function in the container of a leader
included.
"""

import os
import signal
import sys

from podrace.processes.user_ids import hide_memory, show_memory

FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
"""Signals that the program gets, with the processes of its group."""


def run_below_process_1() -> None:
    """Returns in a child process if this process is process 1, which then never returns; else returns at once.

    Call it before threads exist. The container stops with the exit code of the child, or 128 plus the signal that
    killed it.
    """
    if os.getpid() == 1:
        _fork()


def _fork() -> None:
    hide_memory()
    # Signals that arrive before the child is in its group wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        # Planes on GPUs read memory of this process; a leader with user code in its container hides its memory itself.
        show_memory()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    _supervise(child)


def _supervise(child: int) -> None:
    def forward(number: int, _frame: object) -> None:
        try:
            os.killpg(child, number)
        except ProcessLookupError:
            # It has not made its group yet, or has exited.
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while True:
        ended, status = os.wait()
        if ended == child:
            sys.stderr.flush()
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
