"""A one-node SLURM on this machine, without accounting, from Debian's packages: for tests of the cluster launchers.

All of its state, keys and logs are in one folder. Needs root, slurmctld, slurmd, slurm-client and munge.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from processes import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "munged")


def missing() -> str | None:
    """Why there can be no cluster here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    return None if os.geteuid() == 0 else "SLURM's daemons are started as root"


@contextmanager
def one_node_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons, wait until the node is idle, and give the environment in which sbatch finds them."""
    folder.chmod(0o755)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(_conf(folder))
    environment = {"SLURM_CONF": str(conf)}
    munge = [f"--key-file={key}", f"--socket={folder}/munge/socket", f"--pid-file={folder}/munge/pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge/seed"]
    with ExitStack() as daemons:
        daemons.enter_context(_daemon(folder, ["munged", "--foreground", "--force", *munge]))
        wait_until((folder / "munge" / "socket").exists)
        daemons.enter_context(_daemon(folder, ["slurmctld", "-D", "-f", str(conf)]))
        daemons.enter_context(_daemon(folder, ["slurmd", "-D", "-f", str(conf)]))
        _wait_until_idle(folder, environment)
        try:
            yield environment
        finally:
            # What a failed test left running would outlive the daemons.
            subprocess.run(["scancel", "--me"], env={**os.environ, **environment}, check=False)
            _wait_until_idle(folder, environment)


def _conf(folder: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    control, node = _free_ports(2)
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return f"""ClusterName=memexp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
KillWait=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory={memory_mib - 512} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


@contextmanager
def _daemon(folder: Path, command: list[str]) -> Iterator[None]:
    with open(folder / f"{command[0]}.out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_idle(folder: Path, environment: dict[str, str], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    command = ["sinfo", "--noheader", "--format=%T"]
    while True:
        said = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if said.stdout.strip() == "idle":
            return
        if time.monotonic() > until:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
            raise RuntimeError(f"the node is {said.stdout.strip() or said.stderr.strip()} and not idle\n{logs}")
        time.sleep(0.5)
