"""The Python parents and children of the launch paths.

Usage: python probe.py KIND FOLDER. KIND names the way in which the probe is
started; FOLDER is the launch's folder, whose file `spec` holds NUL-ended
`key=value` fields. This file needs only the standard library (and setproctitle
for one kind), runs on Python 3.6 and newer, and must stay importable: the
children of spawn and forkserver import it again as their main module.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys

KIND, FOLDER = sys.argv[1], sys.argv[2]


def read_spec():
    fields = {}
    with open(os.path.join(FOLDER, "spec"), "rb") as file:
        for field in file.read().split(b"\0"):
            key, equals, value = field.partition(b"=")
            if equals:
                fields.setdefault(os.fsdecode(key), []).append(os.fsdecode(value))
    return fields


SPEC = read_spec()


def assignments(place):
    return [entry.partition("=")[::2] for entry in SPEC.get(place, [])]


def set_in_mapping(place):
    for name, value in assignments(place):
        os.environ[name] = value


def set_in_libc(place):
    libc = ctypes.CDLL(None)
    for name, value in assignments(place):
        if libc.setenv(os.fsencode(name), os.fsencode(value), 1) != 0:
            raise OSError("setenv " + name)


def mapping_fields():
    """What os.environ says about the watched variables, as extra fields."""
    names = SPEC.get("name", [])
    found = [(name, os.environ[name]) for name in names if name in os.environ]
    return b"".join(os.fsencode("mapping=%s=%s\0" % pair) for pair in found)


def probe(before=None, after=None):
    """Runs in the observed process: NCCL reads its settings between the two."""
    library = ctypes.CDLL(SPEC["probe_library"][0])
    library.nccldiag_probe_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if library.nccldiag_probe_open(os.fsencode(FOLDER)) != 0:
        sys.exit(3)
    if before:
        before()
    library.nccldiag_probe_latch()
    if after:
        after()
    extra = mapping_fields()
    library.nccldiag_probe_report(extra, len(extra))


def probe_early():
    probe(before=lambda: set_in_mapping("child"))


def probe_late():
    probe(after=lambda: set_in_mapping("child"))


def tell_as_parent():
    """Tells the driver who the parent is and what its os.environ says."""
    path = SPEC["socket"][0]
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if len(os.fsencode(path)) < 108:
        stream.connect(path)
    else:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        stream.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
        os.close(folder)
    body = os.fsencode("role=parent\0launch=%s\0" % SPEC["launch"][0]) + mapping_fields()
    stream.sendall(struct.pack("<I", len(body)) + body)
    if not stream.recv(1):
        sys.exit(4)  # the driver is gone
    return stream


def native_command():
    return [SPEC["exe"][0], "__probe", FOLDER]


def run_native(**how):
    stream = tell_as_parent()
    subprocess.run(native_command(), check=True, **how)
    stream.close()


def run_process(method, target=probe):
    import multiprocessing

    stream = tell_as_parent()
    child = multiprocessing.get_context(method).Process(target=target)
    child.start()
    child.join()
    stream.close()
    sys.exit(child.exitcode)


def start_forkserver():
    """Starts the server before anything else changes the environment."""
    import multiprocessing.forkserver

    multiprocessing.forkserver.ensure_running()


def nothing():
    pass


def by_subprocess():
    set_in_mapping("parent")
    run_native()


def by_subprocess_empty():
    set_in_mapping("parent")
    run_native(env={})


def by_subprocess_copy():
    set_in_mapping("parent")
    run_native(env=os.environ.copy())


def by_os_system():
    import shlex

    set_in_mapping("parent")
    stream = tell_as_parent()
    status = os.system(" ".join(shlex.quote(word) for word in native_command()))
    stream.close()
    sys.exit(1 if status else 0)


def by_fork():
    set_in_mapping("parent")
    run_process("fork")


def by_spawn():
    set_in_mapping("parent")
    run_process("spawn")


def by_forkserver():
    set_in_mapping("parent")
    run_process("forkserver")


def by_forkserver_late():
    start_forkserver()
    set_in_mapping("parent")
    run_process("forkserver")


def by_pool():
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(nothing)
        set_in_mapping("parent")
        stream = tell_as_parent()
        pool.apply(probe)
        stream.close()


def by_target_early():
    set_in_mapping("parent")
    run_process("spawn", probe_early)


def by_target_late():
    set_in_mapping("parent")
    run_process("spawn", probe_late)


def by_environ_replaced():
    os.environ = dict(os.environ)
    set_in_mapping("parent")
    run_native()


def by_ctypes():
    set_in_libc("parent")
    run_native()


def by_ctypes_copy():
    set_in_libc("parent")
    run_native(env=os.environ.copy())


def by_setproctitle():
    import setproctitle

    setproctitle.setproctitle("nccldiag::worker")
    probe()


KINDS = {
    "self": probe,
    "py-subprocess": by_subprocess,
    "py-subprocess-empty-env": by_subprocess_empty,
    "py-subprocess-environ-copy": by_subprocess_copy,
    "py-os-system": by_os_system,
    "py-fork": by_fork,
    "py-spawn": by_spawn,
    "py-forkserver": by_forkserver,
    "py-forkserver-late": by_forkserver_late,
    "py-pool": by_pool,
    "py-target-early": by_target_early,
    "py-target-late": by_target_late,
    "py-main-toplevel": by_spawn,
    "py-environ-replaced": by_environ_replaced,
    "py-ctypes-setenv": by_ctypes,
    "py-ctypes-setenv-copy": by_ctypes_copy,
    "py-setproctitle": by_setproctitle,
}

if KIND == "py-main-toplevel":
    # What many launch scripts do at their top: spawn and forkserver children
    # import this file again, so it runs in them as well.
    set_in_mapping("child")

if __name__ == "__main__":
    KINDS[KIND]()
