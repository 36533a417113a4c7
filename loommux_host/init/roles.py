"""The two processes that guard a kernel: what they do and in which order.

``owner (the host) -> guard -> init -> kernel -> what cells start``. Both are subreapers:
daemons, double forks and processes in sessions of their own stay descendants, whatever
their environment. The init ends them all when the kernel ends, when the owner asks, and
when the owner or the guard dies; the guard does so when the init is killed or stopped.
Only the death of owner, guard and init at once lets anything get away.

The truth about the owner is its socket on descriptor 0, which the system closes however
it dies (a parent-death signal is bound to the *thread* that started us). The kernel has a
parent-death signal towards the init, which has one thread only.

They say, a line each: ``started KERNEL_PID INIT_PID``, ``exit CODE RSS AT`` (a negative
code is a signal; bytes; seconds since the epoch), ``ended COUNT RSS LEFT...`` (processes
ended beside the kernel, and pids that they were not allowed to end). They are told ``end``
and ``signal NUMBER``. After ``ended`` the guard lingers until it is told to ``leave``,
because when the owner dies it removes the kernel's files.

They begin in one of two ways. `start` runs `main`, in an interpreter of their own, when
there is no keeper. A keeper forks them (`keeper.forked_child`): then it is the guard's parent,
what it forks is still in memory, and its death is one more reason to end everything.

Standard library only, and little of it. Knows nothing of cells, Jupyter or records.
"""

from __future__ import annotations

import os
import sys
import time

from loommux_host.init.descendants import (
    Ending,
    enter_groups,
    remove_files,
    remove_group,
    shortages_of,
    system_shortages,
)
from loommux_host.init.poll_loop import OWNER, Owner, Watch, open_parent
from loommux_host.init.system_calls import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    PR_SET_PDEATHSIG,
    close_process,
    open_process,
    prctl,
    signal,
)

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: A guard whose init does not finish (it is stopped, say) ends everything itself.
TAKEOVER_SECONDS = 2.5
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGTTIN", "SIGTTOU")


class Job:
    """What is to be guarded. `values` are those of the command line, `command` is the kernel's.

    `environment` is the kernel's when it is not ours. `enter` makes the forked process the
    kernel without a command, by an exception that ends in its first frame.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        command: list[str],
        environment: Mapping[str, str] | None = None,
        enter: Callable[[Job], None] | None = None,
    ) -> None:
        self.command, self.environment, self.enter = command, environment, enter
        self.owner = int(values["owner"])
        self.workspace = values["cwd"]
        self.kernel_id = values["id"]
        #: Descriptors for the kernel alone, and one that is only held open.
        self.passed = [int(fd) for fd in values["pass"].split(",") if fd]
        self.held = [int(fd) for fd in values["hold"].split(",") if fd]
        self.oom_raise = int(values["oom"])
        self.kernel_directory = values["dir"]
        self.connection_file = values["connection"]
        #: A control group to make for the kernel; empty where that may not be done.
        self.group = values["group"]
        #: Group, file, value and whether it is required, of each limit (`processes.resource_limits`).
        self.limits = [tuple(line.split("\t")) for line in values.get("limits", "").split("\n") if line]

    @property
    def groups(self) -> list[str]:
        """Every control group of the kernel's own, each once."""
        return list(dict.fromkeys(group for group in (self.group, *(limit[0] for limit in self.limits)) if group))


def main() -> None:
    """Become the guard of what the command line says."""
    split = sys.argv.index("--")
    values = {key: value for key, _, value in (a.partition("=") for a in sys.argv[1:split])}
    job = Job(values, sys.argv[split + 1 :])
    parent = open_parent(job.owner)
    guard(job, Owner([parent], parent))


def guard(job: Job, owner: Owner) -> None:
    """Be the guard, fork the init. Returns in both, when they have nothing more to do."""
    close_process()  # the init too, which is forked
    os.chdir("/")
    for fd in job.held:
        os.set_inheritable(fd, False)
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    become_subreaper()
    leash, leash_end = os.pipe()
    kernel_pid, kernel_pid_end = os.pipe()
    pid = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(leash_end)
        os.setsid()  # what is sent to the guard's group does not reach the init
        become_subreaper()
        run_init(job, Watch(owner, leash), kernel_pid_end)
        if os.getppid() == pid:
            os.kill(pid, signal.SIGCONT)  # one that somebody stopped would stay for ever
    else:
        for fd in (leash, kernel_pid_end, *job.passed):
            os.close(fd)
        run_guard(job, Watch(owner), child, leash_end, kernel_pid)


def run_init(job: Job, watch: Watch, kernel_pid_end: int) -> None:
    """Start the kernel, wait for a reason to end, end everything."""
    shortages = system_shortages()
    watch.expect(kernel=start_kernel(job))
    os.write(kernel_pid_end, b"%d" % watch.kernel)
    for problem in enter_groups(job.groups, job.limits, watch.kernel):
        report(f"unlimited {problem}")
    report(f"started {watch.kernel} {os.getpid()}")
    watch.listen()
    while watch.kernel not in watch.exits and not watch.over:
        watch.step()
    if watch.exits.get(watch.kernel, (0, 0))[0] == -signal.SIGKILL and not watch.over:
        report_shortage(job, shortages)
    finish(job, watch)


def report_shortage(job: Job, before: int) -> None:
    """Whether a kernel that was killed was killed for memory: its own limit's, or the system's."""
    own = shortages_of(job.groups)
    if own or system_shortages() > before:
        report(f"shortage {'limit' if own and job.limits else 'system'}")


def run_guard(job: Job, watch: Watch, init: int, leash_end: int, kernel_pid: int) -> None:
    """Wait for the init, take over when it failed, then linger until the owner lets go."""
    watch.expect(init=init, kernel=int(os.read(kernel_pid, 32) or 0))
    deadline = None
    while init not in watch.exits:
        watch.step(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if watch.over and deadline is None:
            deadline = time.monotonic() + TAKEOVER_SECONDS
            os.close(leash_end)
        elif deadline is not None and time.monotonic() > deadline and init not in watch.exits:
            os.kill(init, signal.SIGKILL)
    if watch.exits[init][0] != 0:
        finish(job, watch)
    watch.listen()
    while not watch.released:
        watch.step()
    if watch.owner_is_dead():
        remove_files(job.kernel_directory, job.connection_file)


def finish(job: Job, watch: Watch) -> None:
    """The end of everything, told; the files too when nobody else is left to remove them."""
    if told := watch.kernel in watch.exits:
        report_exit(watch)
    ending = Ending(watch, job.kernel_id, job.group)
    ending.run()
    if not told and watch.kernel in watch.exits:
        report_exit(watch)
    for group in job.groups:
        remove_group(group)
    left = "".join(f" {pid}" for pid in sorted(ending.left()))
    report(f"ended {len(ending.ended - {watch.kernel})} {watch.max_rss}{left}")
    if watch.owner_is_dead():
        remove_files(job.kernel_directory, job.connection_file)


def report(line: str) -> None:
    """Tell the owner, if there still is one."""
    try:
        os.write(OWNER, line.encode() + b"\n")
    except OSError:
        return


def report_exit(watch: Watch) -> None:
    code, at = watch.exits[watch.kernel]
    report(f"exit {code} {watch.max_rss} {at!r}")


# -- the kernel's process ----------------------------------------------------------


def start_kernel(job: Job) -> int:
    """Fork and run the kernel's command; returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        for fd in job.passed:
            os.close(fd)
        return pid
    try:
        prepare_kernel(job, parent)
        if job.enter is None:
            os.execve(job.command[0], job.command, os.environ if job.environment is None else job.environment)
    except Exception as error:
        os.write(2, f"cannot run {job.command[0]} in {job.workspace}: {error}\n".encode())
        os._exit(127)
    assert job.enter is not None
    job.enter(job)
    os._exit(127)


def prepare_kernel(job: Job, parent: int) -> None:
    """What must be true of the kernel's process before its first instruction."""
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(127)
    os.setsid()  # no controlling terminal
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job.workspace)
    open_process()  # also so that the next line may write there
    raise_oom_score(job.oom_raise)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            continue  # the C library keeps some for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def raise_oom_score(by: int) -> None:
    """Let the system end a kernel, and what it starts, before its server."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    except FileNotFoundError:
        return  # not Linux
    score = min(1000, int(os.read(fd, 16)) + by)
    os.write(fd, b"%d" % score)
    os.close(fd)


def become_subreaper() -> None:
    """Have orphaned descendants as children. The name keeps a cell's ``pkill python`` off."""
    if LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_NAME, b"loommux-init")
