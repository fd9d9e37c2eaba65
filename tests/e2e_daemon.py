#!/usr/bin/env python3
"""The daemon from outside: starting, the path of its socket, dying listeners, bad bytes, signals.

Speaks the raw wire (nng's ipc framing and the header of client/PROTOCOL.md) so that it can do what no
library would. Each case starts a daemon of its own. Waits are for something to become so, bounded by
HANG_S, which only a fault reaches.

  e2e_daemon.py [CASE]...     the named cases, or all
"""
import fcntl
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("KVT_BUILD_DIR", "build")
DAEMON = os.path.join(BUILD, "daemon", "kvtrunkd")
HANG_S = 60
MAX_BYTES = 8 << 20
OK, EPROTO, EDENIED, ESTALE, ESESSION = 0, 6, 8, 9, 21
HELLO, STATUS, TREE, GOODBYE, PING = 1, 10, 11, 12, 13


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def until(condition, what):
    """Returns the first true value of condition()."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"after {HANG_S} s still not so: {what}")


# ---------------------------------------------------------------------------------------- the wire


class Wire:
    """One connection: nng's greeting, then requests and replies."""

    def __init__(self, path, timeout_s=HANG_S):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.number = 0
        self.boot_id = 0
        try:
            self.socket.connect(path)
            self.socket.sendall(b"\0SP\0\0\x30\0\0")
            check(self.read(8) == b"\0SP\0\0\x31\0\0", "not a REP socket")
        except BaseException:
            self.socket.close()
            raise

    def read(self, n):
        data = b""
        while len(data) < n:
            part = self.socket.recv(n - len(data))
            if not part:
                raise ConnectionError("closed by the daemon")
            data += part
        return data

    def send_frame(self, payload):
        self.socket.sendall(b"\1" + struct.pack(">Q", len(payload)) + payload)

    def send(self, op, body=b"", boot_id=None):
        self.number += 1
        header = struct.pack("<IBBHIIQQ", 0x5754564B, 2, 1, op, len(body), 0, self.number,
                             self.boot_id if boot_id is None else boot_id)
        self.send_frame(struct.pack(">I", 0x80000000 | self.number) + header + body)

    def receive(self):
        kind, length = struct.unpack(">BQ", self.read(9))
        check(kind == 1 and 36 <= length <= MAX_BYTES + 4, "bad frame", kind, length)
        payload = self.read(length)
        fields = struct.unpack("<IBBHIIQQ", payload[4:36])
        check(fields[0] == 0x5754564B and fields[2] == 2, "bad header", fields)
        self.boot_id = fields[7]
        return fields[5], payload[36:]

    def ask(self, op, body=b"", boot_id=None):
        """Returns (status, body) of the reply."""
        self.send(op, body, boot_id)
        return self.receive()

    def hello(self, name="e2e", token=bytes(16)):
        data = name.encode()
        status, body = self.ask(HELLO, token + struct.pack("<IH", os.getpid(), len(data)) + data, 0)
        return status, body[:16] if status == OK else body

    def text(self, op, body=b""):
        status, body = self.ask(op, body)
        check(status == OK, "status", status, body)
        check(struct.unpack("<I", body[:4])[0] == len(body) - 4, "length of the text")
        return body[4:].decode()

    def is_closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self):
        self.socket.close()


# -------------------------------------------------------------------------------------- the daemon


class Daemon:
    running = []

    def __init__(self, folder, *args, ready=True, env=None, path=None):
        self.path = path or os.path.join(folder, "socket")
        self.log_path = os.path.join(folder, "log")
        read_end, write_end = os.pipe()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [DAEMON, "--socket", self.path, "--set", "arena=4MiB", "--ready-fd",
                 str(write_end), *args], stderr=log, pass_fds=[write_end],
                env={**os.environ, **(env or {})})
        os.close(write_end)
        Daemon.running.append(self.process)
        if ready is None: # whoever starts it does not wait
            os.close(read_end)
            return
        self.ready = os.read(read_end, 64) if select.select([read_end], [], [], HANG_S)[0] else None
        os.close(read_end)
        if ready:
            check(self.ready == b"READY\n", "not ready:", self.ready, self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def connect(self):
        wire = Wire(self.path)
        status, _ = wire.hello()
        check(status == OK, "hello:", status)
        return wire

    def status(self, wire=None):
        own = wire or self.connect()
        report = json.loads(own.text(STATUS))
        if not wire:
            own.ask(GOODBYE)
            own.close()
        return report

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(HANG_S)

    def finish(self):
        code = self.stop()
        check(code == 0, "exit code", code, self.log())
        check(not os.path.exists(self.path), "the socket is still there")

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def refused(folder, *args, code, says, path=None, env=None):
    """A start that must be refused, with this exit code and these words in its one line."""
    log = os.path.join(folder, "refused")
    with open(log, "wb") as to:
        command = [DAEMON, *args]
        if path:
            command += ["--socket", path]
        done = subprocess.run(command, stderr=to, stdout=subprocess.DEVNULL, timeout=HANG_S,
                              check=False, env={**os.environ, **(env or {})})
    with open(log, encoding="utf-8", errors="replace") as file:
        text = file.read()
    check(done.returncode == code, "exit code", done.returncode, "expected", code, text)
    for word in says:
        check(word in text, f"{word!r} is missing in", text)
    check(text.startswith("kvtrunkd: "), text)


# ------------------------------------------------------------------------------------------- cases


def case_serves_and_stops(folder):
    d = Daemon(folder)
    wire = d.connect()
    check(wire.ask(PING)[0] == OK, "ping")
    report = d.status(wire)
    check(report["boot_id"] == f"{wire.boot_id:016x}", "boot id", report["boot_id"])
    check(report["pid"] == d.process.pid and report["socket"] == d.path, report)
    check(report["counts"]["sessions"] == 1, report["counts"])
    check(report["counts"]["arena_bytes"] == 4 << 20, report["counts"])
    session = report["sessions_open"][0]
    check(session["name"] == "e2e" and session["pid"] == os.getpid(), session)
    check(session["uid"] == os.getuid() and session["orphaned"] is False, session)
    check(wire.text(TREE, struct.pack("<I", 0)) == "", "an empty tree")
    arena = report["arena_path"]
    check(stat.S_IMODE(os.stat(arena).st_mode) == 0o640, "mode of the arena")
    check(stat.S_IMODE(os.stat(d.path).st_mode) == 0o600, "mode of the socket")
    with open(arena, "rb") as file:
        head = struct.unpack("<IIQQQQQQ", file.read(56))
    check(head[0] == 0x4154564B and head[2] == wire.boot_id, "the arena's header", head)
    check(head[7] == os.path.getsize(arena) and head[6] == 4 << 20, "the arena's size", head)
    d.finish()
    check(wire.is_closed(), "the connection outlives the daemon")
    check(not os.path.exists(arena), "the arena is still there")
    check(os.path.exists(d.path + ".lock"), "the lock file stays")
    check("stopped" in d.log(), d.log())


def case_second_daemon(folder):
    d = Daemon(folder)
    wire = d.connect()
    refused(folder, "--set", "arena=1MiB", path=d.path, code=4,
            says=["another daemon, pid %d" % d.process.pid])
    check(wire.ask(PING)[0] == OK, "the first one serves on")
    d.connect()
    d.finish()


def case_path_is_taken(folder):
    path = os.path.join(folder, "socket")
    with open(path, "w", encoding="ascii") as file:
        file.write("precious")
    refused(folder, path=path, code=4, says=[path, "an ordinary file", "left as it is"])
    with open(path, encoding="ascii") as file:
        check(file.read() == "precious", "the file was touched")
    os.unlink(path)
    os.mkdir(path)
    refused(folder, path=path, code=4, says=["a directory"])
    os.rmdir(path)
    os.symlink("elsewhere", path)
    refused(folder, path=path, code=4, says=["a symbolic link"])
    check(os.readlink(path) == "elsewhere", "the link was touched")
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        refused(folder, path=path, code=4, says=[path, "another program", "left as it is"])
        with socket.socket(socket.AF_UNIX) as somebody:
            somebody.connect(path)
    os.unlink(path)
    with open(path + "~", "w", encoding="ascii") as file:
        file.write("precious")
    refused(folder, "--set", "arena=1MiB", path=path, code=4, says=[path + "~", "an ordinary file"])
    check(os.path.getsize(path + "~") == 8, "the file was touched")
    os.unlink(path + "~")
    with open(path + ".lock", "w", encoding="ascii") as file:
        file.write("a diary\n")
    refused(folder, path=path, code=4, says=["no daemon has written"])
    check(os.path.getsize(path + ".lock") == 8, "the file was touched")
    os.unlink(path + ".lock")
    long_path = "/" + "a" * 106
    refused(folder, path=long_path, code=3, says=["107 bytes", "2 .. 106"])
    refused(folder, path="relative", code=3, says=["no absolute path"])
    for ladder, word in (("i8 > zz", "zz"), ("i4 > i8", "takes no less"), ("i8", "2 to 4 codec sets")):
        refused(folder, "--set", f"ladder={ladder}", path=path, code=3, says=[ladder, word])
    refused(folder, path="/no/such/folder/socket", code=4, says=["No such file"])


def case_stale_socket(folder):
    d = Daemon(folder)
    wire = d.connect()
    arena = d.status(wire)["arena_path"]
    d.stop(signal.SIGKILL)
    check(os.path.exists(d.path) and os.path.exists(arena), "a killed daemon leaves its files")
    again = Daemon(folder)
    check(not os.path.exists(arena), "the arena of the killed one is removed")
    new = again.connect()
    check(new.boot_id != wire.boot_id, "another boot id")
    check(new.ask(STATUS, boot_id=wire.boot_id)[0] == ESTALE, "a request for the earlier start")
    again.finish()
    shortest = Daemon(folder, path="/tmp/" + "k" * 101)
    shortest.connect()
    shortest.finish()
    os.unlink(shortest.path + ".lock")


def case_abandoned_arena(folder):
    folders = [os.path.join(folder, name) for name in ("a", "b", "c")]
    for name in folders:
        os.mkdir(name)
    killed, alive = Daemon(folders[0]), Daemon(folders[1])
    arena, other = (d.status()["arena_path"] for d in (killed, alive))
    half_made = "/dev/shm/kvtrunk-0000000000000000-%016x.arena" % os.getpid()
    with open(half_made, "wb") as file:
        file.write(bytes(4096))
    killed.stop(signal.SIGKILL)
    third = Daemon(folders[2])
    check(not os.path.exists(arena), "the arena of a daemon that was killed is removed by any other")
    check(os.path.exists(other), "the arena of one that lives is not")
    check(os.path.exists(half_made), "nor is one that is being made")
    os.unlink(half_made)
    third.finish()
    alive.finish()


def case_connect_and_close(folder):
    d = Daemon(folder)
    held = d.connect()
    before = d.fds()
    for _ in range(1000):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(d.path)
    check(held.ask(PING)[0] == OK, "who was connected is served on")
    # one who comes right behind is served too, each time, and does not wait at a dead listener
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(d.path)
        wire = Wire(d.path)
        check(wire.ask(PING)[0] == OK, "ping")
        wire.close()
    until(lambda: d.fds() < before + 20, "the descriptors are closed")
    check(d.status(held)["counts"]["sessions"] == 1, "sessions")
    d.finish()


def case_socket_removed(folder):
    d = Daemon(folder)
    held = d.connect()
    os.unlink(d.path)
    until(lambda: os.path.exists(d.path), "the socket is back")
    d.connect().close()
    # something of somebody else at the path is not overwritten, and does no harm to the rest
    os.unlink(d.path)
    with open(d.path, "w", encoding="ascii") as file:
        file.write("precious")
    until(lambda: "no other can be put there" in d.log(), "the daemon says so")
    with open(d.path, encoding="ascii") as file:
        check(file.read() == "precious", "the file was touched")
    check(held.ask(PING)[0] == OK, "who was connected is served on")
    os.unlink(d.path)
    until(lambda: os.path.exists(d.path), "the socket is back")
    d.connect().close()
    with open(d.path + ".moved", "w", encoding="ascii") as file:
        file.write("precious")
    os.rename(d.path + ".moved", d.path)
    code = d.stop()
    check(code == 0, "exit code", code)
    with open(d.path, encoding="ascii") as file:
        check(file.read() == "precious", "the file was removed at the end")


def case_bad_bytes(folder):
    d = Daemon(folder)
    held = d.connect()
    for garbage in (b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(d.path)
            s.sendall(garbage)
    # the size of a message: up to the limit is read, a byte more ends the connection, and a length
    # of 2^60 does so before anything is allocated
    for n_bytes, survives in ((MAX_BYTES - 1, True), (MAX_BYTES, True), (MAX_BYTES + 1, False)):
        wire = d.connect()
        header = struct.pack("<IBBHIIQQ", 0x5754564B, 99, 1, PING, n_bytes - 32, 0, 7, 0)
        try:
            wire.send_frame(b"\x80\0\0\1" + header + bytes(n_bytes - 32))
            answered = wire.receive()[0] != OK # version 99
        except ConnectionError:
            answered = False
        check(answered == survives, n_bytes, "bytes: answered is", answered)
        wire.close()
    wire = d.connect()
    wire.socket.sendall(b"\1" + struct.pack(">Q", 1 << 60) + bytes(100))
    check(wire.is_closed(), "a length of 2^60")
    # what is no request ends the session of who sent it
    for payload in (b"\x80\0\0\1", b"\x80\0\0\1junk", b"\x80\0\0\1" + bytes(32), b"ab",
                    b"\0\0\0\1\x80\0\0\1" + bytes(32)): # the last came over a hop
        wire = d.connect()
        wire.send_frame(payload)
        check(wire.is_closed(), payload)
        wire.close()
    wire = Wire(d.path)
    check(wire.ask(STATUS)[0] == ESESSION, "a request before hello")
    check(held.ask(PING)[0] == OK, "the others notice nothing")
    check(d.status(held)["counts"]["nonsense"] >= 3, "counted")
    d.finish()


def case_other_user(folder):
    if os.getuid() != 0:
        print("(not root: left out)")
        return
    os.chmod(folder, 0o755)

    def hello_as(uid):
        pid = os.fork()
        if pid == 0:
            os.setgid(uid)
            os.setuid(uid)
            try:
                os._exit(Wire(d.path).hello()[0])
            except PermissionError:
                os._exit(100)
            except BaseException:
                os._exit(101)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    d = Daemon(folder)
    check(hello_as(4242) == 100, "the socket's mode keeps others out")
    d.finish()
    d = Daemon(folder, "--set", "uids=0,4242")
    check(stat.S_IMODE(os.stat(d.path).st_mode) == 0o666, "mode of the socket")
    check(hello_as(4242) == OK, "a user of the tenant")
    check(hello_as(4243) == EDENIED, "a user who is not")
    check(d.status()["counts"]["uids_refused"] == 1, "counted")
    d.finish()


def case_death_of_a_worker(folder):
    d = Daemon(folder, "--set", "grace_ms=3600000")
    code = ("import sys; sys.path.insert(0, %r); import e2e_daemon as e; w = e.Wire(%r); w.hello('it');"
            "print('there', flush=True); sys.stdin.read()" % (os.path.dirname(__file__), d.path))
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    check(worker.stdout.readline() == b"there\n", "the worker is there")
    held = d.connect()
    check(d.status(held)["counts"]["sessions"] == 2, "two")
    worker.kill()
    worker.wait()
    # at once, by its process, long before the grace time is over
    until(lambda: d.status(held)["counts"]["sessions"] == 1, "its session is gone")
    check(d.status(held)["counts"]["sessions_died"] == 1, "counted")
    # a closed connection of a process that lives is not a death
    other = Wire(d.path)
    _, token = other.hello("orphan")
    other.close()
    until(lambda: d.status(held)["counts"]["orphans"] == 1, "it is an orphan")
    orphan = [s for s in d.status(held)["sessions_open"] if s["orphaned"]]
    check(len(orphan) == 1 and orphan[0]["name"] == "orphan", orphan)
    back = Wire(d.path)
    check(back.hello("orphan", token) == (OK, token), "taken up again")
    check(d.status(held)["counts"]["sessions_resumed"] == 1, "counted")
    d.finish()


def case_reload(folder):
    config = os.path.join(folder, "kvtrunkd.json")

    def write(text):
        with open(config, "w", encoding="ascii") as file:
            file.write(text)
    write('{"log_level": "warning", "max_jobs": 7, "drain_ms": 1000}')
    d = Daemon(folder, "--config", config)
    held = d.connect()
    check(d.status(held)["config_file"] == config, "the file's name")
    check("serving at" not in d.log(), "level warning")
    write('{"log_level": "debug", "max_jobs": 8, "drain_ms": 1000}')
    d.process.send_signal(signal.SIGHUP)
    until(lambda: "configuration reloaded: 2 parameters differ" in d.log(), "reloaded")
    check('"max_jobs": 7 stays until the next start, then 8' in d.log(), d.log())
    check('"log_level": "warning" is now "debug"' in d.log(), d.log())
    report = d.status(held)
    check(report["config"]["log_level"] == "debug" and report["config"]["max_jobs"] == 7, report)
    write('{"log_level": "debug",\n "max_job": 8}')
    d.process.send_signal(signal.SIGHUP)
    until(lambda: "was not reloaded" in d.log(), "refused")
    check(f'{config}:2:2: "max_job"' in d.log(), d.log())
    check(held.ask(PING)[0] == OK, "it serves on")
    d.finish()


def case_systemd(folder):
    path = os.path.join(folder, "notify")
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(path)
    notify.settimeout(HANG_S)
    d = Daemon(folder, env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "100000"})

    def hear(what):
        while True:
            text = notify.recv(4096).decode()
            if what in text:
                return text
    check("STATUS=serving at" in hear("READY=1"), "status")
    for _ in range(5):
        hear("WATCHDOG=1")
    d.process.send_signal(signal.SIGHUP)
    hear("RELOADING=1")
    hear("READY=1")
    d.process.send_signal(signal.SIGTERM)
    hear("STOPPING=1")
    check(d.process.wait(HANG_S) == 0, d.log())


def case_bad_input(folder):
    config = os.path.join(folder, "bad.json")
    with open(config, "w", encoding="ascii") as file:
        file.write('{\n  "max_sessions": 5000\n}\n')
    refused(folder, "--config", config, code=3,
            says=[f'kvtrunkd: {config}:2:19: "max_sessions" = 5000: it is out of range', "1 .. 4096"])
    refused(folder, "--check-config", "--config", config, code=3, says=[config])
    refused(folder, "--config", "/no/such/file", code=3, says=["/no/such/file", "No such file"])
    refused(folder, "--set", "arenas=1GiB", code=3, says=['did you mean "arena"?'])
    refused(folder, "--socket", code=2, says=["--socket needs a value"])
    refused(folder, "--set", "arena", code=2, says=["--set arena: it needs KEY=VALUE"])
    refused(folder, "--check-config", "--set", "arena_group=nosuchgroup", code=3, says=["nosuchgroup"])
    refused(folder, "--sockets=/x", code=2, says=["--sockets=/x is no option"])
    refused(folder, "extra", code=2, says=['"extra"'])
    refused(folder, "--ready-fd", "77", code=2, says=["no open file descriptor"])
    path = os.path.join(folder, "socket")
    refused(folder, "--set", "arena=64TiB", path=path, code=5,
            says=["65536.0 GiB", "available memory", "control group", 'smaller "arena"'])
    refused(folder, "--set", "arena=1MiB", "--set", "arena_dir=/no/such", path=path, code=3,
            says=['"arena_dir" = "/no/such": No such file'])
    refused(folder, "--set", "arena=1MiB", "--set", "arena_group=nosuchgroup", path=path, code=3,
            says=["nosuchgroup"])
    for folder_of in "staging_dir", "arena_dir":
        refused(folder, "--set", "arena=1MiB", "--set", f"{folder_of}={config}", path=path, code=3,
                says=[f'"{folder_of}" = "{config}": Not a directory'])
    left = [name for name in os.listdir(folder) if name not in ("bad.json", "refused", "socket.lock")]
    check(not left, "left behind:", left)
    done = subprocess.run([DAEMON, "--version"], capture_output=True, check=True)
    check(re.fullmatch(rb"kvtrunkd \d+\.\d+\.\d+\n", done.stdout), done.stdout)
    done = subprocess.run([DAEMON, "--print-config"], capture_output=True, check=True)
    with open(config, "wb") as file:
        file.write(done.stdout)
    subprocess.run([DAEMON, "--config", config, "--check-config"], check=True,
                   stdout=subprocess.DEVNULL)


def case_start_that_cannot_work(folder):
    """What no further start can mend ends with the code that systemd does not start anew after; what
    may be otherwise a moment later does not."""
    with open(os.path.join(BUILD, "conf", "kvtrunkd.service"), encoding="ascii") as unit:
        check("\nRestartPreventExitStatus=2 3\n" in unit.read(), "the unit's RestartPreventExitStatus")
    path = os.path.join(folder, "socket")
    a_file, a_disk = os.path.join(folder, "a file"), os.path.join(folder, "disk")
    with open(a_file, "w", encoding="ascii"):
        pass
    small = ["--set", "arena=1MiB", "--set", "disk=16MiB"]
    for where, why in ((a_file, "Not a directory"), ("/no/such/disk", "No such file"),
                       (os.path.join(a_file, "disk"), "Not a directory"),
                       ("/sys/kvtrunk", "/sys/kvtrunk cannot be made")):
        refused(folder, *small, "--set", f"disk_dir={where}", path=path, code=3,
                says=[f"disk_dir {where}: ", why])
    d = Daemon(folder, "--set", "disk=16MiB", "--set", f"disk_dir={a_disk}")
    refused(folder, *small, "--set", f"disk_dir={a_disk}", path=path + "2", code=1,
            says=["has this disk tier"])
    d.finish()
    module = os.path.join(BUILD, "tests", "cuda", "libkvtrunk-cuda-fake.so")
    if not os.path.exists(module):
        print("without: there is no stand-in for CUDA")
        return
    env = {"KVTRUNK_CUDA": module, "KVT_FAKE_CUDA_DEVICES": "2"}
    for gpu in "2", "0,7":
        refused(folder, *small, "--set", "device=cuda", "--set", f"gpu={gpu}", path=path, code=3, env=env,
                says=[f"there is no CUDA device {gpu[-1]}, but 2", '"gpu"'])
    env["KVT_FAKE_CUDA_DEVICES"] = "0"
    refused(folder, *small, "--set", "device=cuda", path=path, code=6, env=env,
            says=["no CUDA device can be used"])


def case_settings_that_contradict(folder):
    """Each gives one clear sentence, or works."""
    path, disk = os.path.join(folder, "socket"), os.path.join(folder, "disk")
    small = ["--set", "arena=1MiB", "--set", "disk=16MiB", "--set", f"disk_dir={disk}"]

    def one_sentence(*args, code, says):
        refused(folder, *args, path=path, code=code, says=says)
        with open(os.path.join(folder, "refused"), encoding="utf-8") as file:
            lines = [line for line in file if " info: " not in line]
        check(len(lines) == 1, "one sentence:", lines)

    # a budget of nothing
    d = Daemon(folder, "--set", "disk=1GiB")
    check(d.log().count("\"disk\" is 1024 MiB, and there is no disk tier: set \"disk_dir\"") == 1, d.log())
    d.finish()
    d = Daemon(folder, "--set", "disk=16GiB", path=path + "2") # which is the default
    check("there is no disk tier" not in d.log().rsplit("stopped", 1)[1], d.log())
    d.finish()
    # less than what the file has
    os.mkdir(disk, 0o700)
    with open(os.path.join(disk, "stamp"), "w", encoding="ascii") as file:
        file.write("kvtrunk-disk-tier 1 closed some-boot\n")
    with open(os.path.join(disk, "data.mdb"), "wb") as file:
        file.truncate(64 << 20)
    d = Daemon(folder, *small)
    check("it has 64 MiB, and \"disk\" is 16 MiB now: raise that to keep one); starting with an empty "
          "one; it was deleted" in d.log(), d.log())
    check(d.status()["disk"]["files_lost"] == 1 and d.status()["disk"]["moved_aside"] == 0, d.status())
    # two daemons, and somebody who removes the lock of the first
    os.unlink(os.path.join(disk, "lock"))
    refused(folder, *small, path=path + "2", code=1, says=["has this disk tier; end it, or choose another"])
    d.finish()
    # where others may write, or own what is there
    os.chmod(disk, 0o777)
    one_sentence(*small, code=3, says=[f"{disk} has mode 0777", "chmod 0700 it"])
    os.chmod(disk, 0o700)
    if os.geteuid() == 0:
        os.chown(os.path.join(disk, "data.mdb"), 65534, -1)
        one_sentence(*small, code=3, says=["data.mdb belongs to user 65534", "runs as user 0", "chown"])
        os.chown(os.path.join(disk, "data.mdb"), 0, -1)
    one_sentence(*small[:-1], "disk_dir=/dev/shm", code=3, says=["/dev/shm has mode 1777"])
    one_sentence(*small[:-1], "disk_dir=/no/such/disk", code=3, says=["/no/such/disk cannot be made"])
    # a database of that name that is another program's
    foreign = os.path.join(folder, "foreign")
    os.mkdir(foreign, 0o700)
    with open(os.path.join(foreign, "data.mdb"), "wb") as file:
        file.write(b"theirs")
    one_sentence(*small[:-1], f"disk_dir={foreign}", code=3, says=["data.mdb is not kvtrunk's", "remove it"])
    check(os.listdir(foreign) == ["data.mdb"], os.listdir(foreign))
    # tiers that are no tiers, and places for one page
    d = Daemon(folder, *small, "--set", "host=1B", "--set", "max_pages=1")
    counts = d.status()["counts"]
    check(counts["host_bytes"] == 65536 and counts["pages_max"] == 1, counts)
    d.finish()
    one_sentence(*small, "--set", "host=60TiB", code=5, says=["host tier", "Set a smaller \"host\""])
    one_sentence(*small, "--set", "max_pinned=1MiB", "--set", "max_pinned_owner=2MiB", code=3,
                 says=["\"max_pinned_owner\" = \"2MiB\" contradicts \"max_pinned\" = \"1MiB\"", "one owner"])
    one_sentence(*small, "--set", "ladder=i4 > i8", code=3, says=["i8 takes no less than i4"])
    one_sentence(*small, "--set", "disk=1MiB", code=3, says=["\"disk\" = 1MiB", "16MiB"])


def case_arena_removed(folder):
    """Whoever comes after somebody has removed the arena's file is served all the same."""
    d = Daemon(folder, "--set", "arena=16MiB")
    trace = os.path.join(folder, "trace")
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=2 source=made\n0 512 1 - 0+1\n1 512 1 - 0+1\n")
    arena = d.status()["arena_path"]
    replay = [os.path.join(BUILD, "client", "kvtrunk"), "replay", trace, "--connect", d.path,
              "--json"]
    subprocess.run(replay, check=True, stdout=subprocess.DEVNULL, timeout=HANG_S)
    os.unlink(arena)
    until(lambda: f"{arena} was removed by somebody" in d.log(), "it was noticed")
    done = subprocess.run(replay, check=True, stdout=subprocess.PIPE, timeout=HANG_S)
    check(json.loads(done.stdout)["requests"] == 2, done.stdout)
    check(d.log().count("was removed by somebody") == 1, "said once")
    d.finish()


def case_auto_arena(folder):
    d = Daemon(folder, "--set", "arena=auto")
    room = os.statvfs("/dev/shm")
    size = os.path.getsize(d.status()["arena_path"])
    free = room.f_bavail * room.f_frsize + size
    check(1 << 20 <= size <= min(4 << 30, free // 2), size, free)
    d.finish()


def case_second_signal(folder):
    d = Daemon(folder, "--set", "drain_ms=600000")
    wire = d.connect()
    d.process.send_signal(signal.SIGINT)
    check(d.process.wait(HANG_S) == 0, "nothing is under way, so it ends though it may take 10 min")
    check(wire.is_closed(), "closed")


def helpers_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def has_open(pid, path):
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") == path:
                return True
        except FileNotFoundError: # closed meanwhile
            pass
    return False


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def case_disk_does_not_open(folder):
    """What opens the disk's directory waits for ever: the daemon can be ended all the same, and takes
    its helper with it. (Stopped, that is as if its disk did not answer; the lock keeps it in the
    opening until then.)"""
    disk = os.path.join(folder, "disk")
    os.mkdir(disk, 0o700)
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGKILL:
        with open(os.path.join(disk, "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            d = Daemon(folder, "--set", "disk=16MiB", "--set", f"disk_dir={disk}", ready=None)
            helper, = until(lambda: helpers_of(d.process.pid), "a helper")
            until(lambda: has_open(helper, lock.name), "it waits for the lock")
            os.kill(helper, signal.SIGSTOP)
        code = d.stop(number)
        check(code == (-number if number == signal.SIGKILL else 0), "exit code", code, d.log())
        until(lambda: not is_running(helper), "the helper's end")
    check(d.log().count("stopping while the disk tier is opened") == 2, d.log())
    d = Daemon(folder, "--set", "disk=16MiB", "--set", f"disk_dir={disk}")
    d.finish()


def end_before_it_begins():
    """Waits for the process that is to be, which has the signal blocked then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


def case_ended_while_it_touches(folder):
    """A large arena takes minutes to touch: who ends the daemon meanwhile does not wait for that."""
    arena = ["--set", "arena=256MiB", "--set", "arena_dir=" + folder]
    ran = subprocess.run([DAEMON, "--socket", os.path.join(folder, "socket"), *arena], capture_output=True, text=True,
                         timeout=HANG_S, check=False, preexec_fn=end_before_it_begins)
    check(ran.returncode == 0 and "stopping while the arena is touched" in ran.stderr, ran.returncode, ran.stderr)
    check(not glob.glob(os.path.join(folder, "*.arena")), os.listdir(folder))


def case_sockets_do_not_close(folder):
    """nng waits for ever: the daemon ends all the same, with the code that it had."""
    library = os.path.join(BUILD, "tests", "libkvt_hang_close.so")
    if not os.path.exists(library):
        print("without: sanitizers have to be loaded first")
        return
    d = Daemon(folder, env={"LD_PRELOAD": library})
    wire = d.connect()
    check(d.stop() == 0, "ended by its own limit", d.log())
    check("the sockets do not close" in d.log(), d.log())
    check(wire.is_closed(), "closed")
    d = Daemon(folder) # nothing that it left is in the way
    d.status()
    d.finish()


def case_host_too_small(folder):
    """Pages that cannot go through the host tier: said, and nobody waits for them."""
    trace = os.path.join(folder, "one.pct")
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=4 source=made\n")
        file.write("".join(f"{i} 1536 1 - 0+1,{1 + 2 * i}+2\n" for i in range(4)))
    d = Daemon(folder, "--set", "arena=64MiB", "--set", "host=64KiB", "--set",
               "disk_dir=" + os.path.join(folder, "disk"), "--set", "audit=true")
    tool = os.path.join(BUILD, "client", "kvtrunk")
    ran = subprocess.run([tool, "replay", trace, "--connect", d.path, "--layers", "8", "--head-dim",
                          "64"], capture_output=True, text=True, timeout=HANG_S, check=False)
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    n_pages = d.status()["counts"]["pages_dirty"]
    check(n_pages > 0, d.status()["counts"])
    # It is back long before it would give up.
    ran = subprocess.run([tool, "spill", "--wait", "3600000", "--socket", d.path],
                         capture_output=True, text=True, timeout=HANG_S, check=False)
    check(f"{n_pages} of them never will be" in ran.stdout, ran.stdout, ran.stderr)
    check(d.status()["counts"]["pages_never"] == n_pages, d.status()["counts"])
    check(d.log().count("no such page is ever copied out of the arena") == 1, d.log())
    check('set "host" to at least' in d.log(), d.log())
    d.finish()


def hold_in_arena(folder, *settings, prompts=40, page_tokens=64, shape=("--layers", "4", "--head-dim", "64")):
    """A daemon whose arena has room for all pages of a trace, 40 MiB as a rule, and has them after each of
    three replays, whatever is below it."""
    trace = os.path.join(folder, "many.pct")
    with open(trace, "w", encoding="ascii") as file:
        file.write(f"# PCT1 block_tokens=512 requests={prompts} source=made\n")
        file.write("".join(f"{i} 1024 1 - {2 * i}+2\n" for i in range(prompts)))
    d = Daemon(folder, "--set", "arena=48MiB", "--set", "max_pages=9000", *settings)
    tool = os.path.join(BUILD, "client", "kvtrunk")
    for i in range(3):
        ran = subprocess.run([tool, "replay", trace, "--connect", d.path, "--page-tokens", str(page_tokens),
                              *shape], capture_output=True, text=True, timeout=HANG_S, check=False)
        check(ran.returncode == 0, ran.stdout, ran.stderr)
        counts = d.status()["counts"]
        check(counts["pages_evicted"] == 0, i, counts)
        check(counts["pages_device"] == prompts * 1024 // page_tokens, i, counts)
    return d


def case_disk_smaller_than_arena(folder):
    """What has no room on disk stays in memory as if there were no disk; and the start says so."""
    d = hold_in_arena(folder, "--set", "host=2MiB", "--set", "disk=16MiB", "--set",
                      "disk_dir=" + os.path.join(folder, "disk"))
    check(d.log().count("\"disk\" is 16 MiB, less than the arena's 48 MiB") == 1, d.log())
    check(d.status()["counts"]["pages_disk"] > 0, d.status()["counts"])
    d.finish()


def case_disk_of_small_pages(folder):
    """Such pages take twice their bytes there: a disk that has more than the arena has room for less."""
    d = hold_in_arena(folder, "--set", "arena=10MiB", "--set", "host=1MiB", "--set", "disk=16MiB", "--set",
                      "disk_dir=" + os.path.join(folder, "disk"), prompts=66, page_tokens=16,
                      shape=("--head-dim", "32"))
    counts = d.status()["counts"]
    check(0 < counts["pages_disk"] < counts["pages_device"], counts)
    d.finish()


def case_host_smaller_than_arena(folder):
    """It has copies of a few of the arena's pages; nothing goes from there for it."""
    d = hold_in_arena(folder, "--set", "host=2MiB")
    d.finish()


def case_disk_cannot_be_read(folder):
    """Misses, said once; the process that has the disk stays, and what is on it is read when that works."""
    library = os.path.join(BUILD, "tests", "libkvt_read_eio.so")
    if not os.path.exists(library):
        print("without: sanitizers have to be loaded first")
        return
    trace, trigger = os.path.join(folder, "many.pct"), os.path.join(folder, "trigger")
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=16 source=made\n")
        file.write("".join(f"{i} 1024 1 - {2 * i}+2\n" for i in range(16)))
    d = Daemon(folder, "--set", "host=1MiB", "--set", "disk_dir=" + os.path.join(folder, "disk"), "--set",
               "max_pages=2000", "--set", "audit=true",
               env={"LD_PRELOAD": library, "KVT_TEST_EIO": trigger})
    tool = os.path.join(BUILD, "client", "kvtrunk")

    def replay():
        ran = subprocess.run([tool, "replay", trace, "--connect", d.path, "--layers", "4", "--head-dim",
                              "64"], capture_output=True, text=True, timeout=HANG_S, check=False)
        check(ran.returncode == 0, ran.stdout, ran.stderr)
        return d.status()

    counts = replay()["counts"]
    ran = subprocess.run([tool, "spill", "--wait", "30000", "--socket", d.path], capture_output=True,
                         text=True, timeout=HANG_S, check=False)
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    with open(trigger, "wb"):
        pass
    until(lambda: replay()["counts"]["reads_failed"] > 0, "a page that cannot be read")
    n_read = replay()["counts"]["pages_read"]
    for _ in range(3):
        check(replay()["counts"]["pages_read"] == n_read, "pages are read")
    report = d.status()
    check(report["disk"]["restarts"] == 0 and report["counts"]["pages_lost"] == 0, report)
    check(d.log().count("pages cannot be read from") == 1, d.log())
    check("can be read again" not in d.log(), d.log())
    os.unlink(trigger)
    until(lambda: replay()["counts"]["pages_read"] > n_read and "can be read again" in d.log(), "reading")
    check(d.log().count("pages cannot be read from") == 1, d.log())
    d.finish()


def main(names):
    cases = {name[5:]: run for name, run in names.items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        folder = tempfile.mkdtemp(prefix="kvtrunk-e2e-daemon-")
        try:
            cases[name](folder)
        except BaseException:
            print(f"{name}: FAILED; files in {folder}", file=sys.stderr)
            log = os.path.join(folder, "log")
            if os.path.exists(log):
                with open(log, encoding="utf-8", errors="replace") as file:
                    print(file.read()[-8000:], file=sys.stderr)
            raise
        finally:
            for process in Daemon.running:
                process.kill() # does nothing to one that has ended
                process.wait()
        shutil.rmtree(folder)
        print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main(globals())
