"""Private PostgreSQL server for tests and benchmarks; its data directory is temporary."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.errors import BenchError
from shoal.wait import wait_until
from tests.support.servers.programs import find_program
from tests.support.servers.running import free_port, is_taken

START_S = 120.0
STOP_S = 20.0
# It refuses to run as root: then as one of these.
OTHERS = ("postgres", "nobody")
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}


@contextmanager
def postgres(*, durable: bool = True) -> Iterator[str]:
    """A server on 127.0.0.1 with an empty cluster; gives its URL, to which a database's name is added.

    BenchError if there is none. Without `durable` it does not wait for the disk, which suits tests.
    """
    program = _server()
    home = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
    try:
        user = _other_user(home)
        locale = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        data = home / "data"
        initdb = str(program.with_name("initdb"))
        command = [initdb, "--auth=trust", "--username=shoal", "--no-sync", "-E", "UTF8", "-D", str(data)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=START_S, env=locale, cwd=home, check=False, **user
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchError(f"postgres: {initdb} cannot be run ({error})") from error
        if done.returncode != 0:
            raise BenchError(f"postgres: initdb ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")

        def start() -> tuple[int, "subprocess.Popen[bytes]"]:
            port = free_port()
            settings = {"port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(home)}
            options = [f"--{name}={value}" for name, value in (settings | ({} if durable else QUICK)).items()]
            command = [str(program), "-D", str(data), *options]
            with (home / "log").open("wb") as log:
                server: subprocess.Popen[bytes] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=locale, cwd=home, **user
                )
            try:
                _wait(server, port, home / "log")
            except BaseException:
                server.kill()
                server.wait()
                raise
            return port, server

        try:
            port, server = start()
        except BenchError as error:
            if not is_taken(error):
                raise
            port, server = start()
        try:
            yield f"postgresql://shoal@127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)  # at once, without waiting for those who are connected
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _server() -> Path:
    """The server's program, where its companions are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    program = found[-1] if found else find_program("postgres").resolve()
    if not program.with_name("initdb").exists():
        raise BenchError(f"postgres: {program} has no initdb beside it; install the server with its own package")
    return program


def _other_user(home: Path) -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    for name in OTHERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(home, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise BenchError(f"postgres: does not run as root, and there is no user {' or '.join(OTHERS)} here")


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    def is_ready() -> bool:
        if server.poll() is not None:
            raise BenchError(f"postgres: ended with {server.returncode}: {log.read_text(errors='replace')[-300:]}")
        return "ready to accept connections" in log.read_text(errors="replace")

    late = f"postgres: did not start within {START_S:.0f} s"
    wait_until(is_ready, START_S, late, pause_s=0.02, error=BenchError)
    socket.create_connection(("127.0.0.1", port), timeout=START_S).close()
