"""Whatever goes wrong while a file is written, the old file or the new one is there whole, and nothing else."""

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

import wayfare as wf
from wayfare.errors import FileAccessError
from wayfare.io import load, save
from wayfare.io.replace import PREFIX, SUFFIX

OLD = {"w": wf.zeros(1000), "b": wf.zeros(3)}
NEW = {"w": wf.ones(1000), "b": wf.ones(3)}


@pytest.fixture
def path(tmp_path):
    save(OLD, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def is_old_and_alone(path):
    back = load(path)
    return back["w"].tolist() == [0.0] * 1000 and os.listdir(path.parent) == [path.name]


def raises(error):
    def failing(*args, **options):
        raise error

    return failing


FAILURES = {
    "disk full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "quota": OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "input/output": OSError(errno.EIO, os.strerror(errno.EIO)),
    "interrupt": KeyboardInterrupt(),
    "memory": MemoryError(),
}


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fchmod"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_call_leaves_the_old_file_and_no_other(path, monkeypatch, call, failure):
    error = FAILURES[failure]
    with monkeypatch.context() as patch:
        patch.setattr(os, call, raises(error))
        with pytest.raises(FileAccessError if isinstance(error, OSError) else type(error)) as caught:
            save(NEW, path)
    assert is_old_and_alone(path)
    if isinstance(error, OSError):
        assert caught.value.errno == error.errno and "The old file is as it was." in str(caught.value)
        assert ("no room" in str(caught.value)) == (failure in ("disk full", "quota"))
    save(NEW, path)
    assert load(path)["w"].sum().item() == 1000


def test_an_interrupt_in_the_middle_of_the_bytes(path, monkeypatch):
    real, calls = os.write, []

    def write(descriptor, data):
        calls.append(len(data))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(KeyboardInterrupt):
        save(NEW, path)
    assert len(calls) == 2 and is_old_and_alone(path)


def test_writes_taken_in_parts_are_finished(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    save(NEW, path)
    assert load(path)["w"].sum().item() == 1000


def test_a_disk_that_is_really_full(path):
    """A limit on the size of files stands for a full disk: the system itself refuses the bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(FileAccessError, match="no room for .*The old file is as it was") as caught:
            save(NEW, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG and is_old_and_alone(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_folder(path):
    path.parent.chmod(0o555)
    try:
        with pytest.raises(FileAccessError, match="may not write"):
            save(NEW, path)
        assert is_old_and_alone(path)
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_where_nothing_can_be_made(path, monkeypatch, code):
    real = os.open

    def refuse_new(name, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return real(name, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse_new)
        with pytest.raises(FileAccessError, match="may not write.*folder you may write to") as caught:
            save(NEW, path)
    assert caught.value.errno == code and is_old_and_alone(path)


def test_a_write_protected_file_is_kept(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda name, mode: False)  # root is never refused
    with pytest.raises(FileAccessError, match="write-protected"):
        save(NEW, path)
    assert is_old_and_alone(path)


def test_the_order_is_write_sync_rename_sync(path, monkeypatch):
    steps = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def noted(first, *rest, name=name, real=real):
            kind = "folder" if name == "fsync" and stat.S_ISDIR(os.fstat(first).st_mode) else "file"
            steps.append(f"{name} {kind}")
            return real(first, *rest)

        monkeypatch.setattr(os, name, noted)
    save(NEW, path)
    assert list(dict.fromkeys(steps)) == ["write file", "fsync file", "replace file", "fsync folder"]


def test_a_folder_that_cannot_be_synced_says_that_the_file_is_written(path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code = errno.EIO
    with pytest.raises(FileAccessError, match="is written, but the system did not confirm"):
        save(NEW, path)
    assert load(path)["w"].sum().item() == 1000
    code = errno.EINVAL  # file systems that have no such thing
    save(OLD, path)
    assert is_old_and_alone(path)


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save(NEW, tmp_path / "f")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "f").st_mode) == mode


def test_a_replaced_file_keeps_its_permissions(path):
    path.chmod(0o640)
    save(NEW, path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "data").mkdir()
    save(OLD, tmp_path / "data" / "real")
    (tmp_path / "link").symlink_to("data/real")
    (tmp_path / "loose").symlink_to("data/made")
    save(NEW, tmp_path / "link")
    save(NEW, tmp_path / "loose")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "loose").is_symlink()
    assert sorted(os.listdir(tmp_path / "data")) == ["made", "real"]
    assert load(tmp_path / "data" / "real")["b"].tolist() == load(tmp_path / "data" / "made")["b"].tolist() == [1] * 3


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileAccessError):
        save(NEW, tmp_path / "a")
    with pytest.raises(FileAccessError):
        load(tmp_path / "a")


def test_leftovers_of_the_dead_go_and_files_of_the_living_stay(path):
    dead = path.with_name(f"{PREFIX}dead{SUFFIX}")
    alive = path.with_name(f"{PREFIX}alive{SUFFIX}")
    other = path.with_name(".wayfare-notes")
    for name in (dead, alive, other):
        name.write_bytes(b"half")
    with open(alive, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save(NEW, path)
        assert sorted(os.listdir(path.parent)) == sorted([alive.name, other.name, path.name])
    save(NEW, path)
    assert sorted(os.listdir(path.parent)) == sorted([other.name, path.name])


def test_a_file_taken_for_a_leftover_before_its_lock_is_made_again(path, monkeypatch):
    real, stolen = fcntl.flock, []

    def slow(descriptor, how):
        (name,) = [name for name in os.listdir(path.parent) if name.startswith(PREFIX)]
        if not stolen:
            stolen.append(name)
            os.unlink(path.with_name(name))
        return real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    save(NEW, path)
    assert stolen and load(path)["w"].sum().item() == 1000 and os.listdir(path.parent) == [path.name]


# The processes below are children of a warm process, so that a round costs a fork and not an import.
KILLED = textwrap.dedent("""
    import os, random, signal, sys, time
    import wayfare as wf
    from wayfare.io import load, save
    from wayfare.io.replace import PREFIX

    folder, rounds = sys.argv[1], int(sys.argv[2])
    path = os.path.join(folder, "model.safetensors")

    def state(version):
        return {"model": {"a": wf.full((300, 50), float(version)), "b": wf.full((7,), version)}, "version": version}

    rng = random.Random(7)
    save(state(0), path)
    version = leftovers = moved = 0
    for round in range(rounds):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for new in range(version + 1, version + 10_000):
                    save(state(new), path)
                    os.write(writing, new.to_bytes(4, "little"))
            finally:
                os._exit(1)
        os.close(writing)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        told = b""
        while piece := os.read(reading, 65536):
            told += piece
        os.close(reading)
        leftovers += any(name.startswith(PREFIX) for name in os.listdir(folder))
        back = load(path)
        found = back["version"]
        assert back["model"]["a"].shape == (300, 50) and (back["model"]["a"] == found).all().item()
        assert back["model"]["b"].tolist() == [found] * 7
        # A save that was reported done is never lost; one that was under way may have been finished.
        done = int.from_bytes(told[-4:], "little") if told else version
        assert done <= found <= done + 1, (done, found)
        moved += found > version
        version = found
    assert len([name for name in os.listdir(folder) if name.startswith(PREFIX)]) <= 1
    save(state(1), path)
    assert os.listdir(folder) == ["model.safetensors"]
    print(f"{leftovers} killed while writing, {moved} went on")
    assert leftovers > rounds // 20 and moved > rounds // 20
""")


def test_two_hundred_kills_at_random_points_lose_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "200"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


EVERY_CALL = textwrap.dedent("""
    import os, signal, sys
    import wayfare as wf
    from wayfare.io import load, save

    path = os.path.join(sys.argv[1], "model.safetensors")
    for point in range(100):
        save([wf.zeros(100)], path)
        child = os.fork()
        if child == 0:
            count = 0

            def counted(real):
                def call(*args, **options):
                    global count
                    if count == point:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += 1
                    return real(*args, **options)
                return call

            for name in ("open", "write", "fsync", "replace", "close", "fchmod", "scandir"):
                setattr(os, name, counted(getattr(os, name)))
            save([wf.ones(100)], path)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        (value,) = load(path)
        print(int(value.sum().item()), end=" ")
        assert value.tolist() in ([0.0] * 100, [1.0] * 100)
        if status == 0:
            break
    save([wf.zeros(100)], path)
    assert os.listdir(sys.argv[1]) == ["model.safetensors"]
""")


def test_a_kill_before_each_call_of_the_system_in_turn(tmp_path):
    done = subprocess.run([sys.executable, "-c", EVERY_CALL, str(tmp_path)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sums = done.stdout.split()
    # Old until the rename, new ever after.
    assert sums == sorted(sums, key=int) and sums.count("0") >= 6 and sums.count("100") >= 2
